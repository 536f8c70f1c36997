#!/usr/bin/env python3
"""Which lines of the pure folders ran in unit tests and the simulation: ./dev coverage.

Runs the tests of a build with gcov's counters (preset coverage), adds up what gcov says of each source, and prints a table by folder.
Ends with 1 where a folder has less than --least percent, or a test failed.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src/interposer/turn", "src/policy")
TESTS = (
    ("turn_test",),
    ("policy_test",),
    ("policy_property_test",),
    ("policy_gang_test",),
    ("policy_quota_test",),
    # With a bug switched on it runs what it never runs otherwise.
    ("simulation_test", "--gtest_filter=-*Canary*"),
)


def is_of_tests(path):
    """Worlds and ledgers of tests stand beside what they test, or in testing/."""
    name = os.path.basename(path)
    return name.endswith("_test.cc") or name.startswith("test_") or "/testing/" in path


def folder_of(path):
    """The one of FOLDERS that it is in, itself or in a folder below."""
    folder = next((folder for folder in FOLDERS if path.startswith(folder + "/")), None)
    return None if is_of_tests(path) else folder


def run_test(build, test, *arguments):
    return subprocess.run([build / "bin" / test, "--gtest_brief=1", *arguments], cwd=build, capture_output=True, text=True)


def run_tests(build):
    """Their names that failed."""
    for counters in build.rglob("*.gcda"):
        counters.unlink()
    failed = []
    # Each computes on one core. What two of them count in one file is added up: gcov locks it.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as at_once:
        for (test, *_), done in zip(TESTS, at_once.map(lambda test: run_test(build, *test), TESTS)):
            if done.returncode != 0:
                print(done.stdout[-4000:], done.stderr[-2000:], file=sys.stderr)
                failed.append(test)
    return failed


def lines_that_ran(build):
    """source -> line -> how often it ran, over all programs."""
    sources = collections.defaultdict(collections.Counter)
    counters = sorted(str(path) for path in build.rglob("*.gcda"))
    for start in range(0, len(counters), 20):
        said = subprocess.run(
            ["gcov", "--json-format", "--stdout", *counters[start : start + 20]], cwd=build, check=True, capture_output=True, text=True
        )
        for line in said.stdout.splitlines():
            document = json.loads(line)
            for file in document["files"]:
                path = os.path.normpath(os.path.join(document["current_working_directory"], file["file"]))
                path = os.path.relpath(path, ROOT)
                if folder_of(path) is None:
                    continue
                for each in file["lines"]:
                    sources[path][each["line_number"]] += each["count"]
    return sources


def percent(ran, lines):
    return 100.0 * ran / lines if lines else 0.0


def report(sources, least, shows):
    """False: a folder has too little."""
    enough = True
    for folder in FOLDERS:
        files = {path: lines for path, lines in sources.items() if folder_of(path) == folder}
        lines = sum(len(each) for each in files.values())
        ran = sum(1 for each in files.values() for count in each.values() if count > 0)
        print(f"{folder:24} {ran:5} of {lines:5} lines  {percent(ran, lines):5.1f} %")
        enough = enough and percent(ran, lines) >= least
        for source in sorted((ROOT / folder).rglob("*.cc")):
            path = os.path.relpath(source, ROOT)
            if folder_of(path) and path not in files:
                print(f"  {path}: no test has it")
                enough = False
        for path in sorted(files):
            missed = sorted(number for number, count in files[path].items() if count == 0)
            if missed and shows:
                print(f"  {path}: {percent(len(files[path]) - len(missed), len(files[path])):.1f} %, not {', '.join(map(str, missed))}")
    return enough


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/coverage")
    parser.add_argument("--least", type=float, default=90, help="percent of each folder's lines (90)")
    parser.add_argument("--missed", action="store_true", help="also names the lines that never ran")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    failed = run_tests(build)
    if failed:
        print(f"coverage: {', '.join(failed)} failed", file=sys.stderr)
    enough = report(lines_that_ran(build), arguments.least, arguments.missed)
    if not enough:
        print(f"coverage: less than {arguments.least:g} %; --missed names the lines", file=sys.stderr)
    return 0 if enough and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
