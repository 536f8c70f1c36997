"""Check hand_over: for how long the GPU stands idle while one of two programs that fit together hands it to the other, and what both get
done together. In turns (`sharing = turns`), and under compute limits of 50 % each, with MPS and without.

From the scheduler's trace (bench/hand_over.py does it for any): between two releases of different clients the second one says for how long it used its
turn. Less than nothing is an overlap: the next one began before the last work of the one that left had ended. Under MPS it may, as the
one that leaves tells ahead when that will be (docs/adr/0021), and 45 us at the median are asked for there.
"""
import json
import shutil
import time

from checks.sharing import CONTROL, Way
from harness import Scheduler, median

# Name, settings, limits.
WAYS = (
    ("turns", {"NVSHARE_SHARING": "turns"}, None),
    ("limits", {}, (50, 50)),
    ("limits, MPS", {"NVSHARE_MPS": "on"}, (50, 50)),
)
KINDS = ("1ms", "20us")


def releases(trace):
    for line in trace.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # the end of what is being written
        if event.get("event") in ("LockReleased", "EndsSoon"):
            yield event


def gaps_us(events):
    """Of each turn that followed another client's: its length less its use."""
    gaps, last = [], None
    for event in events:
        if event["event"] != "LockReleased":
            continue
        if last and event["client"] != last["client"] and event.get("used"):
            gaps.append((event["now"] - last["now"] - event["used"]) / 1000)
        last = event
    return gaps


def quartiles(values):
    ordered = sorted(values)
    return {part: round(ordered[int((len(ordered) - 1) * portion)], 1)
            for part, portion in (("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99))} if ordered else {}


def hand_over(config, result):
    seconds, repetitions = (1, 1) if config.small else (4, 3)
    native = Way.calibrated(config, result, programs=1)
    solo = {kind: [native.work(1, 1024, kind, seconds)[0] for _ in range(repetitions)] for kind in KINDS}
    native.end()
    small = {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else {}
    found = {}
    for name, extra, limits in WAYS:
        if "MPS" in name and shutil.which(CONTROL, path=config.environment.get("PATH")) is None:
            continue
        with Scheduler(config, None, None, {"NVSHARE_MPS": "off", **small, **extra}) as scheduler:
            way = Way(config, name.replace(", ", "-"), scheduler).begin(native.rounds, native.round_ps, programs=2)
            trace = scheduler.runtime / "trace"
            for kind in KINDS:
                way.work(2, 1024, kind, seconds, limits)  # the scheduler has seen what they do
                known = len(list(releases(trace)))
                sums = [sum(way.work(2, 1024, kind, seconds)) / median(solo[kind]) for _ in range(repetitions)]
                time.sleep(0.2)
                events = list(releases(trace))[known:]
                gaps = gaps_us(events)
                found[f"{name}, {kind}"] = {"us": quartiles(gaps), "hand-overs": len(gaps), "told ahead": sum(
                    event["event"] == "EndsSoon" for event in events), "work over one alone": [round(one, 4) for one in sums]}
            way.end()
    result.figure("hand-overs", found)
    for name, of in found.items():
        result.require(f"{name}: hand-overs", of["hand-overs"], ">=", 5 if config.small else 50)
        if "MPS" in name:
            result.require_time(f"{name}: the GPU is idle for, at the median", of["us"].get("p50", 0), "<=", 45, "us")
