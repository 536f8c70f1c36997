"""Check quota: do compute limits hold? A tenant's share is the work that it got done over the work that it gets done alone, in the same run.

Every tenant is one `steady` program under `nvsharectl run`; limits are set with `nvsharectl set TENANT core=N`. Rows of the table:
single, sums, past, beside, bursty, cycles, begins, swapping, change, overhead, drift (--rows picks; --plan short covers each row but cycles and
begins at least once in about six minutes, full is the whole table, drift the nine minutes with limits that change each minute, hour the same for an hour: for the
stand-in; bursty the rows bursty, cycles and begins in three minutes).
"""
import bisect
import subprocess
import threading
import time

from checks.nvml_beside import Dmon, NvmlBeside
from harness import Process, Scheduler, Skip, parallel

SECOND = 1_000_000_000
ROWS = ("single", "sums", "past", "beside", "bursty", "cycles", "begins", "swapping", "change", "overhead", "drift")
OF_PLANS = {"drift": ("drift",), "hour": ("drift",), "bursty": ("bursty", "cycles", "begins"),
            "short": tuple(row for row in ROWS if row not in ("cycles", "begins"))}
LENGTHS_US = {"5us": 5, "20us": 20, "1ms": 1000, "50ms": 50_000, "300ms": 300_000}
SMALL_LENGTHS_US = {"5us": 50, "20us": 200, "1ms": 1000, "50ms": 10_000, "300ms": 30_000}  # the stand-in's time is the processors'


# ---- arithmetic; harness_test.py has its tests ----

def done_at(marks, when):
    """Work done by that time, between marks as if it went on evenly."""
    after = bisect.bisect_left(marks, when, key=lambda mark: mark[0])
    if after == len(marks):
        return float(marks[-1][1]) if marks else 0.0
    t, done = marks[after]
    if after == 0 or t == marks[after - 1][0]:
        return float(done)
    t_before, done_before = marks[after - 1]
    return done_before + (done - done_before) * (when - t_before) / (t - t_before)


def share(marks, begin, end, solo_rate):
    """Percent of what is done alone (solo_rate: work per ns)."""
    return 100 * (done_at(marks, end) - done_at(marks, begin)) / ((end - begin) * solo_rate)


def windows(marks, begin, end, length, solo_rate):
    """The shares of whole windows, the first one left out."""
    found = []
    at = begin + length
    while at + length <= end:
        found.append(share(marks, at, at + length, solo_rate))
        at += length
    return found


def scaled(limits):
    """What limits come to when they add up to more than 100: each its part of the whole."""
    total = sum(limits)
    return [float(limit) if total <= 100 else 100 * limit / total for limit in limits]


def kernels_share(kernel_us, length_ns):
    """Percent of that time that one kernel takes: nothing can be cut finer."""
    return 100 * kernel_us * 1000 / length_ns


def reaches_at(marks, begin, end, threshold, trail, solo_rate):
    """When the share over the `trail` before first passes the threshold; None: never."""
    for t, _ in marks:
        if begin + trail <= t <= end and share(marks, t - trail, t, solo_rate) >= threshold:
            return t
    return None


def idle_percent(shares, swap_ns, length_ns):
    """Of the GPU's time, what nobody worked in and no memory moved in."""
    return max(0.0, 100 - sum(shares) - 100 * swap_ns / length_ns)


# ---- the plan ----

class Plan:
    """What is run, and for how long; times in seconds."""

    def __init__(self, config):
        self.small = config.small
        kind = config.plan
        if kind == "auto":
            kind = "full" if config.left() > 1500 else "short"
        self.kind = kind
        self.lengths_us = SMALL_LENGTHS_US if self.small else LENGTHS_US
        of_plan = OF_PLANS.get(kind, ROWS)
        self.rows = [row for row in (config.rows.split(",") if config.rows else of_plan) if row]
        wrong = [row for row in self.rows if row not in ROWS]
        if wrong:
            raise Skip(f"no row {', '.join(wrong)}; there are: {', '.join(ROWS)}")
        whole = kind == "full"
        self.solo_s = 5 if kind == "hour" else 1 if self.small else 3
        self.single_s = 2 if self.small else 10
        self.window_s = 0.5 if self.small else 2
        self.pair_s = 2 if self.small else (20 if whole else 14)  # a kernel of 50 ms is 0.7 points of 7 s
        self.swap_s = 4 if self.small else (60 if whole else 40)
        if kind == "hour":
            self.drift_s, self.drift_change_s = 3600, 60
        elif self.small:
            self.drift_s, self.drift_change_s = 4, 2
        elif kind in ("drift", "full"):
            self.drift_s, self.drift_change_s = 540, 60
        else:
            self.drift_s, self.drift_change_s = 30, 10
        six = (10, 25, 40, 50, 75, 90)
        if self.small:
            self.single = [("1ms", 50), ("graph", 75), ("torch", 50)]
        elif whole:
            self.single = [(length, limit) for length in ("20us", "1ms") for limit in six]
            self.single += [(length, limit) for length in ("5us", "50ms", "300ms", "graph", "torch") for limit in (25, 50, 75)]
        else:
            self.single = [("20us", 10), ("20us", 50), ("20us", 90), ("1ms", 25), ("1ms", 40), ("1ms", 75), ("5us", 50), ("50ms", 25),
                           ("300ms", 50), ("graph", 75), ("torch", 50)]
        self.sums = [[30, 60], [50, 50], [25, 75], [10, 20, 30, 40]]
        self.past = [[50, 60], [80, 80], [40, 40, 40], [30, 30, 30]]
        self.cycles_ms = [(1, 1), (2, 2), (4, 4), (10, 10), (3, 7)]
        self.cycle_s = 2 if self.small else 6
        if self.small:
            self.sums, self.past = self.sums[:1], self.past[:1]
            self.cycles_ms = [(10, 10)]


class Tenants:
    """Up to four `steady` programs, each a tenant of its own that lives as long as the check, and their rates alone."""

    def __init__(self, config, scheduler, result, python=None):
        self.config, self.scheduler, self.result = config, scheduler, result
        self.processes = {}
        self.rounds = {}
        self.kernel_us = {}
        self.solo = {}
        self.cycles = {}  # of each program's last burst: where its time went
        self.round_ps = 0
        self.python = python

    def start(self, name, *options, program=None):
        argv = program or [self.config.program("steady"), "--round-ps", str(self.round_ps), *options]
        command = [self.config.nvsharectl, "run", "--name", name, "--gpu-core-limit", "100", "--", *argv]
        process = Process(self.config, name, command, self.scheduler.program_environment())
        process.wait_event("ready", 120)
        self.processes[name] = process
        return process

    def stop(self, name):
        process = self.processes.pop(name)
        process.close_input()
        process.expect_success(60)

    def limit(self, name, percent):
        """Sets it; returns when that was, in ns."""
        command = [str(self.config.nvsharectl), "set", name, f"core={percent}"]
        environment = self.scheduler.program_environment()
        environment.pop("LD_PRELOAD", None)
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
        if answer.returncode != 0:
            raise Skip(f"nvsharectl set {name} core={percent} does not work: {(answer.stderr or answer.stdout).strip()[:200]}")
        return time.monotonic_ns()

    def calibrate(self, name, lengths_us):
        answer = self.processes[name].order("calibrate " + ",".join(str(us) for us in lengths_us.values()), 60)
        for length, rounds, us in zip(lengths_us, answer["rounds"], answer["us"]):
            self.rounds[length], self.kernel_us[length] = rounds, us
        self.round_ps = max(1, round(1e6 * self.kernel_us["1ms"] / self.rounds["1ms"]))
        self.result.figure("kernels", {"rounds": self.rounds, "us": self.kernel_us})

    def order(self, kind, begin, end, extra=""):
        """The order for that kind of work: a kernel's length, `mix:A+B`, `graph`, `torch` or `burst`."""
        if kind == "graph":
            return f"graph {begin} {end} {self.rounds['20us']}"
        if kind == "torch":
            return f"run {begin} {end}"
        if kind == "burst":
            return f"burst {begin} {end} {self.rounds['20us']} {extra}"
        lengths = kind[4:].split("+") if kind.startswith("mix:") else [kind]
        return f"run {begin} {end} " + ",".join(str(self.rounds[length]) for length in lengths)

    def together(self, work, seconds, meanwhile=None):
        """work: name -> kind of work (or (kind, extra)). All begin at the same moment. Returns begin, end, name -> marks."""
        begin = time.monotonic_ns() + SECOND // 4
        end = begin + int(seconds * SECOND)

        def one(name):
            kind, extra = work[name] if isinstance(work[name], tuple) else (work[name], "")
            answer = self.processes[name].order(self.order(kind, begin, end, extra), seconds + 90)
            self.cycles[name] = answer.get("cycles")
            return answer["marks"]

        calls = [lambda name=name: one(name) for name in work]
        answers = parallel(calls + ([lambda: meanwhile(begin, end)] if meanwhile else []))
        return begin, end, dict(zip(work, answers))

    def solo_rate(self, name, kind):
        """Work per ns alone and without a limit, measured once a kind of work."""
        key = kind[0] + " " + kind[1] if isinstance(kind, tuple) else kind
        if key not in self.solo:
            self.limit(name, 100)
            plan_s = Plan(self.config).solo_s
            seconds = plan_s * (3 if "300ms" in key and not self.config.small else 1)
            begin, end, marks = self.together({name: kind}, seconds)
            settle = begin + (end - begin) // 10
            last = marks[name][-1][0]
            self.solo[key] = (done_at(marks[name], last) - done_at(marks[name], settle)) / (last - settle)
        return self.solo[key]


class Table:
    """Rows for people, requirements for the result, marks for whoever wants to look again."""

    def __init__(self, result):
        self.result = result
        self.rows = []
        self.raw = {}

    def row(self, case, asked, got, bound, holds):
        self.rows.append({"case": case, "asked": asked, "got": round(got, 3), "bound": bound, "holds": bool(holds)})

    def listed(self, case, beside, got):
        """Shown, and nothing is required of it."""
        self.row(case, round(beside, 2), got, "listed", True)

    def list_nvml(self, case, found, pmon):
        """NVML's figures of the tenants, beside what was billed (in the column of what is asked); pmon: name -> percent."""
        for name, tenant in (found or {}).get("tenants", {}).items():
            self.listed(f"{case}: {name} by NVML, billed", tenant["billed"], tenant["nvml"])
        for name, percent in pmon.items():
            self.listed(f"{case}: {name} by nvidia-smi pmon", 0, percent)

    def within(self, case, asked, got, tolerance):
        self.row(case, round(asked, 2), got, f"+- {tolerance:.2f}", abs(got - asked) <= tolerance)
        self.result.require_time(f"{case}: off from {asked:.4g} by", abs(got - asked), "<=", tolerance, "points")

    def at_least(self, case, got, bound, unit="%"):
        self.row(case, "", got, f">= {bound:.4g}", got >= bound)
        self.result.require_time(case, got, ">=", bound, unit)

    def at_most(self, case, got, bound, unit="%"):
        self.row(case, "", got, f"<= {bound:.4g}", got <= bound)
        self.result.require_time(case, got, "<=", bound, unit)

    def finish(self):
        self.result.figure("table", self.rows)
        self.result.figure("raw", self.raw)
        print(f"      {'case':44} {'asked':>8} {'got':>9}  bound")
        for row in self.rows:
            print(f"      {row['case'][:44]:44} {str(row['asked']):>8} {row['got']:>9.2f}  {row['bound']:12} {'ok' if row['holds'] else 'FAIL'}")


def thinned(marks, begin, step_ns=100_000_000):
    """For the raw results: ten a second, from the beginning."""
    found, next_at = [], begin
    for t, done in marks:
        if t >= next_at:
            found.append([round((t - begin) / 1e6, 1), done])
            next_at = t + step_ns
    return found


# ---- the rows ----

def single(plan, tenants, table):
    torch_missing = False
    for kind, limit in plan.single:
        name = "a"
        if kind == "torch":
            if torch_missing or not tenants.python:
                continue
            if "torch" not in tenants.processes:
                try:
                    tenants.start("torch", program=[*tenants.python])
                except (RuntimeError, TimeoutError) as error:
                    torch_missing = True
                    table.result.figure("torch left out", str(error)[:300])
                    continue
            name = "torch"
        alone = tenants.solo_rate(name, kind)
        tenants.limit(name, limit)
        begin, end, marks = tenants.together({name: kind}, plan.single_s)
        kernel_us = {"graph": 20 * tenants.kernel_us["20us"], "torch": 5000}.get(kind) or tenants.kernel_us[kind]
        case = f"single {kind} at {limit}"
        table.within(f"{case}, whole run", limit, share(marks[name], begin, end, alone), 0.5 + kernels_share(kernel_us, end - begin))
        length = int(plan.window_s * SECOND)
        off = [abs(part - limit) for part in windows(marks[name], begin, end, length, alone)]
        table.at_most(f"{case}, worst window off by", max(off, default=0), 1.5 + kernels_share(kernel_us, length), "points")
        table.raw[case] = {"solo_rate": alone, "marks": thinned(marks[name], begin)}
        tenants.limit(name, 100)
    if "torch" in tenants.processes:
        tenants.stop("torch")


MIXES = ("20us", "mix:20us+1ms", "1ms", "mix:1ms+50ms")


def several(plan, tenants, table, limits, tolerance, least_sum, idle=None):
    """Saturating tenants with these limits, the last one idle if `idle` (a limit)."""
    names = list("abcd")[:len(limits)]
    kinds = dict(zip(names, MIXES))
    alone = {name: tenants.solo_rate(name, kinds[name]) for name in names}
    for name, limit in zip(names, limits):
        tenants.limit(name, limit)
    if idle:
        tenants.limit("d", idle)
    watcher = NvmlBeside(tenants)
    begin, end, marks = tenants.together(kinds, plan.pair_s, watcher.look)
    nvml = watcher.finish()
    settled = begin + (end - begin) // 10
    shares = [share(marks[name], settled, end, alone[name]) for name in names]
    case = "+".join(str(limit) for limit in limits) + (f", {idle} idle" if idle else "")
    due = scaled(limits)
    for limit, got in zip(due, shares):
        table.within(f"{case}: {limit:.4g}", limit, got, tolerance)
    table.at_least(f"{case}: sum of what is due", 100 * sum(shares) / sum(due), least_sum)
    table.list_nvml(case, nvml["last"], nvml["pmon_mean"])
    table.raw[case] = {"shares": shares, "nvml": nvml, "status": tenants.scheduler.last, "marks": {n: thinned(marks[n], begin) for n in names}}
    for name in names + (["d"] if idle else []):
        tenants.limit(name, 100)


def beside(plan, tenants, table):
    alone = {name: tenants.solo_rate(name, "1ms") for name in "ab"}
    tenants.limit("a", 50)
    tenants.limit("b", 100)
    begin, end, marks = tenants.together({"a": "1ms", "b": "1ms"}, plan.pair_s)
    settled = begin + (end - begin) // 10
    shares = [share(marks[name], settled, end, alone[name]) for name in "ab"]
    table.within("50 beside no limit: limited", 50, shares[0], 1.0)
    table.at_least("50 beside no limit: sum", sum(shares), 97)
    table.raw["beside"] = {"shares": shares, "marks": {n: thinned(marks[n], begin) for n in "ab"}}
    tenants.limit("a", 100)


def bursty(plan, tenants, table):
    """30 % of the GPU's time: 3 ms of work, 7 ms of pause."""
    work = ("burst", "3000 7000")
    alone = tenants.solo_rate("a", work)
    cycles_alone = tenants.cycles["a"]
    tenants.limit("a", 50)
    begin, end, marks = tenants.together({"a": work}, plan.pair_s)
    table.at_least("bursty (3 of 10 ms) at 50: of its speed", share(marks["a"], begin + SECOND // 2, end, alone), 98)
    table.raw["bursty"] = {"solo_rate": alone, "marks": thinned(marks["a"], begin), "cycles_alone": cycles_alone,
                           "cycles": tenants.cycles["a"]}
    print(f"      a cycle alone: {cycles_alone}")
    print(f"      under a limit: {tenants.cycles['a']}")
    tenants.limit("a", 100)


def cycle_due(limit, natural, beside):
    """Percent that a program with that limit is due, which alone and without one comes to `natural`; None: how much it asks for beside others
    cannot be said, because it asks for hardly more than its limit, and for less when it is slowed."""
    if beside and natural < 1.2 * limit:
        return None
    return min(limit, natural)


def cycles(plan, tenants, table):
    """A program that works and pauses many times a second, at 30, alone and beside one and two that have 60 and never pause. What a program
    lacks that was billed to it (the lines `by NVML, billed`) it lost to the driver's switching between programs that run together."""
    alone = {"a": tenants.solo_rate("a", "20us")}
    for name, kind in (("b", "20us"), ("c", "1ms")):
        alone[name] = tenants.solo_rate(name, kind)
    for on, off in plan.cycles_ms:
        work = ("burst", f"{on * 1000} {off * 1000}")
        natural = 100 * tenants.solo_rate("a", work) / alone["a"]
        for beside in range(3):
            tenants.limit("a", 100)
            tenants.limit("a", 30)  # anew: what it saved since the last run is not spent in this one
            neighbours = {name: kind for name, kind in (("b", "20us"), ("c", "1ms"))[:beside]}
            for name in neighbours:
                tenants.limit(name, 60 // beside)
            watcher = NvmlBeside(tenants)
            begin, end, marks = tenants.together({"a": work, **neighbours}, plan.cycle_s, watcher.look)
            nvml = watcher.finish()
            settled = begin + (end - begin) // 10
            shares = {name: share(marks[name], settled, end, alone[name]) for name in marks}
            case = f"{on}/{off} ms at 30, beside {beside}"
            due = cycle_due(30, natural, beside)
            if due is None:
                table.listed(case, 30, shares["a"])
            else:
                table.within(case, due, shares["a"], 2.0 if plan.small else 0.7)
            for name in neighbours:
                table.listed(f"{case}: neighbour", 60 / beside, shares[name])
            table.list_nvml(case, nvml["last"], {})
            table.raw[case] = {"natural": natural, "shares": shares, "cycles": tenants.cycles["a"], "nvml": nvml["last"]}
            for name in neighbours:
                tenants.limit(name, 100)
        tenants.limit("a", 100)


def begins(plan, tenants, table):
    """1 ms of work and 1 of pause, by a program that nobody has seen alone: it begins beside one that never pauses."""
    alone = {"e": tenants.solo_rate("a", "20us"), "b": tenants.solo_rate("b", "20us")}
    tenants.start("e")
    tenants.limit("e", 30)
    tenants.limit("b", 60)
    begin, end, marks = tenants.together({"e": ("burst", "1000 1000"), "b": "20us"}, plan.cycle_s)
    settled = begin + (end - begin) // 3
    case = "1/1 ms at 30 that begins beside 1"
    table.within(case, 30, share(marks["e"], settled, end, alone["e"]), 15.0 if plan.small else 1.5)
    table.listed(f"{case}: neighbour", 60, share(marks["b"], settled, end, alone["b"]))
    table.raw[case] = {"cycles": tenants.cycles["e"], "marks": thinned(marks["e"], begin)}
    tenants.stop("e")
    tenants.limit("b", 100)


def change(plan, tenants, table):
    """10, 90, 10, each for a third."""
    alone = tenants.solo_rate("a", "1ms")
    third = 1.5 if plan.small else 3.0
    moments = []
    tenants.limit("a", 10)

    def set_limits(begin, _):
        for number, limit in ((1, 90), (2, 10)):
            time.sleep(max(0.0, (begin + number * third * SECOND - time.monotonic_ns()) / 1e9))
            moments.append(tenants.limit("a", limit))

    begin, end, marks = tenants.together({"a": "1ms"}, 3 * third, set_limits)
    trail = SECOND // 5
    up = reaches_at(marks["a"], moments[0], end, 50, trail, alone)
    late_ms = (up - trail // 2 - moments[0]) / 1e6 if up else 1e6
    table.at_most("10 to 90: new limit in force after", late_ms, 300, "ms")
    middle = share(marks["a"], moments[0] + SECOND // 2, moments[1], alone)
    table.within("10 to 90: share from 0.5 s on", 90, middle, 1.5)
    due = (10 * (moments[0] - begin) + 90 * (moments[1] - moments[0]) + 10 * (end - moments[1])) / (end - begin)
    table.within("10, 90, 10: whole run", due, share(marks["a"], begin, end, alone), 1.5)
    table.raw["change"] = {"moments_ms": [(m - begin) / 1e6 for m in moments], "marks": thinned(marks["a"], begin)}
    tenants.limit("a", 100)


def overhead(plan, tenants, table):
    """Limit 100 under nvshare against a native program. Two processes that do the same may differ by half a percent, native ones too, so fresh
    pairs are compared, in windows that take turns, and the median of the pairs counts."""
    ratios, rates_of = [], []
    for number in range(2 if plan.small else 7):
        name = f"pair-{number}"
        native = Process(tenants.config, f"native-{number}", [tenants.config.program("steady"), "--round-ps", str(tenants.round_ps)])
        native.wait_event("ready", 60)
        pair = {"native": native, "nvshare": tenants.start(name)}
        rates = {"native": [], "nvshare": []}
        for kind in ("native", "nvshare", "nvshare", "native") if number % 2 == 0 else ("nvshare", "native", "native", "nvshare"):
            begin = time.monotonic_ns() + SECOND // 20
            end = begin + int((0.2 if plan.small else 0.5) * SECOND)
            marks = pair[kind].order(tenants.order("20us", begin, end), 60)["marks"]
            settled, last = marks[len(marks) // 10][0], marks[-1][0]
            rates[kind].append((done_at(marks, last) - done_at(marks, settled)) / (last - settled))
        ratios.append(sum(rates["nvshare"]) / sum(rates["native"]))
        rates_of.append(rates)
        tenants.stop(name)
        native.close_input()
        native.expect_success(30)
    ratio = sorted(ratios)[len(ratios) // 2]
    table.at_most("limit 100, kernels of 20 us: costs", 100 * (1 - ratio), 0.5)
    table.raw["overhead"] = {"ratios": ratios, "rates": rates_of}


def drift(plan, tenants, table):
    """Four kinds of tenants, limits that move on by one tenant each time."""
    names, limits = list("abcd"), [10, 20, 30, 40]
    kinds = dict(zip(names, MIXES))
    alone = {name: tenants.solo_rate(name, kinds[name]) for name in names}
    spans = []
    memory = []
    watcher = NvmlBeside(tenants)

    def change_limits(begin, end):
        looks = threading.Thread(target=watcher.look, args=(begin, end), daemon=True)
        looks.start()
        number = 0
        while begin + number * plan.drift_change_s * SECOND < end:
            time.sleep(max(0.0, (begin + number * plan.drift_change_s * SECOND - time.monotonic_ns()) / 1e9))
            now = [limits[(number + i) % len(limits)] for i in range(len(names))]
            for name, limit in zip(names, now):
                tenants.limit(name, limit)
            spans.append((time.monotonic_ns(), now))
            memory.append(resident_kib(tenants.scheduler.process.pid))
            number += 1
        looks.join()

    device = Dmon(tenants.config)
    begin, end, marks = tenants.together(kinds, plan.drift_s, change_limits)
    samples = device.finish()
    nvml = watcher.finish()
    worst = 0.0
    for index, (since, now) in enumerate(spans):
        until = spans[index + 1][0] if index + 1 < len(spans) else end
        if until - since < SECOND:
            continue
        for name, limit in zip(names, now):
            worst = max(worst, abs(share(marks[name], since, until, alone[name]) - limit))
    table.at_most(f"four tenants, limits change every {plan.drift_change_s} s: worst off by", worst, 1.5, "points")
    if len(memory) > 2:
        table.at_most("memory of the scheduler grew by", (memory[-1] - memory[1]) / 1024, 4, "MiB")
    table.list_nvml("drift, at its end", nvml["last"], {})
    apart = [abs(tenant["nvml"] - tenant["billed"]) for look in nvml["looks"] for tenant in look.get("tenants", {}).values()]
    if apart:
        table.listed("drift: NVML and what was billed, mean apart by", 0, sum(apart) / len(apart))
    ours = [[round((t - begin) / 1e9), round(sum(share(marks[n], t, t + SECOND, alone[n]) for n in names), 2)]
            for t in range(begin, end - SECOND, SECOND)]
    table.raw["drift"] = {"spans": spans, "scheduler_kib": memory, "sum_each_second": ours, "dmon": samples, "nvml": nvml,
                          "status": tenants.scheduler.last, "marks": {n: thinned(marks[n], begin, SECOND) for n in names}}


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next((int(line.split()[1]) for line in status if line.startswith("VmRSS:")), 0)


def swapping(config, plan, table):
    """30 and 70 where memory does not fit together: a scheduler of its own, with turns of one second at least. And at most: the first
    swaps, in which host memory is made, are slow, and the turns that they would be worth are longer than the run."""
    told_mb, each_mb, block_mb = (512, 320, 16) if plan.small else (24 * 1024, 14 * 1024, 256)
    extra = {"NVSHARE_SWITCH_TIME_MODE": "auto", "NVSHARE_SWITCH_TIME_MIN": "1", "NVSHARE_SWITCH_TIME_MAX": "1"}
    if plan.small:
        extra["NVSHARE_MEMORY_RESERVE_PERCENT"] = "20"
    with Scheduler(config, None, told_mb, extra) as scheduler:
        tenants = Tenants(config, scheduler, table.result)
        memory = ("--bytes", f"{each_mb}M", "--block", f"{block_mb}M")
        tenants.start("a", *memory)
        tenants.calibrate("a", plan.lengths_us)
        alone = tenants.solo_rate("a", "1ms")
        tenants.start("b", *memory)
        tenants.limit("a", 30)
        tenants.limit("b", 70)
        begin, end, marks = tenants.together({"a": "1ms", "b": "1ms"}, plan.swap_s)
        status = scheduler.last
        for name in "ab":
            tenants.stop(name)
        moves = scheduler.movements()
    # Whole rotations: from one beginning of a's turns to another.
    starts = turn_starts(marks["a"])
    since, until = (starts[1], starts[-1]) if len(starts) > 2 else (begin, end)
    shares = [share(marks[name], since, until, alone) for name in "ab"]
    swap_ns = busy_ns([(m["t"] - m["elapsed_ns"], m["t"]) for m in moves if since <= m["t"] <= until])
    working = sum(shares)
    for limit, got in zip((30, 70), shares):
        table.within(f"30/70 swapping: {limit} of what is worked", limit, 100 * got / working if working else 0, 1.0)
    table.at_most("30/70 swapping: idle beside the swaps", idle_percent(shares, swap_ns, until - since), 3)
    table.raw["swapping"] = {"shares": shares, "swap_ns": swap_ns, "rotations": max(0, len(starts) - 2), "status": status, "moves": moves[-200:],
                             "marks": {n: thinned(marks[n], begin) for n in "ab"}}


def turn_starts(marks, pause_ns=300_000_000):
    """Where work goes on after a pause."""
    return [b[0] for a, b in zip(marks, marks[1:]) if b[0] - a[0] > pause_ns]


def busy_ns(spans):
    """The length of the union."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total


def quota(config, result):
    if config.nvsharectl is None:
        raise Skip("nvsharectl is not built")
    plan = Plan(config)
    result.figure("plan", {"kind": plan.kind, "rows": plan.rows})
    table = Table(result)
    config.launcher = "nvsharectl"
    try:
        # The stand-in's contexts are small: not what is assumed of a real one.
        with Scheduler(config, extra={"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if plan.small else None) as scheduler:
            trainer = config.repo / "test" / "gpu" / "programs" / "torch_steady.py"
            tenants = Tenants(config, scheduler, result, [config.python, str(trainer)])
            tenants.start("a")
            tenants.calibrate("a", plan.lengths_us)
            rows = {
                "single": lambda: single(plan, tenants, table),
                "sums": lambda: [several(plan, tenants, table, limits, 0.7, 98.5) for limits in plan.sums],
                "past": lambda: [several(plan, tenants, table, limits, 1.0, 98) for limits in plan.past] +
                [several(plan, tenants, table, [50, 60], 1.0, 98, idle=50)],
                "beside": lambda: beside(plan, tenants, table),
                "bursty": lambda: bursty(plan, tenants, table),
                "cycles": lambda: cycles(plan, tenants, table),
                "begins": lambda: begins(plan, tenants, table),
                "change": lambda: change(plan, tenants, table),
                "overhead": lambda: overhead(plan, tenants, table),
                "drift": lambda: drift(plan, tenants, table),
            }
            if any(row in plan.rows for row in ("sums", "past", "beside", "cycles", "begins", "drift")):
                for name in "bcd":
                    tenants.start(name)
            for row in plan.rows:
                if row not in rows:
                    continue
                if config.left() < 20 and not plan.small:
                    result.figure(f"left out: {row}", f"{config.left():.0f} s left")
                    result.require(f"row {row} was run", 0, "==", 1)
                    continue
                rows[row]()
            for name in list(tenants.processes):
                tenants.stop(name)
            result.figure("scheduler", scheduler.summary())
        if "swapping" in plan.rows:
            swapping(config, plan, table)
        result.require("rows in the table", len(table.rows), ">=", len(plan.rows))
    finally:
        table.finish()
