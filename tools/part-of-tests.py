#!/usr/bin/env python3
"""Prints the numbers of ctest's tests without most of those that take long, as `ctest -I FILE` takes them.

usage: part-of-tests.py BUILD_FOLDER PART/PARTS
       part-of-tests.py BUILD_FOLDER --rest REPORT.xml OTHERS_REPORT.xml...

1/3 leaves one third of those that take long, 2/3 the next, 3/3 the last (3/3 is not all of them). Those that take long are the end-to-end tests
and the policy's on virtual time (the labels e2e and property). All parts have all of them in sum; every other test is in each. A suite's tests
take turns, as they cost about the same; which part its first one is in follows from the suite's name. So two builds of the same tests agree.
The policy's are not built for ThreadSanitizer.

--rest leaves out what passed in this build, as ctest's JUnit report of its run before says, and of those that take long what passed in other
builds. What was skipped or failed there, or is not there at all, is not left out.
"""
import collections
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zlib

LONG = {"e2e", "property"}


def labels_of(test: dict) -> list[str]:
    return next((entry["value"] for entry in test.get("properties", []) if entry["name"] == "LABELS"), [])


def is_long(test: dict) -> bool:
    return not LONG.isdisjoint(labels_of(test))


def parts_of(tests: list[dict], parts: int) -> list[int]:
    """The part, from 1 on, that each of the tests is in; 0: in each."""
    suites = collections.Counter()
    found = []
    for test in tests:
        suite = test["name"].split(".")[0]
        if is_long(test):
            found.append((zlib.crc32(suite.encode()) + suites[suite]) % parts + 1)
            suites[suite] += 1
        else:
            found.append(0)
    return found


def passed_in(report: str) -> set[str]:
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("name", "") for case in cases if case.get("status") == "run" and case.find("failure") is None}


def left_by(tests: list[dict], before: str, others: list[str]) -> list[bool]:
    """Whether each of the tests is to be run though these reports are there."""
    here = passed_in(before)
    anywhere = here.union(*(passed_in(report) for report in others))
    return [test["name"] not in (anywhere if is_long(test) else here) for test in tests]


def main() -> int:
    wanted = re.fullmatch(r"([1-9])/([1-9])", sys.argv[2]) if len(sys.argv) == 3 else None
    is_rest = len(sys.argv) > 3 and sys.argv[2] == "--rest"
    if not is_rest and (not wanted or wanted[1] > wanted[2]):
        print(__doc__, file=sys.stderr)
        return 2
    listing = subprocess.run(["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"], check=True, stdout=subprocess.PIPE).stdout
    tests = json.loads(listing)["tests"]
    if is_rest:
        stays = left_by(tests, sys.argv[3], sys.argv[4:])
    else:
        stays = [part in (0, int(wanted[1])) for part in parts_of(tests, int(wanted[2]))]
    print(",".join(["0", "0", "0", *(str(number) for number, here in enumerate(stays, 1) if here)]))  # no range, and these besides
    return 0


if __name__ == "__main__":
    sys.exit(main())
