#!/usr/bin/env python3
"""Makes the calls of test/simgpu/recorded on the stand-in GPU and compares what comes back with what a real driver answered.

  replay.py --simgpu build/release/simgpu --root build/release            every recording; "skipped" where there is none
  replay.py --self-test ...       records the stand-in itself: the same must come back, and must not where copies fail
"""
import argparse
import os
import pathlib
import random
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import recording  # noqa: E402
from checks import conformance as checks  # noqa: E402
from harness import Config, Process  # noqa: E402

RECORDED = pathlib.Path(__file__).resolve().parent.parent.parent / "simgpu" / "recorded"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="where bin/, lib/ and gpu/ are")
    parser.add_argument("--simgpu", required=True, help="folder of the stand-in GPU's libraries")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--sequences", type=int, default=40,
                        help="--self-test: how many; else at most so many of each recording (0: all, or the share that NVSHARE_E2E_SCALE says)")
    parser.add_argument("--recording", default="", help="this file instead of those in the tree")
    parser.add_argument("--show", type=int, default=25, help="kinds of differences to print")
    parser.add_argument("--out", default="/tmp/nvshare-replay")
    parser.set_defaults(small=True, python=sys.executable, variants="", seconds=0, library_log="warning", turn=1, launcher="preload", budget=600)
    return parser.parse_args()


def replay(config, sequences, rows=()):
    instrument = checks.Instrument(config, checks.Options(processes=1))
    return recording.Replay(instrument, sequences, rows).run()


def report(name, run, show):
    print(f"{name}: {len(run.sequences)} sequences ({run.left_out} others need what was before them), {run.compared} calls compared, {len(run.differences)} differences, known: {dict(run.known)}, "
          f"{run.parted} sequences ended early")
    if run.lacking:
        print(f"  the stand-in lacks: {', '.join(sorted(run.lacking))}")
    for count, example in run.kinds()[:show]:
        print(f"  {count} x {example['call']}\n      recorded {example['recorded']!r}, answered {example['answered']!r} (sequence {example['sequence']})")


def self_test(config, sequences):
    instrument = checks.Instrument(config, checks.Options(processes=1))
    path = config.work / "self.txt.gz"
    recording.record(instrument, path, sequences)
    recorded = recording.read(path)
    same = replay(config, recorded)
    report("the stand-in itself", same, 5)
    config.environment["SIMGPU_FAULTS"] = "copy_fail:0.2"
    broken = replay(config, recorded)
    report("the stand-in, some copies of which fail", broken, 2)
    return 0 if len(recorded) == sequences and not same.differences and not same.lacking and broken.differences else 1


def known_differences():
    path = RECORDED / "differences.toml"
    return checks.tomllib.loads(path.read_text()).get("difference", []) if path.exists() and checks.tomllib else []


def share_of(sequences):
    """Each one in so many, from a random one on, where NVSHARE_E2E_SCALE is below 1."""
    step = max(1, round(1 / float(os.environ.get("NVSHARE_E2E_SCALE") or 1)))
    first = int(os.environ.get("NVSHARE_TEST_SEED") or str(random.randrange(1 << 32)), 0) if step > 1 else 0
    if step > 1:
        print(f"NVSHARE_TEST_SEED={first}: each {step}th sequence")
    return sequences[first % step::step]


def replay_all(config, args):
    files = [pathlib.Path(args.recording)] if args.recording else sorted(RECORDED.glob("*.txt.gz"))
    if not files:
        print("skipped: no recording in test/simgpu/recorded yet (its README says how one is made)")
        return 77
    failed = 0
    for path in files:
        sequences = recording.read(path)
        run = replay(config, sequences[:args.sequences] if args.sequences else share_of(sequences), known_differences())
        report(path.name, run, args.show)
        failed += len(run.differences)
    return 1 if failed else 0


def main():
    args = parse_arguments()
    config = Config(args)
    try:
        return self_test(config, args.sequences) if args.self_test else replay_all(config, args)
    finally:
        Process.end_all()
        shutil.rmtree(config.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
