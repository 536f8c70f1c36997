"""Checks of host memory: host_limits (a container's memory limit), host_budget (little on the whole node), fork_cost."""
import os
import pathlib
import subprocess
import time

from checks.swap import SMALL, mixer, result_of
from harness import GIB, MIB, Process, Scheduler, Skip, parallel, prewarm_host, wait_all


class Cgroup:
    """A group of processes with a limit on its memory, version 2 or 1, removed at the end. Skip where this machine does not let us."""

    def __init__(self, root, version, name, limit):
        self.version = version
        self.folder = None
        folder = root / f"nvshare-check-{os.getpid()}-{name}"
        try:
            if version == 2 and "memory" not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text("+memory")
            folder.mkdir()
            self.folder = folder
            (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(limit))
        except OSError as error:
            self.remove()
            raise Skip(f"no memory limit can be set in {root}: {error}") from error

    def command(self, argv):
        """argv as a command that first moves itself into the group."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *map(str, argv)]

    def figures(self):
        """The most that was used, and how many processes the kernel killed for memory."""
        peak = self._number("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")
        events = self._text("memory.events" if self.version == 2 else "memory.oom_control")
        killed = next((int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill ")), None)
        return {"version": self.version, "peak": peak, "oom_kill": killed}

    def _text(self, name):
        try:
            return (self.folder / name).read_text()
        except OSError:
            return ""

    def _number(self, name):
        text = self._text(name).strip()
        return int(text) if text.isdigit() else None

    def remove(self):
        if self.folder is None:
            return
        for _ in range(50):  # until the kernel has let go of the last process
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)


class CgroupMount:
    """Where groups with memory limits can be made: where the machine has them mounted, else mounted here for as long as the block lasts."""

    def __init__(self, config):
        self._place = config.work / "cgroup"
        self._mounted = False

    def __enter__(self):
        for line in pathlib.Path("/proc/mounts").read_text().splitlines():
            _, where, kind, options = line.split()[:4]
            if kind == "cgroup2" and self._has_memory(pathlib.Path(where)):
                return pathlib.Path(where), 2
            if kind == "cgroup" and "memory" in options.split(","):
                return pathlib.Path(where), 1
        self._place.mkdir(exist_ok=True)
        for words, version in ((["-t", "cgroup2"], 2), (["-t", "cgroup", "-o", "memory"], 1)):
            if subprocess.run(["mount", *words, "none", self._place], capture_output=True, check=False).returncode == 0:
                self._mounted = True
                if version == 1 or self._has_memory(self._place):
                    return self._place, version
                self.__exit__()
        raise Skip("no cgroup with a memory controller is mounted, and none can be")

    def __exit__(self, *unused):
        if self._mounted:
            subprocess.run(["umount", self._place], capture_output=True, check=False)
            self._mounted = False

    @staticmethod
    def _has_memory(root):
        try:
            return "memory" in (root / "cgroup.controllers").read_text().split()
        except OSError:
            return False


def solo_results(config, name, count, held, seconds, shape):
    """What the programs compute without nvshare, and in how many rounds."""
    solos = [mixer(config, f"{name}-solo{seed}", None, held, "--seed", seed, "--seconds", seconds, *shape) for seed in range(1, count + 1)]
    wait_all(solos, seconds * 4 + 60)
    return [result_of(solo) for solo in solos]


def waited_for(scheduler):
    """Every reason for waiting that status gave, with how often it was seen."""
    found = {}
    for report in scheduler.history:
        for client in report["clients"]:
            if client.get("waiting_for"):
                found[client["waiting_for"]] = found.get(client["waiting_for"], 0) + 1
    return found


def in_cgroups(config, result, root, version, held, told_mb, turn_s, shape):
    """Two programs that do not fit together, each in a group with 2 GiB of host memory."""
    limit = 2 * GIB
    groups = []
    try:
        for seed in (1, 2):
            groups.append(Cgroup(root, version, str(seed), limit))
        solos = solo_results(config, "cgroup", 2, held, 2 if config.small else 6, shape)
        with Scheduler(config, turn_s, told_mb, SMALL if config.small else None) as scheduler:
            pair = []
            for seed, (solo, group) in enumerate(zip(solos, groups), 1):
                argv = [config.program("mixer"), "--bytes", held, "--seed", seed, "--rounds", solo["rounds"], *shape]
                pair.append(Process(config, f"limited{seed}", group.command(scheduler.command(argv)), scheduler.program_environment()))
            try:
                wait_all(pair, 120)
            finally:
                result.figure("cgroups", [group.figures() for group in groups])
                result.figure("cgroups_scheduler", scheduler.summary())
            switches = scheduler.gpu().get("switches", 0)
        for seed, (solo, process) in enumerate(zip(solos, pair), 1):
            result.require(f"limited to 2 GiB, program {seed}: as alone", result_of(process)["checksum"], "==", solo["checksum"])
        result.require("limited to 2 GiB: killed for memory", [group.figures()["oom_kill"] for group in groups], "==", [0, 0])
        result.require("limited to 2 GiB: switches", switches, ">=", 1 if config.small else 2)
    finally:
        Process.end_all()
        for group in groups:
            group.remove()


def in_host_memory(clients):
    """Bytes that were copied out and not in again yet."""
    return sum(max(0, c.get("swapped_out_total", 0) - c.get("swapped_in_total", 0)) for c in clients)


def small_budget(config, result, held, told_mb, turn_s, shape):
    """Five programs of which one fits, and host memory for one more: four would have to lie there."""
    count = 5
    solos = solo_results(config, "budget", count, held, 1 if config.small else 8, shape)
    budget = result.figure("budget", held + held // 8 + 64 * MIB)  # what holds a program's bytes is a little larger than they are
    extra = {"NVSHARE_HOST_MEMORY_BUDGET": str(budget), **(SMALL if config.small else {})}
    with Scheduler(config, turn_s, told_mb, extra) as scheduler:
        crowd = [mixer(config, f"budget{seed}", scheduler, held, "--seed", seed, "--rounds", solo["rounds"], *shape)
                 for seed, solo in enumerate(solos, 1)]
        try:
            wait_all(crowd, 180)
        finally:
            reasons = result.figure("budget_waited_for", waited_for(scheduler))
            result.figure("budget_scheduler", scheduler.summary())
            # Not what status calls swapped: that has memory in it which was never filled, and takes no room anywhere.
            result.figure("budget_in_host_memory_most", max((in_host_memory(report["clients"]) for report in scheduler.history), default=0))
    for seed, (solo, process) in enumerate(zip(solos, crowd), 1):
        result.require(f"small host budget, program {seed}: as alone", result_of(process)["checksum"], "==", solo["checksum"])
    result.require("small host budget: bytes in host memory", result.figures["budget_in_host_memory_most"], "<=", budget)
    result.require("small host budget: status says why they wait", sum("host" in reason for reason in reasons), ">=", 1)


def shape_of(config):
    return ["--largest", "16M" if config.small else "1G", "--sync-bytes", "16M" if config.small else "1G"]


def host_limits(config, result):
    """A container's memory limit, far below what its programs hold on the GPU: nobody is killed, nothing is lost."""
    held, told_mb, turn_s = (96 * MIB, 160, 0.2) if config.small else (20 * GIB, 20 * 1024 + 500 + 2 * 800 + 512, 1)
    with CgroupMount(config) as (root, version):
        if not config.small:
            result.figure("prewarm_host", prewarm_host(config, 48 * GIB))
        in_cgroups(config, result, root, version, held, told_mb, turn_s, shape_of(config))


def host_budget(config, result):
    """Little host memory on the whole node: everybody finishes, nothing is lost, status says what is waited for."""
    held, told_mb, turn_s = (64 * MIB, 120, 0.2) if config.small else (10 * GIB, 10 * 1024 + 500 + 5 * 800 + 512, 1)
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, 24 * GIB))
    small_budget(config, result, held, told_mb, turn_s, shape_of(config))


def fork_rows(process, count):
    answer = process.order(f"fork {count}", 120)
    if "error" in answer:
        raise RuntimeError(f"{process.name}: {answer['error']}")
    return answer


def fork_cost(config, result):
    """fork() of a process whose GPU memory lies in host memory, against the same process without nvshare."""
    held, told_mb = (96 * MIB, 160) if config.small else (18 * GIB, 18 * 1024 + 500 + 2 * 800 + 512)
    count = 5 if config.small else 20
    argv = [config.program("forker"), "--bytes", held]
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, 24 * GIB))
    with Scheduler(config, 0.3 if config.small else 1, told_mb, SMALL if config.small else None) as scheduler:
        native = Process(config, "forker-native", argv)
        shared = Process(config, "forker-nvshare", scheduler.command(argv), scheduler.program_environment())
        parallel([lambda p=p: p.wait_event("ready", 90) for p in (native, shared)])
        before = {"native": fork_rows(native, count), "nvshare": fork_rows(shared, count)}
        visitor = mixer(config, "visitor", scheduler, held, "--visits", 1, "--largest", "16M" if config.small else "1G")
        visitor.wait_event("filled", 90)  # had its turn: the forker's memory is in host memory now
        swapped = {"native": fork_rows(native, count), "nvshare": fork_rows(shared, count)}
        client = next((c for c in (scheduler.last or {}).get("clients", []) if "forker" in c.get("program", "")), {})
        result.figure("forker_as_seen_by_status", client)
        visitor.expect_success(90)
        answers = [process.order("touch", 90) for process in (native, shared)]
        back = {"native": fork_rows(native, count), "nvshare": fork_rows(shared, count)}
        sums = [process.order("sum", 90)["checksum"] for process in (native, shared)]
        for process in (native, shared):
            process.close_input()
            process.expect_success(60)
    result.figure("touched", answers)
    for when, rows in (("before any swap", before), ("swapped out", swapped), ("swapped in again", back)):
        result.figure(when, rows)
        result.require_time(f"{when}: fork beyond native", rows["nvshare"]["fork_ms"] - rows["native"]["fork_ms"], "<=", 10, "ms")
    result.require("host memory that was ready when it forked", client.get("host_memory", 0), ">=", held if config.small else 16 * GIB)
    result.require("checksum as native", sums[1], "==", sums[0])
