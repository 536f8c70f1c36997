#!/usr/bin/env python3
"""How long a GPU stands idle while one program hands it to the next, under compute limits that leave no other gap.

  bench/hand_over.py                       two busy programs at 50 % each on the stand-in GPU, from build/release
  bench/hand_over.py --against BUILD ...   the same with another build tree, alternating: before and after in one run
  bench/hand_over.py --trace FILE          from a scheduler's trace, of any GPU (`nvshare-scheduler --trace`)

From the trace alone: between two releases by different clients the second says for how long it used its turn, so what else passed was the
hand-over; less than nothing is an overlap (docs/adr/0021). One figure a turn; the median and the quartiles are shown. The stand-in runs
kernels on processors: leave some free.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test/gpu"))
from checks.hand_over import gaps_us, releases  # noqa: E402
KERNEL_US = 1000


def run(build, seconds):
    with tempfile.TemporaryDirectory(prefix="nvs-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        folder = pathlib.Path(folder)
        environment = {
            "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(build / "simgpu"), "NVSHARE_RUNTIME_DIR": str(folder / "run"),
            "NVSHARE_LOCK_DIR": str(folder / "lock"), "SIMGPU_STATE": str(folder / "gpu"), "SIMGPU_MEMORY_MB": "256",
            "SIMGPU_CONTEXT_MB": "4", "NVSHARE_MEMORY_RESERVE_PERCENT": "20", "NVSHARE_TRACE": str(folder / "trace"),
        }
        (folder / "run").mkdir()
        log = (folder / "log").open("w")

        def start(*command, **more):
            return subprocess.Popen([str(word) for word in command], env={**environment, **more}, stdout=log, stderr=log)

        scheduler = start(build / "bin/nvshare-scheduler")
        for _ in range(500):
            if list((folder / "run").rglob("*.sock")):
                break
            time.sleep(0.01)
        control, worker = build / "bin/nvsharectl", build / "bin/e2e_worker"
        programs = [start(control, "run", "--gpu-core-limit", "50", "--name", name, "--", worker, "steady", "--work", KERNEL_US,
                          "--stop", folder / "stop") for name in ("one", "two")]
        time.sleep(seconds)
        if any(program.poll() is not None for program in [scheduler, *programs]):
            sys.exit(f"something ended early:\n{(folder / 'log').read_text()}")
        (folder / "stop").touch()
        for program in programs:
            program.wait(20)
        scheduler.terminate()
        scheduler.wait(20)
        return gaps_us(releases(folder / "trace"))


def show(name, gaps):
    if len(gaps) < 4:
        print(f"{name}: only {len(gaps)} hand-overs")
        return
    low, middle, high = statistics.quantiles(gaps, n=4)
    print(f"{name}: {len(gaps)} hand-overs, idle for {middle:.0f} us in the middle, half of them {low:.0f} to {high:.0f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--against", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--trace", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.trace:
        return show(str(options.trace), gaps_us(releases(options.trace)))
    builds = [*options.against, options.build]
    gaps = {build: [] for build in builds}
    for _ in range(options.rounds):
        for build in builds:
            gaps[build] += run(build.resolve(), options.seconds)
    for build in builds:
        show(str(build), gaps[build])


if __name__ == "__main__":
    main()
