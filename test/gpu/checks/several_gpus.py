"""The checks on several GPUs: `ddp`, two PyTorch jobs over NCCL, each on all GPUs, whose memory does not fit together, also with a third job on
one GPU beside them; `two_gpus`, two such jobs of which each is one process that uses two GPUs."""
import subprocess
import time

from checks.programs import CONTEXT_ROOM, find_modules, result_record, tell, turns_of
from harness import MIB, Process, Scheduler, Skip, parallel, prewarm_host

READY_S = 120
WORK_S = 110  # the most that a repetition alone may take


def count_gpus(config):
    """By the scheduler's own means there is no asking before it runs, so by PyTorch, which the jobs need anyway."""
    probe = subprocess.run([config.python, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True, text=True, timeout=120,
                           env=config.environment, check=False)
    return int(probe.stdout) if probe.returncode == 0 else 0


class Job:
    """One tenant: the program under nvshare, and its native twin, which waits until it is told how much to repeat."""

    def __init__(self, config, scheduler, label, gpus, words, environment, visible=None):
        self.label = label
        self.row = {"job": label}
        run = [config.nvsharectl, "run", "--name", label, "--gpu", gpus, "--", *words]
        shared = {**config.environment, "NVSHARE_RUNTIME_DIR": str(scheduler.runtime), "NVSHARE_LIBRARY": str(config.library),
                  "NVSHARE_LOG_LEVEL": config.library_log, **environment}
        self.shared = Process(config, f"{label}-shared", run, shared)
        twin = {**config.environment, **environment}
        if visible is not None:
            twin["CUDA_VISIBLE_DEVICES"] = visible
        self.solo = Process(config, f"{label}-solo", words, twin)

    def wait_ready(self):
        for process in (self.shared, self.solo):
            self.row["held"] = process.wait_event("ready", READY_S)["held"]

    def finish(self):
        record = result_record(self.shared, 45)
        self.shared.expect_success(60)
        self.row.update(units=record["units"], shared_s=record["work_s"], shared=record["checksum"],
                        begin_ns=record["begin_ns"], end_ns=record["end_ns"])

    def repeat_alone(self):
        tell(self.solo, f"go {self.row['units']}")
        record = result_record(self.solo, WORK_S)
        self.solo.expect_success(60)
        self.row.update(solo_s=record["work_s"], solo=record["checksum"])


def switches_of(scheduler):
    """Of each GPU."""
    return {gpu["uuid"]: gpu.get("switches", 0) for gpu in (scheduler.last or {}).get("gpus", [])}


def fewest_since(scheduler, before):
    now = switches_of(scheduler)
    return min((now[uuid] - before.get(uuid, 0) for uuid in now), default=0)


def share(scheduler, jobs, switches, seconds):
    """The jobs work at once until each GPU has been switched so often. Returns the switches of each GPU and of the GPUs' clients."""
    time.sleep(0.25)
    before = switches_of(scheduler)
    turns_before = {job.label: turns_of(scheduler, job.label) for job in jobs}
    for job in jobs:
        tell(job.shared, "go")
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and fewest_since(scheduler, before) < switches:
        for job in jobs:
            if job.shared.end is not None:
                raise RuntimeError(f"{job.label} ended with {job.shared.popen.returncode} in mid-work: {job.shared.tail()}")
        time.sleep(0.1)
    now = switches_of(scheduler)
    for job in jobs:
        job.row["turns"] = turns_of(scheduler, job.label) - turns_before[job.label]
        tell(job.shared, "stop")
    parallel([job.finish for job in jobs])
    return {uuid: now[uuid] - before.get(uuid, 0) for uuid in now}


class Variant:
    """Two jobs of the same program on all GPUs, `third`: and one on the first GPU alone. The program is told its seed and what to hold."""

    def __init__(self, name, words, environment=None, switches=12, third=False, makespan=1.08):
        self.name, self.words, self.environment, self.switches, self.third = name, words, environment or {}, switches, third
        self.makespan = makespan  # over the sum of solo times, at most

    def start(self, config, scheduler, held):
        jobs = [Job(config, scheduler, f"{self.name}-{seed}", "all", [config.python, *self.words, "--seed", str(seed), "--held", str(held)],
                    self.environment)
                for seed in (1, 2)]
        if self.third:
            words = [config.python, config.repo / "test" / "gpu" / "programs" / "torch_amp.py", "--seed", "3", "--held", str(held)]
            jobs.append(Job(config, scheduler, f"{self.name}-third", "0", words, {}, visible="0"))
        return jobs

    def told_mb(self, config, held):
        # NCCL's buffers stay on the GPU, and model and gradients come to the ballast; with 768, 56 MiB were missing for turns.
        return 200 if config.small else 500 + ((3 if self.third else 2) * CONTEXT_ROOM + held) // MIB + 1280

    def run(self, config, result, gpus, seconds, turn_s):
        """Requires that all went as alone; between jobs of two, that they took little longer than one after the other."""
        name = self.name
        held = 96 * MIB if config.small else 3 * 1024 * MIB
        told = self.told_mb(config, held)
        with Scheduler(config, turn_s, told, {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else None) as scheduler:
            begin = time.monotonic()
            jobs = self.start(config, scheduler, held)
            try:
                parallel([job.wait_ready for job in jobs])
                ready_s = time.monotonic() - begin
                each_gpu = share(scheduler, jobs, self.switches, seconds)
                if self.third:
                    parallel([job.repeat_alone for job in jobs])
                else:  # timed, so one after the other
                    for job in jobs:
                        job.repeat_alone()
            finally:
                result.figure(f"{name}_scheduler", {"gpus": (scheduler.last or {}).get("gpus"), "clients": list(scheduler.clients.values())})
                result.figure(name, {"jobs": [job.row for job in jobs], "told_mb": told})
        rows = [job.row for job in jobs]
        makespan = (max(row["end_ns"] for row in rows) - min(row["begin_ns"] for row in rows)) / 1e9
        ratio = makespan / sum(row["solo_s"] for row in rows)
        result.figure(name, {"jobs": rows, "told_mb": told, "ready_s": ready_s, "switches_of_each_gpu": each_gpu, "makespan_s": makespan,
                             "makespan_over_sum": ratio})
        for row in rows:
            result.require(f"{row['job']}: as alone", row["shared"], "==", row["solo"])
        result.require(f"{name}: switches of each GPU", min(each_gpu.values(), default=0), ">=", self.switches)
        result.require(f"{name}: GPUs switched", len(each_gpu), "==", gpus)
        if not self.third:
            result.require_time(f"{name}: makespan over the sum of solo times", ratio, "<=", self.makespan)


def gpus_to_share(config, result):
    if config.nvsharectl is None or config.library is None:
        raise Skip("nvsharectl or libnvshare.so is not built")
    if not find_modules(config, ["torch"]):
        raise Skip(f"{config.python} has no torch")
    gpus = count_gpus(config)
    if gpus < 2:
        raise Skip(f"two GPUs at least are needed; PyTorch sees {gpus}")
    result.figure("gpus", gpus)
    result.figure("prewarm_host", prewarm_host(config, gpus * 3 * 4 * 1024 * MIB))
    return gpus


def run_variants(config, result, variants, gpus):
    failures = []
    for each in variants:
        if config.left() < 60:
            failures.append(f"{each.name}: left out, {config.left():.0f} s were left")
            continue
        # What a shared run may take: turns of that length, and as much again as half of one for each switch.
        seconds = each.switches * config.ddp_turn_s * 1.5 + 20
        try:
            each.run(config, result, gpus, min(seconds, config.left() - 40), config.ddp_turn_s)
        except (RuntimeError, TimeoutError, KeyError) as error:  # another variant is still worth its time
            failures.append(f"{each.name}: {type(error).__name__}: {error}"[:900])
        finally:
            Process.end_all()
    result.require("variants that failed", failures, "==", [])


def ddp(config, result):
    """NCCL with its own virtual memory management, with legacy IPC and a third job, and in CUDA graphs whose buffers it registers."""
    gpus = gpus_to_share(config, result)
    words = [config.repo / "test" / "gpu" / "programs" / "ddp.py", "--world", str(gpus)]
    quiet = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    variants = [
        Variant("own_vmm", words, {**quiet, "NCCL_CUMEM_ENABLE": "1"}, switches=30),
        Variant("legacy_ipc_and_third", words, {**quiet, "NCCL_CUMEM_ENABLE": "0"}, third=True),
        Variant("graphs", [*words, "--graphs"], {**quiet, "NCCL_CUMEM_ENABLE": "1", "NCCL_GRAPH_REGISTER": "1"}),
        Variant("graphs_legacy_ipc", [*words, "--graphs"], {**quiet, "NCCL_CUMEM_ENABLE": "0", "NCCL_GRAPH_REGISTER": "1"}),
    ]
    run_variants(config, result, [each for each in variants if each.name in config.ddp_variants], gpus)


def two_gpus(config, result):
    """One process on two GPUs: a pipeline, layers placed in turn, threads that change their GPU."""
    gpus = gpus_to_share(config, result)
    words = [config.repo / "test" / "gpu" / "programs" / "torch_two_gpus.py"]
    # A pipeline leaves each GPU idle in turn: two that a turn of 2 s interrupts lose more than two that always compute.
    run_variants(config, result, [Variant("one_process", words, switches=8, makespan=1.15)], gpus)
