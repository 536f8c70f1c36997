#!/usr/bin/env python3
"""Sums up a JUnit report of ctest as one plain line: "N passed, N failed". Tests that did not run are named first and count as neither;
then those that failed, with the end of what they printed.

usage: count-tests.py REPORT.xml [SECOND.xml]
       count-tests.py --second-run REPORT.xml

SECOND.xml is of a second run of some of the tests: what passed there counts as passed, and is named as such.
--second-run prints a regular expression for the failed tests that may have one: those of which no sanitizer reported anything, when they
are few. Nothing else is printed then.

Exits 1 when a test failed or none passed (with --second-run: when no test may have one).
"""
import re
import sys
import xml.etree.ElementTree as ElementTree


LINES_MAX = 40
SECOND_RUNS_MAX = 3
SANITIZER_REPORT = re.compile(r"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|: runtime error: ")


def end_of_output(case) -> list[str]:
    """The last lines that a test printed; a line that repeats is shown once, with a count."""
    lines = []
    for line in (case.findtext("system-out") or "").splitlines():
        if lines and lines[-1][0] == line:
            lines[-1][1] += 1
        else:
            lines.append([line, 1])
    return [line if times == 1 else f"{line}  ({times} times)" for line, times in lines[-LINES_MAX:]]


def cases_of(report: str) -> dict:
    return {case.get("name", "?"): case for case in ElementTree.parse(report).getroot().iter("testcase")}


def is_skipped(case) -> bool:
    return case.get("status") in ("notrun", "disabled") and case.find("failure") is None


def has_passed(case) -> bool:
    return case.get("status") == "run" and case.find("failure") is None


def second_run(report: str) -> int:
    failed = {name: case for name, case in cases_of(report).items() if not has_passed(case) and not is_skipped(case)}
    reported = any(SANITIZER_REPORT.search(case.findtext("system-out") or "") for case in failed.values())
    if not failed or reported or len(failed) > SECOND_RUNS_MAX:
        return 1
    print("^(" + "|".join(re.escape(name) for name in failed) + ")$")
    return 0


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--second-run"] and len(arguments) == 2:
        return second_run(arguments[1])
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        print("usage: count-tests.py REPORT.xml [SECOND.xml], or count-tests.py --second-run REPORT.xml", file=sys.stderr)
        return 2
    cases = cases_of(arguments[0])
    for name, case in (cases_of(arguments[1]) if len(arguments) == 2 else {}).items():
        if has_passed(case) and name in cases:
            cases[name] = case
            print(f"passed in a second run, alone: {name}")
    skipped = [name for name, case in cases.items() if is_skipped(case)]
    failed = {name: case for name, case in cases.items() if not has_passed(case) and not is_skipped(case)}
    passed = len(cases) - len(skipped) - len(failed)
    for name in skipped:
        print(f"not run: {name}")
    for name, case in failed.items():
        print(f"failed: {name}")
        for line in end_of_output(case):
            print(f"  | {line}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
