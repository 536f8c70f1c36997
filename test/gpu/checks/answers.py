"""The check `answers`: sequences of driver calls answer under nvshare what they answer without it (test/gpu/answers), line by line."""
import difflib

from harness import Process, Scheduler

PATIENCE_S = 90

# State -> what the sequence is started with, and whether a scheduler is there. `swapped`: see swapped_out.
STATES = {"cold": (["--cold"], True), "plain": ([], True), "warm": (["--warm"], True), "unshared": ([], False)}


def lines_of(process):
    return [line[2:] for line in process.lines if line.startswith("> ")]


def sequences_of(config):
    """The names of those that are asked for: all, or --only-sequences."""
    listed = Process(config, "answers-list", [config.program("answers"), "--list"])
    listed.expect_success(30)
    names = [line.split()[0] for line in listed.lines if line.split()[1] != "0"]
    wanted = [name for name in config.only_sequences.split(",") if name]
    if unknown := sorted(set(wanted) - set(names)):
        raise ValueError(f"no sequence {', '.join(unknown)}; there are: {', '.join(names)}")
    return wanted or names


def run_all(config, state, names, arguments, environment):
    """The lines of each sequence; all run at the same time, each in a process of its own."""
    running = {name: Process(config, f"{state}-{name}", [config.program("answers"), name, *arguments], environment) for name in names}
    answers = {}
    for name, process in running.items():
        status = process.wait(PATIENCE_S)
        answers[name] = lines_of(process) + ([] if status == 0 else [f"ended with {status}"])
    return answers


def differences(native, shared):
    return [line for line in difflib.unified_diff(native, shared, "native", "nvshare", n=0, lineterm="") if not line.startswith(("---", "+++", "@@"))]


def answers(config, result):
    names = sequences_of(config)
    natives = {}
    shared = {}
    for state, (arguments, with_scheduler) in STATES.items():
        key = " ".join(arguments)
        if key not in natives:
            natives[key] = run_all(config, "native", names, arguments, config.environment)
        if with_scheduler:
            with Scheduler(config, extra={"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else None) as scheduler:
                shared[state] = run_all(config, state, names, arguments, scheduler.program_environment())
        else:
            alone = dict(config.environment, LD_PRELOAD=str(config.library), NVSHARE_RUNTIME_DIR=str(config.work / "nobody"))
            shared[state] = run_all(config, state, names, arguments, alone)
    too_few = [name for name in names if natives[""][name] == ["ended with 2"]]
    result.figure("native", {key or "plain": lines for key, lines in natives.items()})
    result.figure("left_out_for_want_of_gpus", too_few)
    for state, (arguments, _) in STATES.items():
        different = {name: differences(natives[" ".join(arguments)][name], shared[state][name]) for name in names if name not in too_few}
        different = {name: lines for name, lines in different.items() if lines}
        result.figure(f"different_{state}", different)
        result.require(f"sequences that differ, {state}", sorted(different), "==", [])
    ended = sorted(name for name in names if name not in too_few and natives[""][name][-1:] != [f"end of {name}"])
    result.require("sequences that do not end natively", ended, "==", [])
    result.require("sequences that ran", len(names) - len(too_few), ">=", 1)
    result.figure("lines", sum(len(lines) for lines in natives[""].values()))
