#!/usr/bin/env python3
"""Long runs of the fuzz targets and of hostile sessions, one after the other, added up over several sittings.

  test/fuzz/volumes.py --seconds 900 handshake persisted      targets of build/fuzz (cmake --preset fuzz), one after the other
  test/fuzz/volumes.py --messages 1000000 session             sessions of hostile clients; --build asan for those under sanitizers
  test/fuzz/volumes.py --sum                                  what all runs so far come to

Each run is an entry of bench/results/fuzz.json: commit, target, build, seconds, executions or messages, findings, the load of the machine.
A finding stays in build/fuzz/findings, or prints its seed; it ends the sitting with status 1."""
import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/fuzz.json"


def runs_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []


def add(path, run):
    runs = runs_of(path) + [run]
    lines = ",\n".join("  " + json.dumps(each) for each in runs)
    path.write_text('{"runs": [\n' + lines + "\n]}\n", encoding="utf-8")


def commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def executions_in(text):
    """Of libFuzzer's final statistics, or of the last line that counts them where it was ended."""
    found = re.findall(r"number_of_executed_units: (\d+)", text) or re.findall(r"^#(\d+)\s", text, re.M)
    return int(found[-1]) if found else 0


def fuzz(target, seconds):
    name = f"{target}_fuzz"
    corpora = [ROOT / "build/fuzz/corpus" / name, ROOT / "test/fuzz/corpus" / name]
    corpora[0].mkdir(parents=True, exist_ok=True)
    (ROOT / "build/fuzz/findings").mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [ROOT / "build/fuzz/bin" / name, f"-max_total_time={seconds}", "-print_final_stats=1",
         f"-artifact_prefix={ROOT}/build/fuzz/findings/{name}-", *(str(each) for each in corpora if each.is_dir())],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return run.returncode, {"target": name, "build": "fuzz", "executions": executions_in(run.stdout)}, run.stdout


def session(build, messages, seed):
    environment = os.environ | {"NVSHARE_FUZZ_MESSAGES": str(messages), "NVSHARE_TEST_SEED": str(seed)}
    run = subprocess.run([ROOT / "build" / build / "bin/session_fuzz_test"], env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return run.returncode, {"target": "session_fuzz_test", "build": build, "messages": messages, "seed": seed}, run.stdout


def one(action):
    at = commit()
    began = time.monotonic()
    status, run, text = action()
    run = {"commit": at} | run | {"seconds": round(time.monotonic() - began, 1), "findings": int(status != 0),
                                  "load_average": round(os.getloadavg()[1], 1)}
    if status != 0:
        sys.stderr.write(text[-4000:])
    return run


def sums(runs):
    totals = {}
    for run in runs:
        total = totals.setdefault(f"{run['target']} ({run['build']})", {"runs": 0, "seconds": 0.0, "count": 0, "findings": 0})
        total["runs"] += 1
        total["seconds"] += run["seconds"]
        total["count"] += run.get("executions", 0) + run.get("messages", 0) * (run["findings"] == 0)
        total["findings"] += run["findings"]
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="handshake, codec and so on, or session")
    parser.add_argument("--seconds", type=int, default=900, help="for each target of libFuzzer")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of a session")
    parser.add_argument("--build", default="release", help="whose session_fuzz_test: release or asan")
    parser.add_argument("--seed", type=int, help="of the session (an even one: with NVML)")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--sum", action="store_true")
    arguments = parser.parse_args()
    for target in arguments.targets:
        seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
        run = one((lambda: session(arguments.build, arguments.messages, seed)) if target == "session" else
                  (lambda name=target: fuzz(name, arguments.seconds)))
        add(arguments.results, run)
        print(json.dumps(run), flush=True)
        if run["findings"]:
            sys.exit(1)
    if arguments.sum:
        for name, total in sorted(sums(runs_of(arguments.results)).items()):
            print(f"{name}: {total['runs']} runs, {total['seconds']:.0f} s, {total['count']:,} executions or messages, "
                  f"{total['findings']} findings")


if __name__ == "__main__":
    main()
