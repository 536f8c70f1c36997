"""Twenty mixes of up to four programs for the check `sharing`, row `auto20`: what `sharing = auto` gets done over each fixed way, one after the
other in the same three schedulers, and how long requests of an interactive program take.

A program is (thread blocks of its kernels, kind of work): kernels of 1 ms or 20 us without end, or `burst W P`: W microseconds of work, then P of
nothing. What counts is the sum of each program's work over its own alone and natively. About five minutes on a GPU.
"""
import time

from checks.quota import SECOND, done_at
from harness import parallel

SATURATES, SHORT, SMALL = (1024, "1ms"), (1024, "20us"), (16, "1ms")
BURSTY, OFTEN, INTERACTIVE = (1024, "burst 3000 7000"), (1024, "burst 4000 4000"), (1024, "burst 5000 200000")
MIXES = {  # three that burst come first: after another mix of the same three they would be measured anew a minute later only
    "3 often": [OFTEN] * 3, "2 saturate": [SATURATES] * 2, "3 saturate": [SATURATES] * 3, "4 saturate": [SATURATES] * 4, "2 short": [SHORT] * 2, "4 short": [SHORT] * 4,
    "saturates, short": [SATURATES, SHORT], "2 small": [SMALL] * 2, "4 small": [SMALL] * 4, "saturates, small": [SATURATES, SMALL],
    "saturates, 3 small": [SATURATES, SMALL, SMALL, SMALL], "2 bursty": [BURSTY] * 2, "3 bursty": [BURSTY] * 3,
    "saturates, bursty": [SATURATES, BURSTY], "short, 2 bursty": [SHORT, BURSTY, BURSTY], "small, 2 bursty": [SMALL, BURSTY, BURSTY],
    "saturates, interactive": [SATURATES, INTERACTIVE], "2 saturate, interactive": [SATURATES, SATURATES, INTERACTIVE],
    "3 small, interactive": [SMALL, SMALL, SMALL, INTERACTIVE], "short, bursty, interactive": [SHORT, BURSTY, INTERACTIVE],
}
CHOOSES_S = 3


def slowest(marks, begin, pause_ms):
    """p99 in ms of how long bursts took, of the times between their ends; None: too few."""
    ends = [t for t, _ in marks if t >= begin]
    took = sorted((b - a) / 1e6 - pause_ms for a, b in zip(ends, ends[1:]))
    return round(took[len(took) * 99 // 100], 2) if len(took) >= 5 else None


def play(way, programs, seconds):
    """Each program's work per ns, and how long interactive ones' requests took."""
    chosen = way.processes[:len(programs)]
    parallel([lambda process=process, blocks=blocks: process.order(f"blocks {blocks}", 30) for process, (blocks, _) in zip(chosen, programs)])
    begin = time.monotonic_ns() + SECOND // 5
    end = begin + int(seconds * SECOND)

    def order(kind, at):
        if kind.startswith("burst"):
            return f"burst {at} {end} {way.rounds['20us']} {kind.split(' ', 1)[1]}"
        return f"run {at} {end} {way.rounds[kind]}"

    # 2.5 ms apart, so that bursts do not begin together.
    answers = parallel([lambda process=process, kind=kind, at=begin + index * 2_500_000: process.order(order(kind, at), seconds + 60)
                        for index, (process, (_, kind)) in enumerate(zip(chosen, programs))])
    settled = begin + (end - begin) // 10
    rates = [(done_at(answer["marks"], end) - done_at(answer["marks"], settled)) / (end - settled) for answer in answers]
    late = [slowest(answer["marks"], settled, int(kind.split()[2]) / 1000) for answer, (_, kind) in zip(answers, programs) if kind.endswith("200000")]
    return rates, late[0] if late else None


def measure(config, ways, native):
    """mix -> way -> sum and p99; `ways`: name -> Way under a scheduler of that setting."""
    seconds = 1 if config.small else 2
    mixes = dict(list(MIXES.items())[1:4] + list(MIXES.items())[-2:-1]) if config.small else MIXES
    solo = {program: play(native, [program], seconds)[0][0] for program in dict.fromkeys(sum(mixes.values(), []))}
    found = {}
    for name, programs in mixes.items():
        found[name] = {}
        for way_name, way in ways.items():
            if way_name == "auto":
                play(way, programs, CHOOSES_S)
            rates, late = play(way, programs, 3 * seconds if INTERACTIVE in programs else seconds)  # five requests a second
            total = sum(rate / solo[program] if solo[program] else 0 for rate, program in zip(rates, programs))
            found[name][way_name] = {"sum": round(total, 3), "p99_ms": late}
        print(f"      {name:28} " + "  ".join(f"{way} {one['sum']:.3f} {one['p99_ms'] or ''}" for way, one in found[name].items()))
    return found


def judge(result, found):
    """The best fixed way gets at most 2 % more done, none does less than 0.99 of together, and requests take no longer."""
    for name, ways in found.items():
        best = max(ways[way]["sum"] for way in ("together", "turns"))
        result.require_time(f"{name}: auto over the best fixed way", round(ways["auto"]["sum"] / best, 3) if best else 0, ">=", 0.98)
        result.require_time(f"{name}: auto over together", round(ways["auto"]["sum"] / max(ways["together"]["sum"], 1e-9), 3), ">=", 0.99)
        late, bound = ways["auto"]["p99_ms"], ways["together"]["p99_ms"]
        if late is not None and bound is not None:
            result.require_time(f"{name}: p99 of requests", late, "<=", round(1.05 * bound, 2), "ms")
