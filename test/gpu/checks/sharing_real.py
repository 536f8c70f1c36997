"""Real loads for the check `sharing`, row `real`: PyTorch training and small inference servers (programs/torch_loads.py) by the driver alone, under
nvshare together, in turns, and with `sharing = auto`, one mix after the other in the same schedulers.

What counts: the sum of the trainers' steps over each one's alone and natively, and how long requests take, of which all of a mix count as one
list. The driver alone and `auto`, which are compared, have as many windows as rounds, in turn, and the same arrivals in each; the fixed ways
have the first round only, unless --mixes names mixes: then all ways have twice as many rounds of those, or with `--ways auto` the driver alone
and `auto` three times as many; `--ways auto,control` measures the driver alone in two sets of programs. About seven minutes on a GPU, of which one is the programs' start; six for one mix, five with `--ways auto`.
"""
import random
import statistics
import time

from checks.quota import SECOND
from harness import Process, parallel

MIXES = {
    "2 trainers": ["train", "train"],
    "trainer, small": ["train", "small"],
    "4 servers": ["serve"] * 4,
    "trainer, 2 servers": ["train", "serve", "serve"],
    "2 trainers, 2 servers": ["train", "train", "serve", "serve"],
}
ASKED_FOR = ("2 trainers, 2 servers",)  # by --mixes only: two that take turns, and servers that wait for neither
PROGRAMS = ["train", "train", "small", "serve", "serve", "serve", "serve"]
RATE = 4  # requests a second of each server
CHOOSES_S = 4  # what `auto` has for its choice before its first window, half of that before the others
ROUNDS = 4


class Loads:
    """Seven programs of one way: natively, or under `nvsharectl run`."""

    def __init__(self, config, name, scheduler=None):
        self.programs = []
        for index, kind in enumerate(PROGRAMS):
            argv = [config.python, str(config.repo / "test" / "gpu" / "programs" / "torch_loads.py"), kind]
            environment = None
            if scheduler:
                environment = scheduler.program_environment()
                environment.pop("LD_PRELOAD", None)
                argv = [config.nvsharectl, "run", "--name", f"{name}-{index}", "--", *argv]
            self.programs.append((kind, Process(config, f"{name}-{index}", argv, environment)))

    def wait(self):
        for _, process in self.programs:
            process.wait_event("ready", 240)

    def work(self, kinds, seconds, number=0):
        left = list(self.programs)
        chosen = []
        for kind in kinds:
            at = next(index for index, (each, _) in enumerate(left) if each == kind)
            chosen.append(left.pop(at)[1])
        begin = time.monotonic_ns() + SECOND // 5
        end = begin + int(seconds * SECOND)
        return parallel([lambda process=process, seed=seed: process.order(f"work {begin} {end} {RATE} {1000 * number + seed}", seconds + 60)
                         for seed, process in enumerate(chosen)])

    def end(self):
        for _, process in self.programs:
            process.close_input()
        for _, process in self.programs:
            process.expect_success(60)


def rate_of(answer):
    return answer["done"] / answer["seconds"] if answer["seconds"] > 0 else 0


def joined(answers):
    """One program's windows as one."""
    return {"done": sum(answer["done"] for answer in answers), "seconds": sum(answer["seconds"] for answer in answers),
            "took_ms": [ms for answer in answers for ms in answer["took_ms"]]}


def rates_of(kinds, answers, solo):
    return [rate_of(answer) / solo[kind] for kind, answer in zip(kinds, answers) if kind != "serve"]


def summary(kinds, answers, solo):
    took = sorted(ms for answer in answers for ms in answer["took_ms"])
    rates = rates_of(kinds, answers, solo)
    at = lambda part: took[min(len(took) - 1, int(len(took) * part))]
    return {"trainers": [round(rate, 3) for rate in rates], "requests": len(took),
            **({"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99)} if took else {})}


def beside_native(windows, native):
    """Of the same request, how much longer it took: the arrivals are the same, so that a queue before one tells less than in percentiles."""
    longer = [ms - of_native for answers, others in zip(windows, native) for answer, other in zip(answers, others)
              for ms, of_native in zip(answer["took_ms"], other["took_ms"])]
    return {"longer_ms": {"mean": round(statistics.mean(longer), 2), "median": round(statistics.median(longer), 2)}} if longer else {}


def p99_over_native(windows, native, draws=2000):
    """The ratio of the 99th percentiles, and between which values it lies in 90 of 100 draws of as many windows, each with its pair: a few windows
    whose requests met decide about a percentile of some hundred."""
    took = [([ms for answer in answers for ms in answer["took_ms"]], [ms for other in others for ms in other["took_ms"]])
            for answers, others in zip(windows, native)]
    p99 = lambda lists: (lambda all_of: all_of[min(len(all_of) - 1, int(len(all_of) * 0.99))])(sorted(ms for each in lists for ms in each))
    ratio = lambda pairs: p99([ours for ours, _ in pairs]) / max(p99([theirs for _, theirs in pairs]), 1e-9)
    if not all(ours and theirs for ours, theirs in took):
        return {}
    chance = random.Random(1)
    drawn = sorted(ratio([chance.choice(took) for _ in took]) for _ in range(draws))
    return {"p99_over_native": {"ratio": round(ratio(took), 3), "from": round(drawn[draws // 20], 3), "to": round(drawn[draws - draws // 20 - 1], 3)}}


def measure(config, ways):
    """mix -> way -> what summary() says; `ways`: name -> Loads, of which one is `native`."""
    seconds = 2 if config.small else 8
    native = ways["native"]
    solo = {kind: rate_of(native.work([kind], seconds / 2)[0]) for kind in ("train", "small")}
    found = {"alone": {"steps a second": solo, "requests": summary(["serve"], native.work(["serve"], seconds), {})}}
    rounds = 1 if config.small else 2 * ROUNDS if config.mixes else ROUNDS
    if len(ways) <= 3 and config.ways and not config.small:
        rounds = 3 * ROUNDS
    for mix, kinds in MIXES.items():
        if mix not in config.mixes if config.mixes else mix in ASKED_FOR:
            continue
        windows = {name: [] for name in ways}
        for number in range(rounds):
            for name, way in ways.items():
                if name not in ("native", "auto", "control") and number > 0 and not config.mixes:
                    continue
                if name == "auto":
                    way.work(kinds, CHOOSES_S if number == 0 else CHOOSES_S / 2, 100)
                windows[name].append(way.work(kinds, seconds, number))
        found[mix] = {name: summary(kinds, [joined(answers) for answers in zip(*each)], solo) for name, each in windows.items()}
        for name, each in windows.items():
            found[mix][name].update(beside_native(each, windows["native"]))
            found[mix][name].update(p99_over_native(each, windows["native"]))
            found[mix][name]["sum of trainers in each window"] = [round(sum(rates_of(kinds, answers, solo)), 3) for answers in each]
        print(f"      {mix:20} " + "  ".join(f"{name} {one['trainers']} {one.get('p50_ms', '')} {one.get('p99_ms', '')}" for name, one in found[mix].items()))
    return found


def judge(result, found):
    """Against the driver alone `auto` loses nothing, and its requests take no longer."""
    for mix, ways in list(found.items())[1:]:
        native, auto = ways["native"], ways["auto"]
        if native["trainers"]:
            result.require_time(f"{mix}: steps, auto over the driver alone", round(sum(auto["trainers"]) / max(sum(native["trainers"]), 1e-9), 3), ">=", 0.99)
        if native["requests"]:
            result.require(f"{mix}: requests answered", auto["requests"], "==", native["requests"])
            for which, slack in (("p50_ms", 1.05), ("p99_ms", 1.1)):
                result.require_time(f"{mix}: requests, {which[:3]}", auto[which], "<=", round(slack * native[which] + 1, 2), "ms")
