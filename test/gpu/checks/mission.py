"""Check mission: the scenarios that the specification describes, played. bench/mission_page.py puts the results beside the documents' tables.

Memory: four_12, rotations, four_12_paging, two_12, ten_1, grow, asked; early: idleness that is known, not sampled (docs/adr/0014).
Compute limits: modes, windows, tail. torch: four kinds of PyTorch models under 10, 20, 30 and 40, which take the limits in turn
(--mission-seconds, 540). visitors: tenants that come and go, for --mission-seconds.
--rows picks; without it all but torch and visitors. A row that does not fit into what is left of --budget is left out, and that fails.

The GPU counts as 16 GiB, and 12 GB are 12 GiB, unless a row says otherwise. Shares are as in quota.py: work over what is done alone.
"""
import json
import pathlib
import random
import subprocess
import sys
import time

from checks.quota import SECOND, Table, Tenants, done_at, scaled, share, thinned, windows
from harness import GIB, MIB, Process, Scheduler, Skip, parallel, prewarm_host, wait_all

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))
import scheduling_modes  # noqa: E402

MODES = tuple(name for name, _, _ in scheduling_modes.rows())
PAIRS = ((30, 40), (50, 60), (80, 80), (50, 100))
MODELS = (("mlp", 64), ("cnn", 16), ("transformer", 32), ("lstm", 256))  # each keeps an H200 busy


class Shape:
    """Sizes in MiB, times in seconds. In small: 1/64 of the memory, a little of the time."""

    def __init__(self, config):
        small = config.small
        short = small and config.plan != "full"  # --plan full: on the stand-in for as long as on a GPU, for the page
        self.small = small
        self.divisor = 64 if small else 1
        self.job_s = 1 if short else 4 if small else 20  # of a job of 12 GB alone
        self.turn_s = (0.15, 0.3) if short else (2, 4) if small else (4, 8)
        self.fit_s = 1 if short else 4           # of the jobs that fit together
        self.paging_s = 1 if short else 18
        self.grow_s = 1 if short else 4
        self.pair_s = 0.5 if short else 4.5      # of it settling:
        self.settle_s = 0.1 if short else 0.5
        self.pairs = PAIRS[:2] if short else PAIRS
        self.rounds = 0
        self.short = short
        # On the stand-in contexts take 8 MiB each, which the reserve has to cover.
        self.extra = {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if small else {}

    def rounds_of_1ms(self, program):
        """Of a kernel of `steady` that takes a millisecond; measured once."""
        self.rounds = self.rounds or program.order("calibrate 1000", 60)["rounds"][0]
        return self.rounds

    def mib(self, gib):
        return int(gib * 1024 / self.divisor)

    def turns(self):
        """Turns that this run has time for: the scheduler's own last 10 s and more."""
        return {"NVSHARE_SWITCH_TIME_MIN": str(self.turn_s[0]), "NVSHARE_SWITCH_TIME_MAX": str(self.turn_s[1]), **self.extra}


def mixer(config, shape, name, scheduler, mib, *words):
    smallest, largest = ("4M", "4M") if shape.small else ("64M", "1G")
    argv = [config.program("mixer"), "--bytes", f"{mib}M", "--smallest", smallest, "--largest", largest, "--sync-bytes", largest, *words]
    return Process(config, name, argv, scheduler.program_environment() if scheduler else None)


def steady(config, shape, name, scheduler, *words):
    argv = [config.program("steady"), "--block", "4M" if shape.small else "256M", *words]
    return Process(config, name, argv, scheduler.program_environment() if scheduler else None)


def result_of(process):
    return next(record for record in process.records if record.get("event") == "result")


def marks_of(process):
    return [(record["t"], record["done"]) for record in process.records if record.get("event") == "mark"]


def played(jobs, began):
    """What became of jobs of mixer that ran at once, and ended."""
    results = [result_of(job) for job in jobs]
    ready = [next(record["t"] for record in job.records if record.get("event") == "ready") for job in jobs]
    return {"makespan_s": max(job.end for job in jobs) - began, "work_s": (max(r["t"] for r in results) - min(ready)) / 1e9,
            "wall_s": [r["wall_s"] for r in results], "checksums": [r["checksum"] for r in results]}


def steady_shares(marks, begin, end):
    """Percent of all work between the times, for each list of marks."""
    done = [done_at(each, end) - done_at(each, begin) for each in marks]
    return [100 * part / sum(done) if sum(done) else 0.0 for part in done]


def whole_rotations(marks, begin, end, gap_ns):
    """From the first to the last beginning of a turn of the program that has most of them: between them everybody had as many. The third: how
    many; none, where no program had two."""
    def beginnings(each):
        return [later for (earlier, _), (later, _) in zip(each, each[1:]) if later - earlier > gap_ns and begin <= later <= end]
    longest = max((beginnings(each) for each in marks), key=len)
    if len(longest) < 2:
        return begin, end, 0
    return longest[0], longest[-1], len(longest) - 1


def solo(config, shape, mib, seconds):
    """One such job alone, without nvshare: how many rounds it does in that time."""
    process = mixer(config, shape, "solo", None, mib, "--seconds", seconds, "--seed", 1)
    process.expect_success(seconds * 3 + 60)
    return result_of(process)


# ---- memory ----

def jobs_at_once(config, shape, result, table, row, count, mib, told_mib, seconds, native_too, turns=None):
    """`count` equal jobs of which each takes `seconds` alone: their makespan over the sum of what they take one after the other."""
    alone = solo(config, shape, mib, seconds)
    figures = result.figure(row, {"jobs": count, "each_mib": mib, "told_mib": told_mib, "solo": alone,
                                  "sum_of_solo_s": count * alone["wall_s"]})
    words = ("--rounds", alone["rounds"], "--mark-ms", 50)
    patience = count * alone["wall_s"] * 3 + 60
    if native_too:
        began = time.monotonic()
        jobs = [mixer(config, shape, f"native{i}", None, mib, "--seed", i + 1, *words) for i in range(count)]
        wait_all(jobs, patience)
        figures["native"] = played(jobs, began)
    with Scheduler(config, None, told_mib, shape.turns() if turns is None else turns) as scheduler:
        began = time.monotonic()
        jobs = [mixer(config, shape, f"job{i}", scheduler, mib, "--seed", i + 1, *words) for i in range(count)]
        wait_all(jobs, patience)
        figures["nvshare"] = played(jobs, began)
        figures["scheduler"] = scheduler.summary()
        figures["switches"] = scheduler.gpu().get("switches", 0)
        figures["drops"] = scheduler.drops()
        figures["movements"] = [[round(m["elapsed_ns"] / 1e6, 1), m["copied"] // MIB, m["out"]] for m in scheduler.movements()]
    marks = [marks_of(job) for job in jobs]
    # While all were there.
    begin, end = max(m[0][0] for m in marks if m), min(m[-1][0] for m in marks if m)
    figures["shares"] = steady_shares(marks, begin, end) if end > begin else []
    figures["ratio"] = figures["nvshare"]["makespan_s"] / figures["sum_of_solo_s"]
    figures["work_ratio"] = figures["nvshare"]["work_s"] / (count * alone["mix_s"])
    result.require(f"{row}: first job computes as alone", figures["nvshare"]["checksums"][0], "==", alone["checksum"])
    return figures


def four_12(config, shape, result, table):
    """The makespan with the scheduler's own turns; on the stand-in with shorter ones."""
    turns = shape.turns() if shape.small else {}
    figures = jobs_at_once(config, shape, result, table, "four_12", 4, shape.mib(12), shape.mib(16), shape.job_s, False, turns)
    table.at_most("4 x 12 GB on 16: makespan over one after the other", figures["ratio"], 1.1, "times")
    result.require("four_12: switches", figures["switches"], ">=", 3)


def rotations(config, shape, result, table):
    """The shares of four such jobs, over whole rotations of turns of 2 s."""
    figures = result.figure("rotations", {})
    turn_s = shape.turn_s[0] if shape.small else 2
    with Scheduler(config, turn_s, shape.mib(16), shape.extra) as scheduler:
        programs = [steady(config, shape, f"shares{i}", scheduler, "--bytes", f"{shape.mib(12)}M") for i in range(4)]
        for program in programs:
            program.wait_event("ready", 90)
        rounds = shape.rounds_of_1ms(programs[0])
        for longer in (1, 2, 4):  # a busy machine takes its time to move memory
            begin, end, marks = work_for(programs, longer * 4 * 4 * (turn_s + 0.6), rounds)
            begin, end, figures["count"] = whole_rotations(marks, begin, end, turn_s * SECOND)
            if figures["count"] > 0:
                break
        result.require("rotations: whole ones", figures["count"], ">=", 1)
        figures["shares"] = steady_shares(marks, begin, end)
        for program in programs:
            program.close_input()
        wait_all(programs, 60)
    table.at_least("4 x 12 GB on 16: the smallest share of four", min(figures["shares"]), 5 if shape.small else 20, "percent")


def four_12_paging(config, shape, result, table):
    """The same by the driver's demand paging, on a GPU that is really full but for 16 GiB."""
    mib, free_mib = shape.mib(12), shape.mib(16)
    alone = solo(config, shape, mib, min(shape.job_s, 4))
    holder = Process(config, "holder", [config.program("holder"), "--leave", f"{free_mib}M"])
    held = holder.wait_event("holding", 60)
    jobs = [mixer(config, shape, f"paging{i}", None, mib, "--managed", "--seed", i + 1, "--seconds", 3600, "--mark-ms", 20) for i in range(4)]
    figures = result.figure("four_12_paging", {"free": held["free"], "each_mib": mib, "solo": alone})
    limit = time.monotonic() + (10 if shape.small else 60)  # filling it already pages
    while not all(marks_of(job) for job in jobs) and time.monotonic() < limit:
        time.sleep(0.05)
    begin = time.monotonic_ns()
    time.sleep(shape.paging_s)
    end = time.monotonic_ns()
    for job in jobs:
        job.kill()
    holder.close_input()
    holder.wait(30)
    marks = [marks_of(job) for job in jobs]
    done = [done_at(each, end) - done_at(each, begin) if each else 0.0 for each in marks]
    alone_rate = done_alone(alone, mib) / alone["mix_s"]
    figures["bytes_done"] = done
    figures["alone_bytes_per_s"] = alone_rate
    figures["of_one_alone"] = sum(done) / ((end - begin) / 1e9) / alone_rate
    figures["makespan_over_one_after_the_other"] = 1 / figures["of_one_alone"] if figures["of_one_alone"] else None
    ours = result.figures.get("four_12", {}).get("work_ratio")
    if ours and figures["of_one_alone"]:
        figures["times_faster_than_paging"] = figures["makespan_over_one_after_the_other"] / ours
        table.listed("4 x 12 GB on 16: times faster than demand paging", 0, figures["times_faster_than_paging"])
    table.listed("4 x 12 GB by demand paging: of one job's speed, in sum", 0, figures["of_one_alone"])


def done_alone(alone, mib):
    return alone["rounds"] * mib * MIB


def two_12(config, shape, result, table):
    figures = jobs_at_once(config, shape, result, table, "two_12", 2, shape.mib(12), 448 if shape.small else shape.mib(26), shape.fit_s, True)
    figures["over_native"] = figures["nvshare"]["makespan_s"] / figures["native"]["makespan_s"]
    table.at_most("2 x 12 GB that fit: makespan over without nvshare", figures["over_native"], 1.05, "times")
    result.require("two_12: switches of memory", figures["switches"], "==", 0)


def ten_1(config, shape, result, table):
    mib = shape.mib(1e9 / GIB)
    # 16 GiB, and 2 more: ten contexts of an H200 take 5 GiB.
    figures = jobs_at_once(config, shape, result, table, "ten_1", 10, mib, shape.mib(18), 1 if shape.short else 2, True)
    figures["over_native"] = figures["nvshare"]["makespan_s"] / figures["native"]["makespan_s"]
    table.at_most("10 x 1 GB: makespan over without nvshare", figures["over_native"], 1.05, "times")
    result.require("ten_1: switches of memory", figures["switches"], "==", 0)


def work_for(processes, seconds, rounds):
    begin = time.monotonic_ns() + SECOND // 5
    end = begin + int(seconds * SECOND)
    answers = parallel([lambda p=p: p.order(f"run {begin} {end} {rounds}", seconds * 10 + 90) for p in processes])
    return begin, end, [answer["marks"] for answer in answers]


def grow(config, shape, result, table):
    """Three programs of 1 GiB each that grow to 4 (they fit) and then to 6 (they do not), while they work."""
    figures = result.figure("grow", {"told_mib": shape.mib(16), "steps": []})
    with Scheduler(config, None, shape.mib(16), shape.turns()) as scheduler:
        programs = [steady(config, shape, f"grows{i}", scheduler, "--bytes", f"{shape.mib(1)}M") for i in range(3)]
        for program in programs:
            program.wait_event("ready", 60)
        rounds = shape.rounds_of_1ms(programs[0])
        for gib in (1, 4, 6):
            took = parallel([lambda p=p: p.order(f"hold {shape.mib(gib) * MIB}", 120) for p in programs])
            before = scheduler.gpu().get("switches", 0)
            begin, end, marks = work_for(programs, shape.grow_s * (3 if gib == 6 else 1), rounds)
            work = [m[-1][1] for m in marks]
            # On a machine that is busy with other things turns may be longer than that.
            for _ in range(4 if gib == 6 else 0):
                if min(work) >= 1:
                    break
                begin, end, marks = work_for(programs, shape.grow_s * 3, rounds)
                work = [sum(both) for both in zip(work, [m[-1][1] for m in marks])]
            time.sleep(0.2)
            running = max((sum(c["state"] == "running" for c in look["clients"]) for look in scheduler.history
                           if begin <= look["t"] <= end), default=0)
            figures["steps"].append({"each_mib": shape.mib(gib), "held": took, "running_at_once": running, "work": work,
                                     "shares": steady_shares(marks, begin, end), "switches": scheduler.gpu().get("switches", 0) - before})
        figures["scheduler"] = scheduler.summary()
        for program in programs:
            program.close_input()
        wait_all(programs, 60)
    result.require("grow: refused allocations", sum(t["refused"] for step in figures["steps"] for t in step["held"]), "==", 0)
    result.require("grow: 3 x 4 GB run at once", figures["steps"][1]["running_at_once"], "==", 3)
    result.require("grow: switches of 3 x 4 GB", figures["steps"][1]["switches"], "==", 0)
    result.require("grow: all of 3 x 6 GB work", min(figures["steps"][2]["work"]), ">=", 1)
    table.listed("3 x 4 GB that grow to 6: switches then", 0, figures["steps"][2]["switches"])


def asked(config, shape, result, table):
    """16 GB asked for and 1 GB used, beside 12 GB, on 24: the amount asked for counts, so they take turns."""
    figures = result.figure("asked", {"told_mib": shape.mib(24)})
    with Scheduler(config, None, shape.mib(24), shape.turns()) as scheduler:
        claims = steady(config, shape, "claims", scheduler, "--bytes", f"{shape.mib(16)}M", "--used", f"{shape.mib(1)}M")
        claims.wait_event("ready", 60)
        rounds = shape.rounds_of_1ms(claims)
        uses = steady(config, shape, "uses", scheduler, "--bytes", f"{shape.mib(12)}M")
        uses.wait_event("ready", 90)
        begin, end, marks = work_for([claims, uses], shape.turn_s[1] * 3, rounds)
        time.sleep(0.2)
        at_once = max((sum(c["state"] == "running" for c in look["clients"]) for look in scheduler.history if begin <= look["t"] <= end), default=0)
        figures.update({"shares": steady_shares(marks, begin, end), "running_at_once": at_once, "switches": scheduler.gpu().get("switches", 0),
                        "scheduler": scheduler.summary()})
        for program in (claims, uses):
            program.close_input()
        wait_all([claims, uses], 60)
        figures["movements"] = [[round(m["elapsed_ns"] / 1e6, 1), m["copied"] // MIB, m["out"]] for m in scheduler.movements()]
    result.require("asked: running at once", figures["running_at_once"], "<=", 1)
    result.require("asked: switches", figures["switches"], ">=", 1)


def early(config, shape, result, table):
    """Early release without NVML (docs/adr/0014): when a program with 12 GB has done its work beside one that has the GPU, turns of 6 s."""
    figures = result.figure("early", {})
    with Scheduler(config, 6, shape.mib(16), extra=shape.extra) as scheduler:
        has, wants = (steady(config, shape, name, scheduler, "--spin", "--bytes", f"{shape.mib(12)}M") for name in ("has", "wants"))
        has.wait_event("ready", 60)
        rounds = 10**6 if shape.small else has.order("calibrate 1000", 60)["rounds"][0]
        wants.wait_event("ready", 90)
        # What the one does that has the GPU, and how long the other one has to wait at most until 0.1 s of its work is done.
        cases = {"works for 1 s, spins until that is done, then does nothing": ("run {begin} {first} {rounds}", 4),
                 "3 ms of work in 20 ms, bound by its host": ("burst {begin} {long} {rounds} 3000 17000", 9),
                 # Up to four of them are submitted before its drain ends: nothing takes a kernel back.
                 "kernels of 4 s": ("run {begin} {kernels} {minutes}", 17)}
        for what, (order, most) in cases.items():
            work_for([has], 0.5, rounds)  # it has the GPU again
            begin = time.monotonic_ns() + SECOND // 5
            text = order.format(begin=begin, first=begin + SECOND, long=begin + 10 * SECOND, kernels=begin + 5 * SECOND, rounds=rounds,
                                minutes=4000 * rounds)
            comes = begin + SECOND // 2

            def come(comes=comes):
                # It submits until `comes` + 0.1 s, or once if it waited for longer, and answers when that is done.
                wants.order(f"run {comes} {comes + SECOND // 10} {rounds}", 90)
                return (time.monotonic_ns() - comes) / 1e9

            answer, waited = parallel([lambda text=text: has.order(text, 90), come])
            figures[what] = {"done_after_s": waited, "work": answer["marks"][-1][1]}
            table.at_most(f"early release: {what}: waits", waited, most, "s")
        figures["scheduler"] = scheduler.summary()
        for program in (has, wants):
            program.close_input()
        wait_all([has, wants], 60)


# ---- compute limits ----

class Compute:
    """Two `steady` tenants under `nvsharectl run`, their rates alone, and a scheduler whose settings change between cases."""

    def __init__(self, config, shape, result):
        config.launcher = "nvsharectl"
        self.shape, self.result = shape, result
        self.scheduler = Scheduler(config, extra={"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if shape.small else None)
        self.tenants = Tenants(config, self.scheduler, result)
        lengths = {"1ms": 1000, "50ms": 10_000 if shape.small else 50_000}
        self.tenants.start("a")
        self.tenants.calibrate("a", lengths)
        self.tenants.start("b")
        self.alone = {kind: self.tenants.solo_rate("a", kind) for kind in lengths}

    def set(self, **settings):
        answer = self.scheduler.ask({"request": "set", "settings": {name: str(value) for name, value in settings.items()}})
        if not answer.get("ok"):
            raise Skip(f"the scheduler does not take {settings}: {answer}")

    def play(self, limits, seconds, kind="1ms"):
        """name -> percent of what is done alone, and the marks; the settling time is not counted."""
        names = list("ab")[:len(limits)]
        for name, limit in zip(names, limits):
            self.tenants.limit(name, limit)
        begin, end, marks = self.tenants.together({name: kind for name in names}, seconds)
        settled = begin + int(self.shape.settle_s * SECOND)
        shares = [share(marks[name], settled, end, self.alone[kind]) for name in names]
        for name in names:
            self.tenants.limit(name, 100)
        return {"limits": list(limits), "shares": shares, "sum": sum(shares), "seconds": seconds - self.shape.settle_s,
                "mode": (self.scheduler.last_gpu or {}).get("compute_mode"), "marks": {n: thinned(marks[n], begin) for n in names},
                "raw": (begin, end, marks)}

    def close(self):
        for name in list(self.tenants.processes):
            self.tenants.stop(name)
        self.scheduler.stop()


def listed_only(figures):
    return {key: value for key, value in figures.items() if key != "raw"}


def due_of(limits):
    """What auto owes: scaled past 100; a program without a limit has what is left, at least 5."""
    if 100 in limits:
        return [min(limit, 95) if limit < 100 else max(5, 100 - limits[0]) for limit in limits]
    return scaled(list(limits))


def modes(_, shape, result, table, compute):
    rows = result.figure("modes", [])
    for mode in MODES:
        compute.set(scheduling_mode=mode)
        for limits in shape.pairs:
            # What is bounded is looked at for longer: half a turn at an edge of 4 s is a point and more.
            case = compute.play(limits, shape.pair_s * (2 if mode == "auto" else 1))
            rows.append({"scheduling_mode": mode, **listed_only(case)})
            name = f"{mode} {'+'.join('none' if limit == 100 else str(limit) for limit in limits)}"
            for index, (due, got) in enumerate(zip(due_of(limits), case["shares"])):
                if mode == "auto":
                    table.within(f"{name}: {'ab'[index]}", due, got, 1.0)
                else:
                    table.listed(f"{name}: {'ab'[index]}", due, got)
            table.listed(f"{name}: sum", sum(due_of(limits)), case["sum"])
    compute.set(scheduling_mode="auto")


def several_windows(_, shape, result, table, compute):
    """One tenant under 50 with windows of 2 and of 10 s, and with the balances that are the default."""
    rows = result.figure("windows", [])
    for window_ms in ("auto", 200, 1000) if shape.short else ("auto", 2000, 10_000):
        compute.set(compute_window_ms=window_ms)
        length = 2 if window_ms == "auto" else window_ms / 1000
        seconds = shape.settle_s + (2 * length if window_ms == 10_000 else min(3 * length, 10))
        case = compute.play((50,), seconds)
        begin, end, marks = case["raw"]
        seen = windows(marks["a"], begin, end, int((0.2 if shape.short else 2) * SECOND), compute.alone["1ms"])
        rows.append({"compute_window_ms": window_ms, "worst_2_s_off_by": max((abs(part - 50) for part in seen), default=None),
                     **listed_only(case)})
        table.listed(f"50 alone, window {window_ms}", 50, case["shares"][0])
    compute.set(compute_window_ms="auto")


def tail(_, shape, result, table, compute):
    """50 + 50 with kernels of 50 ms: the time from a drop to its answer billed in full, and at the mission's 70 %."""
    rows = result.figure("tail", [])
    for percent in (100, 70):
        compute.set(drop_tail_billing_percent=percent)
        for limits in ((50, 50), (50,)):
            case = compute.play(limits, shape.pair_s if shape.short else 8, "50ms")
            rows.append({"drop_tail_billing_percent": percent, **listed_only(case)})
            table.listed(f"{'+'.join(map(str, limits))}, kernels of 50 ms, tail billed at {percent} %: sum", sum(limits), case["sum"])
    compute.set(drop_tail_billing_percent="auto")


def used_ns(scheduler):
    """GPU time that was billed to each tenant so far."""
    return {tenant["name"]: compute["used_ns"] for tenant in scheduler.ask({"request": "status"}).get("tenants", [])
            for compute in tenant.get("compute", [])}


def torch(config, shape, result, table):
    """Four kinds of PyTorch models and batch sizes under 10, 20, 30 and 40; each kind has each limit for a quarter of the time.

    A limit is one on GPU time, and that is judged. What work is done in it is listed beside: these models wait for their host a good deal, so
    it changes with the host, and so does what they do alone (the same LSTM did 53 and 77 steps a second on two machines with the same GPU)."""
    program = config.repo / "test" / "gpu" / "programs" / "torch_models.py"
    total_s = config.mission_seconds
    rotations = 4
    config.launcher = "nvsharectl"
    with Scheduler(config) as scheduler:
        tenants = Tenants(config, scheduler, result)
        parallel([lambda kind=kind, batch=batch: tenants.start(
            kind, program=[config.python, str(program), "--kind", kind, "--batch", str(batch)]) for kind, batch in MODELS])
        names = [kind for kind, _ in MODELS]
        alone, dense = {}, {}
        for name in names:
            begin, end, marks = tenants.together({name: "torch"}, 5 if total_s > 400 else 12)
            alone[name] = share(marks[name], begin + SECOND, end, 1) / 100  # work per ns
            dense[name] = tenants.processes[name].order("dense", 60)["gpu_ns"]
        rows = result.figure("torch", {"alone_steps_per_s": {n: rate * 1e9 for n, rate in alone.items()}, "gpu_ns_of_a_step": dense,
                                       "seconds": total_s, "rows": []})
        for turn in range(rotations):
            limits = {name: (10, 20, 30, 40)[(index + turn) % 4] for index, name in enumerate(names)}
            for name, limit in limits.items():
                tenants.limit(name, limit)
            before = used_ns(scheduler)
            begin, end, marks = tenants.together({name: "torch" for name in names}, total_s / rotations)
            billed = {name: 100 * (ns - before.get(name, 0)) / (end - begin) for name, ns in used_ns(scheduler).items()}
            settled = begin + (end - begin) // 20
            shares = {name: share(marks[name], settled, end, alone[name]) for name in names}
            of_gpu = {name: share(marks[name], settled, end, 1 / dense[name]) if dense[name] else None for name in names}
            rows["rows"].append({"limits": limits, "shares": shares, "billed": billed, "of_gpu": of_gpu, "marks": {n: thinned(marks[n], begin, SECOND) for n in names}})
            for name in names:
                # Short parts begin with what the change of the limits left.
                table.within(f"torch {name} under {limits[name]}: GPU time billed", limits[name], billed[name], 0.5 if total_s > 400 else 1)
                table.listed(f"torch {name} under {limits[name]}: work, of what is done alone", limits[name], shares[name])
            table.listed(f"torch, turn {turn + 1}: sum", 100, sum(shares.values()))
        rows["scheduler"] = scheduler.summary()
        for name in names:
            tenants.stop(name)


def visitors(config, shape, result, table):
    """Tenants that come and go, each with a limit of its own that is sometimes changed or taken away: for hours on the stand-in."""
    seed = config.seed if config.seed is not None else 1
    dice = random.Random(seed)
    figures = result.figure("visitors", {"seed": seed, "seconds": config.mission_seconds, "came": 0, "changes": 0, "looks": []})
    config.launcher = "nvsharectl"
    with Scheduler(config, None, None, {"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if shape.small else None) as scheduler:
        tenants = Tenants(config, scheduler, result)
        tenants.start("t0")
        tenants.calibrate("t0", {"20us": 200 if shape.small else 20, "1ms": 1000})
        rounds, limits, number = tenants.rounds["1ms"], {"t0": 40}, 0
        tenants.limit("t0", 40)
        deadline = time.monotonic() + config.mission_seconds
        while time.monotonic() < deadline:
            if len(limits) < 4 and dice.random() < 0.6:
                number += 1
                name = f"t{number}"
                tenants.start(name)
                limits[name] = dice.choice((10, 20, 30, 50, 80, 100))
                tenants.limit(name, limits[name])
                figures["came"] += 1
            elif len(limits) > 1 and dice.random() < 0.5:
                name = dice.choice(sorted(limits))
                tenants.stop(name)
                del limits[name]
            elif dice.random() < 0.5:
                name = dice.choice(sorted(limits))
                limits[name] = dice.choice((10, 25, 60, 100))
                tenants.limit(name, limits[name])
                figures["changes"] += 1
            seconds = dice.uniform(0.5, 2) if config.mission_seconds < 60 else dice.uniform(2, 20)
            begin = time.monotonic_ns() + SECOND // 4
            end = begin + int(seconds * SECOND)
            names = sorted(limits)
            parallel([lambda n=n: tenants.processes[n].order(f"run {begin} {end} {rounds}", seconds + 120) for n in names])
            status = scheduler.ask({"request": "status"})
            figures["looks"].append({"t": round(time.monotonic() - deadline + config.mission_seconds), "limits": dict(limits),
                                     "billed": {t["name"]: round(c["share_window"], 2) for t in status.get("tenants", [])
                                                for c in t.get("compute", [])},
                                     "clients": len(status.get("clients", []))})
            figures["missing"] = figures.get("missing", 0) + (len(status.get("clients", [])) != len(limits))
        figures["looks"] = figures["looks"][:: max(1, len(figures["looks"]) // 500)]
        for name in list(tenants.processes):
            tenants.stop(name)
    result.require("visitors: looks at which a tenant was not there", figures.get("missing", 0), "==", 0)
    table.listed("visitors: tenants that came", 0, figures["came"])


MEMORY_ROWS = {"four_12": (four_12, 120), "rotations": (rotations, 60), "four_12_paging": (four_12_paging, 70),
               "two_12": (two_12, 35), "ten_1": (ten_1, 55), "grow": (grow, 40), "asked": (asked, 45), "early": (early, 55)}
COMPUTE_ROWS = {"modes": (modes, 155), "windows": (several_windows, 40), "tail": (tail, 45)}
LONG_ROWS = {"torch": torch, "visitors": visitors}
ROWS = (*MEMORY_ROWS, *COMPUTE_ROWS, *LONG_ROWS)


def mission(config, result):
    if config.nvsharectl is None:
        raise Skip("nvsharectl is not built")
    shape = Shape(config)
    rows = [row for row in config.rows.split(",") if row] or [*MEMORY_ROWS, *COMPUTE_ROWS]
    if shape.small and not config.rows and "early" in rows:  # its seconds are those of a GPU
        rows.remove("early")
    wrong = [row for row in rows if row not in ROWS]
    if wrong:
        raise Skip(f"no row {', '.join(wrong)}; there are: {', '.join(ROWS)}")
    config.rows = ""  # the quota's plan, which has rows of its own, is asked for lengths
    table = Table(result)
    result.figure("rows", rows)
    failures = []

    def run(row, seconds, call):
        if not shape.small and config.left() < seconds:
            result.figure(f"left out: {row}", f"{config.left():.0f} s left, it takes about {seconds}")
            return result.require(f"row {row} was run", 0, "==", 1)
        began = time.monotonic()
        try:
            call()
        except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError, Skip, KeyError, ValueError, StopIteration) as error:  # the other rows are worth their time
            failures.append(row)
            result.figure(f"failed: {row}", f"{type(error).__name__}: {error}"[:600])
            result.require(f"row {row} came to its end", 0, "==", 1)
            Process.end_all()
        result.figure(f"seconds of {row}", round(time.monotonic() - began, 1))
        print(f"      {row}: {time.monotonic() - began:.0f} s, {config.left():.0f} s left", flush=True)
        (config.out / "mission-so-far.json").write_text(json.dumps(result.as_json()) + "\n")
        return None

    try:
        launcher = config.launcher
        if any(row in MEMORY_ROWS for row in rows) and not shape.small:
            result.figure("prewarm_host", prewarm_host(config, 56 * GIB))
        for row in rows:
            if row in MEMORY_ROWS:
                config.launcher = "preload"
                function, seconds = MEMORY_ROWS[row]
                run(row, seconds, lambda function=function: function(config, shape, result, table))
        compute = None
        for row in rows:
            if row in COMPUTE_ROWS:
                function, seconds = COMPUTE_ROWS[row]
                if compute is None:
                    compute = Compute(config, shape, result)
                run(row, seconds, lambda function=function: function(config, shape, result, table, compute))
        if compute is not None and not any(row in failures for row in COMPUTE_ROWS):
            compute.close()
        for row in rows:
            if row in LONG_ROWS:
                run(row, config.mission_seconds + 30, lambda row=row: LONG_ROWS[row](config, shape, result, table))
        config.launcher = launcher
        result.require("rows that failed", len(failures), "==", 0)
    finally:
        table.finish()
