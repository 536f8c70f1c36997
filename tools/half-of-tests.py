#!/usr/bin/env python3
"""Prints the numbers of ctest's tests without half of those that take long, as `ctest -I FILE` takes them.

usage: half-of-tests.py BUILD_FOLDER HALF

HALF is 0 or 1. Those that take long are the end-to-end tests and the policy's on virtual time (the labels e2e and property); both halves have
all of them in sum, and every other test is in both. Which half a test is in follows from its name, so two builds of the same tests agree.
The policy's are not built for ThreadSanitizer.
"""
import json
import subprocess
import sys
import zlib

LONG = {"e2e", "property"}


def labels_of(test: dict) -> list[str]:
    return next((entry["value"] for entry in test.get("properties", []) if entry["name"] == "LABELS"), [])


def is_in_half(test: dict, half: int) -> bool:
    return LONG.isdisjoint(labels_of(test)) or zlib.crc32(test["name"].encode()) % 2 == half


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[2] not in ("0", "1"):
        print(__doc__, file=sys.stderr)
        return 2
    listing = subprocess.run(["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"], check=True, stdout=subprocess.PIPE).stdout
    tests = json.loads(listing)["tests"]
    numbers = [str(number) for number, test in enumerate(tests, 1) if is_in_half(test, int(sys.argv[2]))]
    print(",".join(["0", "0", "0", *numbers]))  # no range, and these besides
    return 0


if __name__ == "__main__":
    sys.exit(main())
