"""Check deaths_mps: SIGKILL and SIGSTOP of programs under the scheduler's MPS daemon, of that daemon and of the scheduler, at random moments.
Programs on one MPS server share its fate, so a death may take others along: those end with an error, nobody computes wrongly, the next ones
work, and no GPU memory stays behind."""
import collections
import os
import random
import shutil
import signal
import time

from checks.deaths import SEEDS, used_bytes
from harness import MIB, Process, Scheduler, Skip

KINDS = {"kill": 5, "stop": 6, "daemon": 2, "scheduler": 1}
BEGINS_S = 1.5
# What may take others along, for how long after it, and with which error: that a program which worked beside was killed, that the daemon is gone.
TAKES_ALONG = ("kill", "daemon")
TAKEN_ALONG_S = 10
TAKEN_ALONG_BY = ("returned 700", "returned 806")
BY_THE_STAND_IN = ("returned 999",)


def is_explained(took_along_at, ended_at, words, small):
    """A program's end with an error beside a strike: soon after one that may take others along, and with the error that this gives."""
    errors = TAKEN_ALONG_BY + (BY_THE_STAND_IN if small else ())
    return took_along_at is not None and ended_at - took_along_at <= TAKEN_ALONG_S and any(error in words for error in errors)


class Jobs:
    def __init__(self, config):
        self.config = config
        self.started = 0
        size, rounds = (("200M", "32M", "64M"), 30) if config.small else (("4G", "512M", "1G"), 1500)
        self.shape = ["--bytes", size[0], "--largest", size[1], "--sync-bytes", size[2], "--rounds", rounds]

    def start(self, seed, scheduler):
        self.started += 1
        argv, environment = [self.config.program("mixer"), *self.shape, "--seed", seed], None
        if scheduler:
            environment = scheduler.program_environment()
            environment.pop("LD_PRELOAD", None)
            argv = [self.config.nvsharectl, "run", "--name", f"job-{seed}", "--", *argv]
        return Process(self.config, f"mps{self.started}-seed{seed}", argv, environment)


def checksum(process):
    return next((record["checksum"] for record in process.records if "checksum" in record), None)


class Striker:
    def __init__(self, config, jobs, scheduler, due, seed):
        self.jobs, self.scheduler, self.due = jobs, scheduler, due
        self.random = random.Random(seed)
        self.running = {each: jobs.start(each, scheduler) for each in SEEDS}
        self.struck = dict.fromkeys(KINDS, 0)
        self.last, self.took_along_at, self.small = "nothing", None, config.small
        self.finished, self.wrong, self.unexplained = collections.Counter(), [], []
        self.taken_along = collections.Counter()  # (what was struck, the first words of the error)
        self.attached = 0

    def settle(self, seed):
        """What came of a job that has ended; another takes its place."""
        job = self.running[seed]
        status = job.wait(1)
        if status == 0:
            self.finished[seed] += 1
            if checksum(job) != self.due[seed]:
                self.wrong.append(job.name)
        else:
            words = job.tail(2)[-160:]
            if not is_explained(self.took_along_at, job.end, words, self.small):
                self.unexplained.append(f"{job.name}: {status}, {words}")
            self.taken_along[f"{self.last}: {words}"] += 1
        self.running[seed] = self.jobs.start(seed, self.scheduler)

    def settle_ended(self):
        for seed, job in list(self.running.items()):
            if job.end is not None:
                self.settle(seed)

    def victims(self):
        report = self.scheduler.last or {}
        names = {tenant["id"]: tenant["name"] for tenant in report.get("tenants", [])}
        turns = {names.get(client["tenant"]): client["turns"] for client in report.get("clients", [])}
        self.attached += sum(client["mps"] for client in report.get("clients", []))
        return [seed for seed, job in self.running.items() if job.end is None and turns.get(f"job-{seed}", 0) > 0]

    def strike(self):
        time.sleep(self.random.uniform(0.05, 1.0))
        self.settle_ended()
        victims = self.victims()
        kind = self.random.choices(list(KINDS), KINDS.values())[0]
        daemon = next((each["pid"] for each in (self.scheduler.last or {}).get("mps", []) if each["pid"] > 0), None)
        if (kind in ("kill", "stop") and not victims) or (kind == "daemon" and daemon is None):
            return
        # `run` starts a scheduler where there is none: those that begin just now have to have found this one.
        if kind == "scheduler" and any(job.end is None and time.monotonic() - job.begin < BEGINS_S for job in self.running.values()):
            return
        self.struck[kind] += 1
        self.last = kind
        if kind in TAKES_ALONG:
            self.took_along_at = time.monotonic()
        if kind == "scheduler":
            return self.scheduler.restart()
        if kind == "daemon":
            try:
                return os.kill(daemon, signal.SIGKILL)
            except ProcessLookupError:
                return None
        seed = self.random.choice(victims)
        job = self.running[seed]
        if kind == "stop":
            job.kill(signal.SIGSTOP)
            time.sleep(self.random.uniform(0.05, 0.8))
            return job.kill(signal.SIGCONT)
        job.kill(signal.SIGKILL)
        job.wait(30)
        if checksum(job) is not None:  # it was quicker
            self.finished[seed] += checksum(job) == self.due[seed]
        self.running[seed] = self.jobs.start(seed, self.scheduler)
        return None

    def let_all_finish(self, patience_s):
        """Each comes to its end once more, undisturbed: one that was taken along is started again."""
        wanted = {seed: self.finished[seed] + 1 for seed in SEEDS}
        limit = time.monotonic() + patience_s
        while time.monotonic() < limit and any(self.finished[seed] < wanted[seed] for seed in SEEDS):
            self.settle_ended()
            time.sleep(0.05)
        return [seed for seed in SEEDS if self.finished[seed] < wanted[seed]]


def deaths_mps(config, result):
    if config.nvsharectl is None or shutil.which("nvidia-cuda-mps-control", path=config.environment.get("PATH")) is None:
        raise Skip("there is no nvsharectl, or no nvidia-cuda-mps-control in PATH")
    jobs = Jobs(config)
    before = used_bytes(config, "before-mps")
    due = {}
    for seed in SEEDS:
        process = jobs.start(seed, None)
        process.expect_success(60)
        due[seed] = checksum(process)
        result.figure(f"alone, seed {seed}, s", round(process.end - process.begin, 2))
    seed = config.seed if config.seed is not None else int.from_bytes(os.urandom(4), "little")
    result.figure("seed", seed)
    print(f"      deaths_mps: --seed {seed}", flush=True)
    extra = {"NVSHARE_MPS": "on", **({"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if config.small else {})}
    told_mb = 448 if config.small else 9 * 1024  # one fits, two do not
    with Scheduler(config, 0.3 if config.small else 1.0, told_mb, extra) as scheduler:
        striker = Striker(config, jobs, scheduler, due, seed)
        enough = time.monotonic() + max(5, min(config.death_seconds, config.left() - 60))
        while sum(striker.struck.values()) < config.count and time.monotonic() < enough:
            striker.strike()
        struck = dict(striker.struck)
        late = striker.let_all_finish(40)
        result.figure("struck", struck)
        result.figure("came to their end", dict(striker.finished))
        result.figure("ended with an error beside", dict(striker.taken_along))
        result.figure("clients attached, seen at strikes", striker.attached)
        result.figure("scheduler", scheduler.summary())
        for job in striker.running.values():
            job.kill()
        for job in striker.running.values():
            job.wait(10)
        until = time.monotonic() + 5
        while scheduler.ask({"request": "status"})["clients"] and time.monotonic() < until:
            time.sleep(0.1)
    Process.end_all()
    limit = time.monotonic() + 10
    after = used_bytes(config, "after-mps")
    while after > before + 16 * MIB and time.monotonic() < limit:
        after = used_bytes(config, "after-mps")
    result.require("struck in all", sum(struck.values()), ">=", min(config.count, 60))
    result.require("programs attached", striker.attached, ">=", 1)
    result.require("did not come to their end undisturbed", late, "==", [])
    result.require("another result than alone", striker.wrong, "==", [])
    result.require("ended with an error that no strike explains", striker.unexplained, "==", [])
    result.require("GPU memory left behind", (after - before) / MIB, "<=", 16, "MiB")
