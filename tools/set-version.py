#!/usr/bin/env python3
"""The release's number, in every file that says it.

  tools/set-version.py            whether all of them say what CMakeLists.txt says; exit code 1, with the files that do not
  tools/set-version.py 0.2.0      writes it into all of them; CHANGELOG.md's section of it gets today's date

A release: this, `tools/set-version.py`, .ci/run, a commit and its tag, `./dev dist` and `./dev package`.
"""
import argparse
import datetime
import pathlib
import re
import sys

NUMBER = r"(\d+\.\d+\.\d+)"
# Each place, as a pattern around the number, and how often the file has it at least.
PLACES = (
    ("CMakeLists.txt", rf"project\(nvshare VERSION {NUMBER} ", 1),
    ("deploy/helm/nvshare/Chart.yaml", rf"^version: {NUMBER}$", 1),
    ("deploy/helm/nvshare/Chart.yaml", rf"^appVersion: {NUMBER}$", 1),
    ("deploy/nvshare.yaml", rf'app\.kubernetes\.io/version: "{NUMBER}"', 5),
    ("deploy/nvshare.yaml", rf'image: "nvshare:{NUMBER}"', 1),
    ("deploy/docker/Dockerfile", rf"/nvshare:{NUMBER} ", 1),
    ("docs/kubernetes.md", rf"/nvshare:{NUMBER}\b", 2),
    ("docs/pictures/top.svg", rf">nvshare {NUMBER}</text>", 1),
)


def found(tree):
    """(file, number) of each occurrence; a place that is not there has the number ''."""
    for file, pattern, times in PLACES:
        numbers = re.findall(pattern, (tree / file).read_text(encoding="utf-8"), re.MULTILINE)
        yield from ((file, number) for number in numbers + [""] * (times - len(numbers)))


def check(tree):
    places = list(found(tree))
    version = places[0][1]
    wrong = sorted({f"{file} says {number or 'no release where it should'}" for file, number in places if number != version})
    changelog = (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)}\b", changelog, re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section '## {version}'")
    for line in wrong:
        print(f"set-version: {line}; CMakeLists.txt says {version}", file=sys.stderr)
    return 1 if wrong else 0


def write(tree, version):
    changelog = tree / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    section = rf"^## {re.escape(version)}(, not released yet)?$"
    if not re.search(section, text, re.MULTILINE):
        print(f"set-version: CHANGELOG.md has no section '## {version}, not released yet': write it first", file=sys.stderr)
        return 1
    changelog.write_text(re.sub(section, f"## {version}, {datetime.date.today().isoformat()}", text, flags=re.MULTILINE), encoding="utf-8")
    for file, pattern, _ in PLACES:
        path = tree / file
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(pattern, lambda match: match[0].replace(match[1], version), text, flags=re.MULTILINE), encoding="utf-8")
    return check(tree)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="such as 0.2.0")
    parser.add_argument("--tree", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.version is None:
        return check(arguments.tree)
    if not re.fullmatch(NUMBER, arguments.version):
        print(f"set-version: '{arguments.version}' is no release; accepted: three numbers, such as 0.2.0", file=sys.stderr)
        return 2
    return write(arguments.tree, arguments.version)


if __name__ == "__main__":
    sys.exit(main())
