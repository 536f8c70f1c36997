#!/usr/bin/env python3
"""The same calls natively and under nvshare (README.md). Prints the differences and writes conformance.json into --out.

  run.py --budget 580 --out DIR                 all states, on a real GPU
  run.py --states alone,switching --seed 7
  run.py --record FILE --sequences 2000         what the driver answers, for test/simgpu/recorded
"""
import argparse
import pathlib
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import recording  # noqa: E402
from c_program import c_program  # noqa: E402
from checks import conformance as checks  # noqa: E402
from harness import Config, Process, Result, archive_logs  # noqa: E402


def parse_arguments():
    repo = pathlib.Path(__file__).resolve().parent.parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=560, help="seconds in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--states", default=",".join(checks.STATES), help=f"of {', '.join(checks.STATES)}")
    parser.add_argument("--calls", type=int, default=100, help="calls of a sequence, about")
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--count", type=int, default=40000, help="at most so many sequences")
    parser.add_argument("--devices", type=int, default=1, help="GPUs that the calls use, 1 or 2")
    parser.add_argument("--processes", type=int, default=8, help="at once")
    parser.add_argument("--examined", type=int, default=160, help="differing sequences of each state that are looked at line by line")
    parser.add_argument("--patience", type=int, default=30, help="a call that takes longer hangs, seconds")
    parser.add_argument("--without", default="", help="entry points that are not called, separated by commas")
    parser.add_argument("--tame", default="", help="entry points that get right arguments only")
    parser.add_argument("--record", default="", help="write what the driver answers into this file (.gz), and compare nothing")
    parser.add_argument("--sequences", type=int, default=2000, help="--record: how many")
    parser.add_argument("--root", default="", help="where bin/, lib/ and test/ (or gpu/) are; default: dist, then build/release")
    parser.add_argument("--simgpu", default="", help="folder of the stand-in GPU's libraries")
    parser.add_argument("--small", action="store_true", help="small sizes, for the stand-in GPU")
    parser.add_argument("--out", default=str(repo / "bench" / "results" / "latest"))
    parser.add_argument("--library-log", default="warning")
    parser.set_defaults(python=sys.executable, variants="", seconds=0, turn=1, launcher="preload")
    return parser.parse_args()


def print_result(result, out):
    figures = result.figures
    for name, row in figures.get("states", {}).items():
        print(f"{name}: {row}"[:600])
    covered = figures.get("coverage", {})
    print("coverage: " + ", ".join(f"{key} {value}" for key, value in covered.items() if isinstance(value, int)))
    for key in ("left_out", "explained", "not_seen_again"):
        print(f"{key}: {figures.get(key)}")
    for title, rows in (("DIFFERENCE", figures.get("differences", [])), ("not the same natively", figures.get("racy_natively", []))):
        for row in rows:
            print(f"\n{title} {row['kind'][0]} in {row.get('state', 'native')}, {row['count']} times, first in sequence {row['sequence']}: {row['native']!r} natively, "
                  f"{row['nvshare']!r} otherwise")
            for line in row.get("shrunk", []):
                print(f"    {line}")
            if row.get("shrunk"):
                name = f"{row['kind'][0].partition('(')[0]}-{sum(1 for _ in out.glob('*.c'))}.c"
                (out / name).write_text(c_program(row["shrunk"]))
                print(f"    as a C program: {name}")


def main():
    args = parse_arguments()
    config = Config(args)
    options = checks.Options(seed=args.seed, calls=args.calls, devices=args.devices, first=args.first, count=args.count,
                             processes=args.processes, patience=args.patience, states=[s for s in args.states.split(",") if s],
                             tame=[s for s in args.tame.split(",") if s], without=[s for s in args.without.split(",") if s], examined=args.examined, budget=args.budget)
    unknown = [s for s in options.states if s not in checks.STATES]
    if unknown:
        print(f"no state {', '.join(unknown)}; there are: {', '.join(checks.STATES)}", file=sys.stderr)
        return 2
    result = Result("conformance", judge_times=False)
    begin = time.monotonic()
    try:
        if args.record:
            instrument = checks.Instrument(config, options)
            if not config.small:
                result.figure("left_out", checks.find_crashing(instrument, 15))
            recording.record(instrument, args.record, args.sequences)
            print(f"recorded {args.sequences} sequences in {args.record}, without {instrument.without}, tame {instrument.tame}")
        else:
            checks.compare_all(config, result, options)
    finally:
        Process.end_all()
        result.seconds = time.monotonic() - begin
        (config.out / "conformance.json").write_text(checks.summary(result) + "\n")
        archive_logs(config, 64 << 10)
        shutil.rmtree(config.work, ignore_errors=True)
    if args.record:
        return 0
    print_result(result, config.out)
    for requirement in result.requirements:
        print(f"{'ok  ' if requirement['holds'] else 'FAIL'} {requirement['what']}: {requirement['measured']} {requirement['relation']} {requirement['bound']}")
    return 0 if result.state == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
