#!/usr/bin/env python3
"""Sums up a JUnit report of ctest as one plain line: "N passed, N failed". Tests that did not run are named first and count as neither;
then those that failed, with the end of what they printed.

Exits 1 when a test failed or none passed.
"""
import sys
import xml.etree.ElementTree as ElementTree


LINES_MAX = 40


def end_of_output(case) -> list[str]:
    """The last lines that a test printed; a line that repeats is shown once, with a count."""
    lines = []
    for line in (case.findtext("system-out") or "").splitlines():
        if lines and lines[-1][0] == line:
            lines[-1][1] += 1
        else:
            lines.append([line, 1])
    return [line if times == 1 else f"{line}  ({times} times)" for line, times in lines[-LINES_MAX:]]


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: count-tests.py REPORT.xml", file=sys.stderr)
        return 2
    passed, failed, not_run = 0, [], []
    for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        status = case.get("status")
        if status == "run" and case.find("failure") is None:
            passed += 1
        elif status in ("notrun", "disabled") and case.find("failure") is None:
            not_run.append(case.get("name", "?"))
        else:
            failed.append(case)
    for name in not_run:
        print(f"not run: {name}")
    for case in failed:
        print(f"failed: {case.get('name', '?')}")
        for line in end_of_output(case):
            print(f"  | {line}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
