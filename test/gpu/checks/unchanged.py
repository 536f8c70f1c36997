"""Check unchanged: two servers of which one fits, in turn. With `skip_unchanged` those that only read their memory leave without a copy;
those that change all of it lose nothing measurable. Each with the setting off and on, in one run."""
import re

from harness import MIB, Process, Scheduler, median, prewarm_host

MOVED_OUT = re.compile(r"moved out (\d+) MiB \((\d+) unchanged\) in (\d+) ms")


class Shape:
    """Sizes in MiB."""

    def __init__(self, config):
        small = config.small
        self.held, self.block, self.told = (96, 16, 160) if small else (24 * 1024, 256, 24 * 1024 + 2412)
        self.rounds = 5 if small else 6  # in each, both have one request
        self.busy_ms = 2 if small else 20
        self.extra = {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if small else {}


def start(config, name, scheduler, shape, seed):
    argv = [config.program("served"), "--bytes", f"{shape.held}M", "--block", f"{shape.block}M", "--seed", seed]
    environment = scheduler.program_environment(NVSHARE_LOG_LEVEL="debug") if scheduler else None
    process = Process(config, name, argv, environment)
    process.wait_event("ready", 90)
    return process


def alone(config, shape, kind, seed):
    process = start(config, f"{kind}-alone-{seed}", None, shape, seed)
    for _ in range(shape.rounds):
        process.order(f"{kind} 1 {shape.busy_ms} 0", 60)
    took = process.order("read 1 0 0", 60)["took_ms"][0]
    checksum = process.order("sum", 60)["checksum"]
    process.close_input()
    process.expect_success(30)
    return took, checksum


def in_turn(config, shape, kind, setting):
    """What the two took for their requests, what left the GPU and how fast, and their checksums."""
    extra = dict(shape.extra, NVSHARE_SKIP_UNCHANGED=setting)
    with Scheduler(config, None, shape.told, extra) as scheduler:
        pair = [start(config, f"{kind}-{setting}-{seed}", scheduler, shape, seed) for seed in (1, 2)]
        took = []
        for _ in range(shape.rounds):
            took += [process.order(f"{kind} 1 {shape.busy_ms} 0", 90)["took_ms"][0] for process in pair]
        usage = scheduler.ask({"request": "status"})["gpus"][0]["usage"]
        sums = [process.order("sum", 90)["checksum"] for process in pair]
        for process in pair:
            process.close_input()
        for process in pair:
            process.expect_success(60)
        lines = [line for process in pair for line in process.log_path.read_text(errors="replace").splitlines()]
    leaves = [tuple(int(number) for number in found.groups()) for found in map(MOVED_OUT.search, lines) if found]
    # The first of each has no pinned memory yet, and no copy that could be true.
    steady = [leave for leave in leaves if leave[0] >= shape.held / 2]
    without_copy = [ms for moved, same, ms in steady if same >= 0.9 * moved]
    return {
        "took_ms": took,
        "later_took_ms": median(took[4:]),
        "leaves_mib_same_ms": leaves,
        "left_without_copy_ms": median(without_copy) if without_copy else None,
        "left_ms": median([ms for _, _, ms in steady]) if steady else None,
        "bytes_out": usage["swapped_out"],
        "bytes_not_moved": usage["unmoved"],
        "said": [line for line in lines if "unchanged" in line and not MOVED_OUT.search(line)][:8],
        "sums": sums,
    }


def unchanged(config, result):
    shape = Shape(config)
    result.figure("held_mib", shape.held)
    result.figure("told_mib", shape.told)
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, (2 * shape.held + 4096) * MIB))
    for kind, what in (("read", "only read"), ("serve", "all changed")):
        due = [alone(config, shape, kind, seed) for seed in (1, 2)]
        found = {setting: in_turn(config, shape, kind, setting) for setting in ("off", "on")}
        result.figure(kind, found)
        for setting, figures in found.items():
            result.require(f"{what}, {setting}: checksums as alone", figures["sums"], "==", [checksum for _, checksum in due])
        off, on = found["off"], found["on"]
        result.require(f"{what}, off: bytes not moved", off["bytes_not_moved"], "==", 0)
        if kind == "read":
            # Each leaves with a copy once, with the setting on.
            once = 2 * shape.held * MIB * 1.1
            result.require("only read, on: bytes out after the first time, over those off", max(0, on["bytes_out"] - once)
                           / max(1, off["bytes_out"] - once), "<=", 0.1)
            result.require("only read, on: left without a copy", on["left_without_copy_ms"] is not None, "==", True)
            if not config.small:
                result.require_time("only read, on: time to leave", on["left_without_copy_ms"], "<=", 39, "ms")
        elif not config.small:
            result.require_time("all changed: request on over off", on["later_took_ms"] / off["later_took_ms"], "<=", 1.03)
