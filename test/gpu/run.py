#!/usr/bin/env python3
"""Runs the checks that need a GPU and prints what they measured beside what is required. README.md says what each one does.

  run.py                        all of them, within --budget seconds
  run.py --only probe,preload   some
  run.py --list                 their names
  run.py --split FILE --card h200   no checks: FILE, made by --bundle elsewhere, becomes bench/results/h200-CHECK.json, one a check
Results: one JSON file a check, summary.json and logs.tar.gz in --out (bench/results/latest); with --bundle all results in one file besides,
written anew after each check, so that a run that is cut off leaves what it had.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import sys

from checks import answers, calls, conformance, deaths, deaths_mps, hand_over, host, interactive, mission, programs, quota, servers, several_gpus, sharing, steady, swap, trace, training, trust_groups, unchanged
from harness import Config, Process, archive_logs, machine, run_check

# Name, function, about how many seconds on a real GPU. In the order in which a new machine should be asked.
CHECKS = {
    "probe": (calls.probe, 60),
    "torch_plan": (training.torch_plan, 30),
    "preload": (training.preload, 60),
    "proc_address": (calls.proc_address, 15),
    "answers": (answers.answers, 60),
    "conformance": (conformance.conformance, 300),  # as much as --budget leaves, 560 at most
    "swap_pair": (swap.swap_pair, 70),
    "run_command": (swap.run_command, 15),
    "launch_cost": (calls.launch_cost, 80),
    "alloc_cost": (calls.alloc_cost, 40),
    "swap_speed": (swap.swap_speed, 120),
    "unchanged": (unchanged.unchanged, 100),
    "servers": (servers.servers, 430),
    "swap_baselines": (swap.swap_baselines, 80),
    "programs": (programs.programs, 150),  # leaves stages out by itself
    "host_limits": (host.host_limits, 40),
    "host_budget": (host.host_budget, 40),
    "fork_cost": (host.fork_cost, 30),
    "ddp": (several_gpus.ddp, 230),  # all four --ddp-variants: 400
    "two_gpus": (several_gpus.two_gpus, 100),
    "nvml_gap": (training.nvml_gap, 45),
    "interactive": (interactive.interactive, 135),
    "deaths": (deaths.deaths, 120),
    "scheduler_away": (deaths.scheduler_away, 25),
    "deaths_mps": (deaths_mps.deaths_mps, 130),
    "trust_groups": (trust_groups.trust_groups, 115),
    "trace": (trace.trace, 110),
    "quota": (quota.quota, 360),  # --plan full: 1050, bursty: 180, drift among it; a plan leaves rows out rather than pass --budget
    "mission": (mission.mission, 60),  # leaves rows out by itself; all but torch: 480
    "steady": (steady.steady_check, 240),  # --plan full: 420
    "hand_over": (hand_over.hand_over, 130),
    "sharing": (sharing.sharing, 460),  # --rows auto: 370
    "co_run": (training.co_run, 260),
    "torch_train": (training.torch_train, 480),
}
OF_PLAN_S = {"bursty": 180}  # of quota; others leave rows out where --budget is short


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument("--list", action="store_true")
    repo = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--out", default=str(repo / "bench" / "results" / "latest"), help="folder for the results")
    parser.add_argument("--root", default="", help="where bin/, lib/ and test/ (or gpu/) are; default: dist, then build/release")
    parser.add_argument("--former", default="", help="co_run, torch_train: dist/ of another version, measured beside this one in the same run")
    parser.add_argument("--budget", type=float, default=3600, help="seconds in all; a check that would not fit is left out")
    parser.add_argument("--python", default=shutil.which("python3") or sys.executable, help="the interpreter that has PyTorch")
    parser.add_argument("--seconds", type=float, default=35, help="torch_train: how long a job trains when it is alone")
    parser.add_argument("--turn", type=float, default=8, help="torch_train: fixed switch time in seconds")
    parser.add_argument("--only-programs", default="", help="programs: names, separated by commas")
    parser.add_argument("--only-sequences", default="", help="answers: names, separated by commas")
    parser.add_argument("--stages", type=int, default=4, help="programs: groups of three that may run at the same time")
    parser.add_argument("--same", action="store_true", help="programs: three of the same at once instead of three different ones")
    parser.add_argument("--held", type=float, default=4.0, help="programs: GiB that each holds on the GPU")
    parser.add_argument("--ddp-variants", default="own_vmm,legacy_ipc_and_third", help="ddp: how NCCL shares memory; besides: graphs, graphs_legacy_ipc")
    parser.add_argument("--ddp-turn", type=float, default=2.0, help="ddp: fixed switch time in seconds")
    parser.add_argument("--count", type=int, default=60, help="deaths: how often something is killed or stopped")
    parser.add_argument("--seed", type=int, default=None, help="deaths: of the random moments; printed by each run")
    parser.add_argument("--death-seconds", type=float, default=120, help="deaths: no more is struck after this long")
    parser.add_argument("--serve-seconds", type=float, default=120, help="servers: for how long requests come")
    parser.add_argument("--skip-unchanged", default="on", help="servers: the setting's values, measured one after the other")
    parser.add_argument("--plan", choices=("auto", "short", "full", "bursty", "drift", "hour"), default="auto",
                        help="quota: short has every row but cycles, full every case, bursty the rows bursty and cycles; auto: full if there is time")
    parser.add_argument("--rows", default="", help=f"quota: rows of the table, separated by commas: {', '.join(quota.ROWS)}; mission: {', '.join(mission.ROWS)}")
    parser.add_argument("--mixes", default="", help="sharing --rows real: mixes, separated by semicolons; all ways then have as many windows")
    parser.add_argument("--ways", default="", help="sharing --rows real with --mixes: of together, turns, auto and control, separated by commas; "
                        "the driver alone is always measured, and once more by control; of fewer ways there are more windows")
    parser.add_argument("--mission-seconds", type=float, default=540, help="mission: how long the rows torch and visitors last")
    parser.add_argument("--launcher", choices=("preload", "nvsharectl"), default="preload", help="how programs are put under nvshare")
    parser.add_argument("--variants", default="told,full", help="torch_train: the size told to the scheduler, the GPU really full")
    parser.add_argument("--library-log", default="warning", help="NVSHARE_LOG_LEVEL of the programs; their output is in logs.tar.gz")
    parser.add_argument("--simgpu", default="", help="folder of the stand-in GPU's libraries")
    parser.add_argument("--bundle", default="", help="one more file, with all results")
    parser.add_argument("--split", default="", help="take a bundle apart instead of running checks")
    parser.add_argument("--card", default="h200", help="--split: how the results' names begin")
    parser.add_argument("--small", action="store_true", help="small sizes, for the stand-in GPU")
    return parser.parse_args()


def text_of(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 44 else text[:41] + "..."


def print_table(results):
    print()
    for result in results:
        note = result.skipped or result.error or ""
        print(f"{result.state:5} {result.name}  ({result.seconds:.0f} s)  {note[:300]}")
        for r in result.requirements:
            verdict = "ok  " if r["holds"] else "FAIL"
            print(f"      {verdict} {r['what']}: {text_of(r['measured'])} {r['relation']} {text_of(r['bound'])} {r['unit']}")
    states = [result.state for result in results]
    passed = states.count("PASS") + states.count("DONE")
    print(f"\n{passed} passed, {states.count('FAIL')} failed, {states.count('SKIP')} skipped", flush=True)


def summary_of(facts, results):
    return json.dumps({"machine": facts, "checks": [result.as_json() for result in results]}, indent=1) + "\n"


def write_whole(path, text):
    """A reader, or a copy made when this run is cut off, sees the old text or the new."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(text)
    draft.replace(path)


def split_bundle(path, card, folder):
    """One file a check, named as bench/results/ names them; the machine goes into each. Returns the names."""
    bundle = json.loads(pathlib.Path(path).read_text())
    names = []
    for check in bundle["checks"]:
        names.append(f"{card}-{check['check'].replace('_', '-')}.json")
        (folder / names[-1]).write_text(json.dumps({**check, "machine": bundle["machine"]}, indent=1) + "\n")
    return names


def main():
    args = parse_arguments()
    if args.list:
        print("\n".join(f"{name:16}{seconds:4} s" for name, (_, seconds) in CHECKS.items()))
        return 0
    if args.split:
        folder = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "results"
        print("\n".join(split_bundle(args.split, args.card, folder)))
        return 0
    names = [name for name in args.only.split(",") if name] or list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check {', '.join(unknown)}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    config = Config(args)
    facts = machine(config)
    print(json.dumps(facts), flush=True)
    results = []

    def finish():
        Process.end_all()
        archive_logs(config)
        for path in [config.out / "summary.json"] + ([pathlib.Path(args.bundle)] if args.bundle else []):
            write_whole(path, summary_of(facts, results))
        shutil.rmtree(config.work, ignore_errors=True)

    def interrupted(number, _):
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, interrupted)
    try:
        for name in names:
            function, seconds = CHECKS[name]
            if name == "quota" and args.plan in OF_PLAN_S:
                seconds = OF_PLAN_S[args.plan]
            if config.left() < (10 if args.small else seconds):
                print(f"----- {name}: left out, {config.left():.0f} s left and it takes about {seconds}", flush=True)
                continue
            print(f"----- {name}", flush=True)
            results.append(run_check(config, name, function))
            if args.bundle:
                write_whole(pathlib.Path(args.bundle), summary_of(facts, results))
            print(f"      {results[-1].state} in {results[-1].seconds:.0f} s  {results[-1].error or results[-1].skipped or ''}", flush=True)
    finally:
        finish()
        print_table(results)
    return 0 if results and all(result.state != "FAIL" for result in results) and len(results) == len(names) else 1


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
