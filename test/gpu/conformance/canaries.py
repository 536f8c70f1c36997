#!/usr/bin/env python3
"""Puts known defects back, one at a time, and expects the instrument to find each within --budget seconds (canaries.toml).

  canaries.py --build build/release --simgpu build/release/simgpu --small      on the stand-in GPU
  canaries.py --build build/release --libraries DIR     builds the libraries only: DIR/0/libnvshare.so, ...
  canaries.py --prebuilt DIR --root dist                asks with these: on a GPU, where nothing is built
  canaries.py --build build/release --check             whether each can be put back and compiles; changes and builds nothing
Edits files of the checkout and restores them; refuses where one of them has changes.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from checks import conformance as checks  # noqa: E402
from harness import Config, Process, Result  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parent.parent.parent.parent
SEQUENCES = 12000
NATIVE_SHARE = 0.35  # of a canary's time that is spent natively, once for all canaries of as many GPUs
# Each sequence of first_turn is a process of its own, whose start costs a GPU half a second: the sequences are long.
LONG = {"calls": 400, "cold_calls": 600}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="", help="a configured build folder")
    parser.add_argument("--libraries", default="", help="only build, into this folder")
    parser.add_argument("--prebuilt", default="", help="such a folder; nothing is built")
    parser.add_argument("--check", action="store_true", help="compile what would be changed, in --build's way")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--budget", type=float, default=60, help="seconds for each")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--root", default="", help="where bin/, lib/ and test/ (or gpu/) are")
    parser.add_argument("--simgpu", default="")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", default="/tmp/nvshare-canaries")
    parser.set_defaults(python=sys.executable, variants="", seconds=0, library_log="warning", turn=1, launcher="preload")
    return parser.parse_args()


def with_defect(canary):
    """The file's text with the defect."""
    text = (REPO / canary["file"]).read_text()
    if text.count(canary["text"]) != 1:
        raise RuntimeError(f"{canary['name']}: the text to change is {text.count(canary['text'])} times in {canary['file']}")
    return text.replace(canary["text"], canary["defect"])


def compilation_of(build, file):
    """How the build compiles that file, or, of a header, the first source that includes it: the words without output and input, and the source."""
    entries = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    include = f'#include "{pathlib.Path(file).relative_to("src")}"'
    for entry in entries:
        source = pathlib.Path(entry["file"])
        if source.is_relative_to(REPO / "src") and (source == REPO / file or (file.endswith(".h") and include in source.read_text())):
            words = shlex.split(entry["command"])
            return words[:words.index("-o")], source, entry["directory"]
    raise RuntimeError(f"{build} does not compile {file}")


def fault_of(build, canary):
    """What is wrong with a canary, or nothing: it has no place, or what it makes does not compile."""
    try:
        text = with_defect(canary)
        words, source, directory = compilation_of(build, canary["file"])
    except RuntimeError as error:
        return str(error)
    with tempfile.TemporaryDirectory(prefix="nvshare-canary-") as folder:
        changed = pathlib.Path(folder) / pathlib.Path(canary["file"]).relative_to("src")
        changed.parent.mkdir(parents=True)
        changed.write_text(text)
        compiled = changed if source == REPO / canary["file"] else source
        run = subprocess.run([words[0], f"-I{folder}", *words[1:], "-fsyntax-only", str(compiled)], cwd=directory, capture_output=True, text=True, check=False)
        return f"{canary['name']}: {run.stderr[:2000]}" if run.returncode != 0 else ""


def check_all(build, rows):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        faults = [fault for fault in pool.map(lambda canary: fault_of(build, canary), rows) if fault]
    print("\n".join(faults) or f"{len(rows)} defects can be put back and compile")
    return 1 if faults else 0


def build_with_defect(build, canary, target):
    """The library with the defect, at `target`; the checkout is as before afterwards."""
    path = REPO / canary["file"]
    if subprocess.run(["git", "-C", str(REPO), "diff", "--quiet", "--", canary["file"]], check=False).returncode != 0:
        raise RuntimeError(f"{canary['file']} has changes")
    text, defect = path.read_text(), with_defect(canary)
    try:
        path.write_text(defect)
        subprocess.run(["cmake", "--build", build, "--target", "nvshare"], check=True, stdout=subprocess.DEVNULL)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pathlib.Path(build) / "lib" / "libnvshare.so", target)
    finally:
        path.write_text(text)


def group_of(canary):
    """Canaries with the same sequences, which are made natively once for all of them."""
    return (canary.get("devices", 1), "first_turn" in canary["states"])


def options_of(args, canary, **values):
    devices, cold = group_of(canary)
    return checks.Options(processes=args.processes, states=canary["states"], devices=devices, count=SEQUENCES, examined=80, reserve=3,
                          crash_search=False, **(LONG if cold else {}), **values)


def natively(args, canary, config):
    """What the sequences of a canary's group answer natively, and the seconds that this took."""
    begin = time.monotonic()
    comparing = checks.Comparing(config, Result("canary", judge_times=False), options_of(args, canary, budget=args.budget))
    comparing.natively(args.budget * NATIVE_SHARE / 2)  # it takes twice the share
    return comparing.native, comparing.unstable, time.monotonic() - begin


def kinds_in_a_run(args, canary, config, native, unstable, seconds):
    """What a run of so many seconds shows to differ from what was natively answered, and how many sequences it compared."""
    result = Result("canary", judge_times=False)
    checks.compare_all(config, result, options_of(args, canary, budget=seconds, native=native, unstable=unstable))
    compared = sum(state["compared"] for name, state in result.figures["states"].items() if name in canary["states"])
    return {row["kind"][0].partition("(")[0] for row in result.figures["differences"]}, compared


class Asking:
    """Asks canary after canary; natives are made where a group is new."""

    def __init__(self, args):
        self.args, self.natives = args, {}

    def ask(self, canary, library):
        """A line of what came out, and whether the defect was found."""
        args, key = self.args, group_of(canary)
        config = Config(argparse.Namespace(**{**vars(args), "budget": 2 * args.budget}))
        config.library = library
        try:
            if key not in self.natives:
                self.natives[key] = natively(args, canary, config)
            native, unstable, spent = self.natives[key]
            begin = time.monotonic()
            kinds, compared = kinds_in_a_run(args, canary, config, native, unstable, args.budget - spent)
            seconds = time.monotonic() - begin
        finally:
            Process.end_all()
            shutil.rmtree(config.work, ignore_errors=True)
        found = any(fnmatch.fnmatchcase(kind, pattern) for kind in kinds for pattern in canary["symbols"])
        found = found and spent + seconds <= args.budget
        return (f"{'found' if found else 'NOT FOUND'}: {canary['name']}; {spent:.0f} s natively and {seconds:.0f} s with it, {compared} sequences "
                f"compared; differing: {', '.join(sorted(kinds))}"), found


def main():
    args = parse_arguments()
    rows = checks.tomllib.loads((pathlib.Path(__file__).resolve().parent / "canaries.toml").read_text())["canary"]
    if args.check:
        return check_all(args.build, rows)
    args.root = args.root or args.build
    folder = pathlib.Path(args.prebuilt or args.libraries or args.out).resolve()
    missed = 0
    asking = Asking(args)
    for number, canary in enumerate(rows):
        if args.only not in canary["name"]:
            continue
        library = folder / str(number) / "libnvshare.so"
        if not args.prebuilt:
            build_with_defect(args.build, canary, library)
        if args.libraries:
            print(f"{canary['name']}: {library}", flush=True)
            continue
        line, found = asking.ask(canary, library)
        missed += not found
        print(line, flush=True)
    if args.build:  # as it was
        subprocess.run(["cmake", "--build", args.build, "--target", "nvshare"], check=True, stdout=subprocess.DEVNULL)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
