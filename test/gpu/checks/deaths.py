"""Check deaths: SIGKILL and SIGSTOP of training jobs, and SIGKILL of the scheduler, at random moments of their swapping. Whoever lives to its end
has computed what it computes alone, and no GPU memory stays behind."""
import os
import random
import signal
import time

from checks.quota import SECOND, Tenants, done_at
from checks.training import need_torch, result_of, train
from harness import GIB, MIB, Process, Sampler, Scheduler

SEEDS = (1, 2, 3)
SHAPE = ["--dim", 1024, "--layers", 8, "--batch", 16, "--length", 256]
KINDS = ("kill", "stop", "scheduler")


class Jobs:
    """How jobs are started and what tells that one computed right: PyTorch training, or in small the mixer."""

    def __init__(self, config):
        self.config = config
        self.started = 0
        self.length = []
        if not config.small:
            need_torch(config)

    def start(self, seed, scheduler):
        self.started += 1
        name = f"job{self.started}-seed{seed}"
        if not self.config.small:
            return train(self.config, name, scheduler, *SHAPE, "--seed", seed, *(self.length or ["--seconds", 6]))
        argv = [self.config.program("mixer"), "--bytes", "200M", "--largest", "32M", "--sync-bytes", "64M", "--seed", seed, "--rounds", 30]
        return Process(self.config, name, argv, scheduler.program_environment() if scheduler else None)

    def answer(self, process):
        record = result_of(process)
        return record["checksum"] if self.config.small else record["weights_sha256"]


def used_bytes(config, name):
    with Sampler(config, name) as sampler:
        time.sleep(0.3)
    return sampler.figures["first_used"]


def swapping(scheduler, jobs):
    """Those that had a turn already: their deaths mean something."""
    turns = {client["pid"]: client["turns"] for client in (scheduler.last or {}).get("clients", [])}
    return [seed for seed, job in jobs.items() if job.end is None and turns.get(job.pid, 0) > 0]


class Killer:
    def __init__(self, config, jobs, scheduler, due, seed):
        self.config, self.jobs, self.scheduler, self.due = config, jobs, scheduler, due
        self.random = random.Random(seed)
        self.running = {s: jobs.start(s, scheduler) for s in SEEDS}
        self.done = dict.fromkeys(KINDS, 0)
        self.finished, self.wrong = 0, []

    def judge(self, seed):
        """A job that has ended by itself."""
        job = self.running[seed]
        job.expect_success(60)
        self.finished += 1
        if self.jobs.answer(job) != self.due[seed]:
            self.wrong.append(job.name)

    def renew_the_ended(self):
        for seed, job in self.running.items():
            if job.end is not None:
                self.judge(seed)
                self.running[seed] = self.jobs.start(seed, self.scheduler)

    def strike(self):
        time.sleep(self.random.uniform(0.05, 1.2))
        self.renew_the_ended()
        victims = swapping(self.scheduler, self.running)
        # The scheduler is the dearest to lose: every job connects anew, and for two seconds nobody is granted anything.
        kind = self.random.choices(KINDS, (6, 6, 1))[0] if victims else "scheduler"
        if kind == "scheduler" and not victims and self.done["scheduler"] * 8 > sum(self.done.values()):
            return
        self.done[kind] += 1
        if kind == "scheduler":
            self.scheduler.restart()
            return
        seed = self.random.choice(victims)
        job = self.running[seed]
        if kind == "stop":
            job.kill(signal.SIGSTOP)
            time.sleep(self.random.uniform(0.05, 0.8))
            job.kill(signal.SIGCONT)
            return
        job.kill(signal.SIGKILL)
        try:
            job.wait(30)
        except TimeoutError:
            self.wrong.append(f"{job.name} outlives SIGKILL")
        if job.records and job.records[-1].get("event") == "result":
            self.finished += self.jobs.answer(job) == self.due[seed]  # it was quicker
        self.running[seed] = self.jobs.start(seed, self.scheduler)


def deaths(config, result):
    jobs = Jobs(config)
    before = used_bytes(config, "before")
    due, held = {}, 0
    for seed in SEEDS:
        process = jobs.start(seed, None)
        process.expect_success(120)
        due[seed] = jobs.answer(process)
        if not config.small:
            jobs.length = ["--steps", result_of(process)["steps"]]
            held = max(held, result_of(process)["peak_reserved"])
    # One fits, two do not.
    told_mb = 448 if config.small else int((1.5 * held + 3 * 0.7 * GIB + 0.5 * GIB) / MIB)
    seed = config.seed if config.seed is not None else int.from_bytes(os.urandom(4), "little")
    result.figure("seed", seed)
    result.figure("told_mb", told_mb)
    print(f"      deaths: --seed {seed}", flush=True)
    extra = {"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if config.small else {}
    with Scheduler(config, 0.3 if config.small else 1.0, told_mb, extra) as scheduler:
        killer = Killer(config, jobs, scheduler, due, seed)
        enough = time.monotonic() + max(5, min(config.death_seconds, config.left() - 45))
        while sum(killer.done.values()) < config.count and time.monotonic() < enough:
            killer.strike()
        for seed in SEEDS:
            killer.judge(seed)
        result.figure("struck", killer.done)
        result.figure("scheduler", scheduler.summary())
    Process.end_all()
    limit = time.monotonic() + 10
    after = used_bytes(config, "after")
    while after > before + 16 * MIB and time.monotonic() < limit:
        after = used_bytes(config, "after")
    result.require("struck in all", sum(killer.done.values()), ">=", min(config.count, 60))
    result.require("jobs that came to their end", killer.finished, ">=", len(SEEDS))
    result.require("of them with another result than alone", len(killer.wrong), "==", 0)
    result.figure("wrong", killer.wrong)
    result.require("GPU memory left behind", (after - before) / MIB, "<=", 16, "MiB")


def longest_gap(marks, begin, end):
    """The longest time, in seconds, in which a program got nothing done between two moments (ns)."""
    times = [begin] + [t for t, _ in marks if begin < t < end] + [end]
    return max(later - earlier for earlier, later in zip(times, times[1:])) / SECOND


def scheduler_away(config, result):
    """Three programs that fit together and take turns. The scheduler is killed, and nobody is there for a while: each goes on."""
    away_s = 2 if config.small else 6
    told = {"NVSHARE_SHARING": "turns", **({"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else {})}
    with Scheduler(config, extra=told) as scheduler:
        tenants = Tenants(config, scheduler, result)
        tenants.start("first", "--bytes", "0")
        tenants.calibrate("first", {"20us": 20, "1ms": 1000})
        for name in ("second", "third"):
            tenants.start(name, "--bytes", "0")
        moments = {}

        def strike(begin, _):
            time.sleep(max(0.0, (begin + 2 * SECOND - time.monotonic_ns()) / SECOND))
            scheduler.kill()
            moments["killed"] = time.monotonic_ns()
            time.sleep(away_s)
            moments["back"] = time.monotonic_ns()
            scheduler.begin_again()

        begin, end, marks = tenants.together(dict.fromkeys(tenants.processes, "20us"), away_s + 5, strike)
        for name in list(tenants.processes):
            tenants.stop(name)
    parts = {"before": (begin + SECOND // 2, moments["killed"]), "away": (moments["killed"], moments["back"]), "after": (moments["back"], end)}
    gaps = {part: {name: longest_gap(marks[name], *span) for name in marks} for part, span in parts.items()}
    work = {part: {name: (done_at(marks[name], b) - done_at(marks[name], a)) / (b - a) for name in marks} for part, (a, b) in parts.items()}
    result.figure("seconds without work", gaps)
    result.figure("rounds per ns", work)
    result.require("in turns before: the longest wait", max(gaps["before"].values()), ">=", 0.05, "s")
    least = min(work["away"].values()) / max(work["away"].values())
    result.require("nobody stands still without a scheduler: longest", max(gaps["away"].values()), "<=", 1.0 if config.small else 0.3, "s")
    result.require("work done meanwhile, least of most", least, ">=", 0.3 if config.small else 0.8)
    result.require("nor when the next one comes: longest", max(gaps["after"].values()), "<=", 3.0, "s")
