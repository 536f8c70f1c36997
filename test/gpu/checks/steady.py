"""Check steady: what rotations of programs that do not fit together cost, once each has been loaded: the work that they get done in whole
rotations over what one alone gets done in the same time (`steady_share`), without and with memory that moves beside who runs (`prefetch`,
docs/adr/0023), and what that costs the running program: its speed within turns, with over without.

Three programs of 24.7 GiB on 40 GiB and, with --plan full, two of 38, in turns of 10 s. In small: 1/64 of the memory, turns of 2 s.
"""
import time

from checks.mission import Shape, steady, whole_rotations, work_for
from checks.quota import SECOND, Table, done_at
from harness import GIB, Scheduler, prewarm_host, wait_all

TURN_S = 10
GAP_NS = SECOND // 10  # without a mark for so long: not its turn


def speed_in_turns(marks, begin, end):
    """Work by second, of the time in which a program got work done."""
    work = spent = 0
    for each in marks:
        for (earlier, done), (later, more) in zip(each, each[1:]):
            if later - earlier <= GAP_NS and begin <= earlier and later <= end:
                work += more - done
                spent += later - earlier
    return work * SECOND / spent if spent else 0.0


def calibrate(program):
    """Rounds of a kernel of a millisecond."""
    return program.order("calibrate 1000", 90)["rounds"][0]


def rotate(config, shape, count, mib, told_mib, turn_s, prefetch, alone):
    """`alone`: work by second of one program alone; None: measured here, before the others come."""
    extra = {**shape.extra, "NVSHARE_PREFETCH": "on" if prefetch else "off"}
    with Scheduler(config, turn_s, told_mib, extra) as scheduler:
        first = steady(config, shape, f"first-{prefetch}", scheduler, "--bytes", f"{mib}M", "--touch-ms", 1)
        first.wait_event("ready", 90)
        # Each program learns how long its kernels take: one that does not know submits batches of another length, and does more work by second.
        rounds = calibrate(first)
        if alone is None:
            begin, end, marks = work_for([first], 3, rounds)
            alone = done_at(marks[0], end) * SECOND / (end - begin)
        others = [steady(config, shape, f"other{i}-{prefetch}", scheduler, "--bytes", f"{mib}M", "--touch-ms", 1) for i in range(1, count)]
        programs = [first, *others]
        for program in others:
            program.wait_event("ready", 90)
            calibrate(program)
        begin, end, marks = work_for(programs, (2 * count + 1.5) * (turn_s + 0.5), rounds)
        begin, end, rotations = whole_rotations(marks, begin, end, turn_s * SECOND // 2)
        time.sleep(0.3)
        usage = scheduler.gpu().get("usage", {})
        for program in programs:
            program.close_input()
        wait_all(programs, 60)
        done = [done_at(each, end) - done_at(each, begin) for each in marks]
        figures = {"rotations": rotations, "seconds": (end - begin) / SECOND, "alone_per_s": alone, "done": done,
                   "steady_share": sum(done) / (alone * (end - begin) / SECOND), "speed_in_turns": speed_in_turns(marks, begin, end),
                   "prefetched": usage.get("prefetched", 0), "prefetched_in_vain": usage.get("prefetched_in_vain", 0),
                   "swapped_in": usage.get("swapped_in", 0), "switches": scheduler.gpu().get("switches", 0)}
    return figures, alone


def steady_check(config, result):
    shape = Shape(config)
    table = Table(result)
    turn_s = 2 if shape.small else TURN_S
    if not shape.small:
        result.figure("prewarm_host", prewarm_host(config, 56 * GIB))
    cases = {"3 x 24.7 GiB on 40": (3, 24.7, 40, 0.98)}
    if config.plan == "full":
        cases["2 x 38 GiB on 40"] = (2, 38, 40, 0.95)
    for name, (count, gib, told, due) in cases.items():
        without, alone = rotate(config, shape, count, shape.mib(gib), shape.mib(told), turn_s, False, None)
        beside, _ = rotate(config, shape, count, shape.mib(gib), shape.mib(told), turn_s, True, alone)
        slowed = beside["speed_in_turns"] / without["speed_in_turns"] if without["speed_in_turns"] else 0.0
        result.figure(name, {"off": without, "on": beside, "speed_with_over_without": slowed})
        table.listed(f"{name}: share, prefetch off", 0, without["steady_share"])
        table.at_least(f"{name}: share, prefetch on", beside["steady_share"], 0 if shape.small else due, "of the same work alone")
        table.at_least(f"{name}: speed, on over off", slowed, 0 if shape.small else 0.99, "times")
        if count > 2:
            result.require(f"{name}: bytes that came in beside who ran", beside["prefetched"], ">=", 1)
    table.finish()
