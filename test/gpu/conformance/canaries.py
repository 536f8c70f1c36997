#!/usr/bin/env python3
"""Puts known defects back, one at a time, and expects the instrument to find each within --budget seconds (canaries.toml).

  canaries.py --build build/release --simgpu build/release/simgpu --small      on the stand-in GPU
  canaries.py --build build/release --libraries DIR     builds the libraries only: DIR/0/libnvshare.so, ...
  canaries.py --prebuilt DIR --root dist                asks with these: on a GPU, where nothing is built
Edits files of the checkout and restores them; refuses where one of them has changes.
"""
import argparse
import fnmatch
import pathlib
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from checks import conformance as checks  # noqa: E402
from harness import Config, Process, Result  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parent.parent.parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="", help="a configured build folder")
    parser.add_argument("--libraries", default="", help="only build, into this folder")
    parser.add_argument("--prebuilt", default="", help="such a folder; nothing is built")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--budget", type=float, default=60, help="seconds for each")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--root", default="", help="where bin/, lib/ and test/ (or gpu/) are")
    parser.add_argument("--simgpu", default="")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", default="/tmp/nvshare-canaries")
    parser.set_defaults(python=sys.executable, variants="", seconds=0, library_log="warning", turn=1, launcher="preload")
    return parser.parse_args()


def build_with_defect(build, canary, target):
    """The library with the defect, at `target`; the checkout is as before afterwards."""
    path = REPO / canary["file"]
    if subprocess.run(["git", "-C", str(REPO), "diff", "--quiet", "--", canary["file"]], check=False).returncode != 0:
        raise RuntimeError(f"{canary['file']} has changes")
    text = path.read_text()
    if text.count(canary["text"]) != 1:
        raise RuntimeError(f"{canary['name']}: the text to change is {text.count(canary['text'])} times in {canary['file']}")
    try:
        path.write_text(text.replace(canary["text"], canary["defect"]))
        subprocess.run(["cmake", "--build", build, "--target", "nvshare"], check=True, stdout=subprocess.DEVNULL)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pathlib.Path(build) / "lib" / "libnvshare.so", target)
    finally:
        path.write_text(text)


def seconds_to_find(args, canary, library):
    """Seconds until a run that had the whole budget was over and showed it; None: it did not."""
    config = Config(argparse.Namespace(**{**vars(args), "budget": args.budget + 20}))
    config.library = library
    try:
        options = checks.Options(processes=args.processes, states=canary["states"], devices=canary.get("devices", 1), budget=args.budget,
                                 count=4000, examined=80)
        result = Result("canary", judge_times=False)
        begin = time.monotonic()
        checks.compare_all(config, result, options)
        kinds = [row["kind"][0].partition("(")[0] for row in result.figures["differences"]]
        found = any(fnmatch.fnmatchcase(kind, pattern) for kind in kinds for pattern in canary["symbols"])
        return (time.monotonic() - begin if found else None), sorted(set(kinds))
    finally:
        Process.end_all()
        shutil.rmtree(config.work, ignore_errors=True)


def main():
    args = parse_arguments()
    rows = checks.tomllib.loads((pathlib.Path(__file__).resolve().parent / "canaries.toml").read_text())["canary"]
    args.root = args.root or args.build
    folder = pathlib.Path(args.prebuilt or args.libraries or args.out).resolve()
    missed = 0
    for number, canary in enumerate(rows):
        if args.only not in canary["name"]:
            continue
        library = folder / str(number) / "libnvshare.so"
        if not args.prebuilt:
            build_with_defect(args.build, canary, library)
        if args.libraries:
            print(f"{canary['name']}: {library}", flush=True)
            continue
        seconds, kinds = seconds_to_find(args, canary, library)
        missed += seconds is None
        print(f"{'found in %.0f s' % seconds if seconds is not None else 'NOT FOUND'}: {canary['name']}; differing: {', '.join(kinds)}", flush=True)
    if args.build:  # as it was
        subprocess.run(["cmake", "--build", args.build, "--target", "nvshare"], check=True, stdout=subprocess.DEVNULL)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
