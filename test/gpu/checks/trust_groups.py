"""Check trust_groups: two trust groups of one user have MPS daemons of their own. One program of the first is killed, which may
take its group's others down; those of the second come to their end, with what they compute alone, and the next one of the first works."""
import shutil
import time

from checks.deaths_mps import Jobs, checksum
from harness import Process, Scheduler, Skip

SEEDS = (1, 2)
GROUPS = ("red", "blue")


class Groups:
    def __init__(self, config, jobs, scheduler):
        self.jobs, self.scheduler, self.config = jobs, scheduler, config
        self.running = {}

    def start(self, group, seed):
        argv = [self.config.program("mixer"), *self.jobs.shape, "--seed", seed]
        environment = self.scheduler.program_environment()
        environment.pop("LD_PRELOAD", None)
        command = [self.config.nvsharectl, "run", "--name", f"{group}-{seed}", "--trust-group", group, "--", *argv]
        self.running[group, seed] = Process(self.config, f"{group}-{seed}", command, environment)
        return self.running[group, seed]

    def await_attached(self, count, patience_s):
        """Until so many attached programs have worked; returns the last report."""
        limit = time.monotonic() + patience_s
        while time.monotonic() < limit:
            report = self.scheduler.ask({"request": "status"})
            if sum(bool(client["mps"]) and client["turns"] > 0 for client in report["clients"]) >= count:
                return report
            time.sleep(0.05)
        raise RuntimeError(f"fewer than {count} programs attached and worked within {patience_s} s: {report['clients']}, {report['mps']}")


def trust_groups(config, result):
    if config.nvsharectl is None or shutil.which("nvidia-cuda-mps-control", path=config.environment.get("PATH")) is None:
        raise Skip("there is no nvsharectl, or no nvidia-cuda-mps-control in PATH")
    jobs = Jobs(config)
    due = {}
    for seed in SEEDS:
        process = jobs.start(seed, None)
        process.expect_success(60)
        due[seed] = checksum(process)
    jobs.shape[-1] *= 4  # so that all are there at once
    long_due = {}
    for seed in SEEDS:
        process = jobs.start(seed, None)
        process.expect_success(120)
        long_due[seed] = checksum(process)
    extra = {"NVSHARE_MPS": "on", **({"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if config.small else {})}
    with Scheduler(config, 0.3, None, extra) as scheduler:
        groups = Groups(config, jobs, scheduler)
        for group in GROUPS:
            for seed in SEEDS:
                groups.start(group, seed)
        report = groups.await_attached(4, 30)
        daemons = [each for each in report["mps"] if each["pid"] > 0]
        result.figure("daemons", daemons)
        result.require("daemons", len({each["pid"] for each in daemons}), "==", 2)
        groups.running["red", 1].kill()
        groups.running["red", 1].wait(10)
        other = groups.running["red", 2].wait(60)
        result.figure("the other one of its group", {"status": other, "words": groups.running["red", 2].tail(2)[-160:]})
        for seed in SEEDS:
            status = groups.running["blue", seed].wait(120)
            result.require(f"blue {seed} ends with", status, "==", 0)
            result.require(f"blue {seed} computed what it does alone", checksum(groups.running["blue", seed]), "==", long_due[seed])
        jobs.shape[-1] //= 4
        after = groups.start("red", 1)
        after.expect_success(60)
        result.require("the next one of the group computes what it does alone", checksum(after), "==", due[1])
        result.figure("scheduler", scheduler.summary())
    Process.end_all()
