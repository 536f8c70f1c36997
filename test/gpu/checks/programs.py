"""The check `programs`: many kinds of CUDA programs, three at once on a GPU told too small for them, each compared with itself alone.

A stage is a scheduler of its own with three programs that start together with three native twins of theirs. The shared three work until each
has been switched often enough; then each twin repeats exactly as many units of work. Several stages go on at the same time: told a small GPU,
each scheduler leaves the rest of the card to the others."""
import concurrent.futures
import dataclasses
import shutil
import subprocess
import time

from harness import GIB, MIB, Process, Sampler, Scheduler, Skip, median, parallel, prewarm_host

SWITCHES = 6
CONTEXT_ROOM = 1100 * MIB  # of one process: its context and modules, with plenty to spare
START_S = 170              # torch.compile under load is the slowest
SHARED_S = 75
SOLO_S = 90


@dataclasses.dataclass
class Program:
    file: str
    framework: str  # what the table of NVML's bytes goes by
    needs: str = ""  # a Python module, or nvcc
    words: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    flags: tuple = ()  # for nvcc
    contexts: int = 1  # of all its processes
    contexts_of_one: int = 1  # of the process that has most


def torch(file, contexts=1, **environment):
    return Program(f"{file}.py", "PyTorch", "torch", environment=environment, contexts=contexts)


def driver(file, contexts=1, contexts_of_one=1):
    """Needs nothing but the driver: runs on the stand-in GPU, too."""
    return Program(f"{file}.py", "driver API", contexts=contexts, contexts_of_one=contexts_of_one)


def runtime(file, *flags):
    return Program(f"{file}.cu", "CUDA runtime", "nvcc", flags=flags)


# Neighbours in this list run together, three by three, so kinds alternate. The slowest to start comes first.
PROGRAMS = {
    "torch_compile": torch("torch_compile"),
    "jax_preallocated": Program("jax_program.py", "JAX", "jax", ("--preallocate", "1")),
    "static_runtime": runtime("runtime_static"),
    "torch_expandable": torch("torch_shapes", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    "cupy": Program("cupy_program.py", "CuPy", "cupy"),
    "driver_callbacks": driver("driver_callbacks"),
    "torch_ipc": torch("torch_ipc", contexts=2),
    "launches": runtime("runtime_launches"),
    "torch_amp": torch("torch_amp"),
    "torch_malloc_async": torch("torch_shapes", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
    "device_reset": runtime("runtime_reset"),
    "torch_libraries": torch("torch_libraries"),
    "torch_dataloader": torch("torch_dataloader"),
    "jax_on_demand": Program("jax_program.py", "JAX", "jax", ("--preallocate", "0")),
    "allocators": runtime("runtime_allocators"),
    "torch_generate": torch("torch_generate"),
    "numba": Program("numba_program.py", "Numba", "numba"),
    "per_thread_streams": runtime("runtime_per_thread", "--default-stream", "per-thread"),
    "torch_streams": torch("torch_streams"),
    "imitates_vllm": torch("imitates_vllm"),
    "torch_graphs": torch("torch_graphs"),
    "torch_caching": torch("torch_shapes"),
    "torch_compile_trees": torch("torch_compile_trees"),
    "driver_graphs": driver("driver_graphs"),
    "jax_cuda_async": Program("jax_program.py", "JAX", "jax", ("--preallocate", "0", "--allocator", "cuda_async")),
    "cupy_threads": Program("cupy_threads.py", "CuPy", "cupy"),
    "driver_vmm_pool": driver("driver_vmm_pool"),
    "torch_triton": torch("torch_triton"),
    "jax_platform": Program("jax_program.py", "JAX", "jax", ("--preallocate", "0", "--allocator", "platform")),
    "driver_arena": driver("driver_arena"),
    "driver_ipc_parent": driver("driver_ipc_parent", contexts=2),
    "driver_green": driver("driver_green"),
    "driver_mmap": driver("driver_mmap"),
    "driver_attach": driver("driver_attach", contexts=3, contexts_of_one=3),
}


def switches_wanted(config):
    return 2 if config.small else SWITCHES


def chosen(config):
    names = [name for name in config.only_programs.split(",") if name] or ([name for name, program in PROGRAMS.items() if program.framework == "driver API"] if config.small else list(PROGRAMS))
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        raise ValueError(f"no program {', '.join(unknown)}; there are: {', '.join(PROGRAMS)}")
    return names


def groups_of(names, same):
    """Three different ones at a time, the last group filled up from the front; or three of each."""
    if same:
        return [[name] * 3 for name in names]
    count = -(-len(names) // 3) * 3
    filled = [names[i % len(names)] for i in range(count)]
    return [filled[i:i + 3] for i in range(0, count, 3)]


def compiler():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def compile_one(config, program):
    """The path of the compiled program, or why there is none."""
    source = config.repo / "test" / "gpu" / "programs" / program.file
    target = config.work / source.stem
    build = Process(config, f"nvcc-{source.stem}", [compiler(), "-std=c++17", "-O2", "-cudart", "static", "-arch=native", *program.flags,
                                                    "-o", target, source])
    return str(target) if build.wait(120) == 0 else RuntimeError(build.tail())


def find_modules(config, names):
    """Which of the Python modules this machine has."""
    script = "import importlib.util, sys; print(' '.join(n for n in sys.argv[1:] if importlib.util.find_spec(n)))"
    answer = subprocess.run([config.python, "-c", script, *names], capture_output=True, text=True, timeout=60, env=config.environment, check=True)
    return set(answer.stdout.split())


def prepare(config, names):
    """For each program its command line; or a Skip that says what this machine lacks, or the compiler's complaint as a RuntimeError."""
    wanted = {name: PROGRAMS[name] for name in names}
    found = find_modules(config, sorted({p.needs for p in wanted.values()} - {"", "nvcc"}))
    compiled = {}
    if compiler():
        sources = {p.file: p for p in wanted.values() if p.needs == "nvcc"}
        compiled = dict(zip(sources, parallel([lambda p=p: compile_one(config, p) for p in sources.values()])))
    commands = {}
    for name, program in wanted.items():
        if program.needs == "nvcc":
            path = compiled.get(program.file, Skip("no nvcc here"))
            commands[name] = path if isinstance(path, Exception) else [path, *program.words]
        elif program.needs and program.needs not in found:
            commands[name] = Skip(f"{config.python} has no {program.needs}")
        else:
            commands[name] = [config.python, config.repo / "test" / "gpu" / "programs" / program.file, *program.words]
    return commands


@dataclasses.dataclass
class Member:
    """One program of a stage: under nvshare, and its native twin."""
    label: str
    program: Program
    argv: list
    row: dict
    shared: Process = None
    solo: Process = None
    turns_before: int = 0
    over: bool = False  # failed or skipped; the others go on

    def fail(self, text):
        self.row.setdefault("error", str(text)[-700:])
        self.drop()

    def drop(self):
        self.over = True
        for process in (self.shared, self.solo):
            if process is not None and process.end is None:
                process.kill()


def announced(process):
    return process.wait_record(lambda record: record.get("event") in ("ready", "skip"), START_S)


def tell(process, line):
    try:
        process.popen.stdin.write(line + "\n")
        process.popen.stdin.flush()
    except OSError as error:
        raise RuntimeError(f"{process.name} takes no orders any more ({error}): {process.tail()}") from error


def result_record(process, timeout):
    return process.wait_record(lambda record: record.get("event") == "result", timeout)


def reports_of(scheduler, label):
    """The last report of each client that the tenant of that name ever had."""
    tenants = {t["id"] for t in scheduler.tenants.values() if t.get("name") == label}
    return [client for client in list(scheduler.clients.values()) if client.get("tenant") in tenants]


def turns_of(scheduler, label):
    """Of the tenant's busiest process; one that resets its device may have been several clients."""
    by_process = {}
    for client in reports_of(scheduler, label):
        by_process[client["pid"]] = by_process.get(client["pid"], 0) + client.get("turns", 0)
    return max(by_process.values(), default=0)


def each_member(members, call):
    """`call` for every member that still goes on, at once; what it raises is that member's failure alone."""
    def guarded(member):
        try:
            call(member)
        except (RuntimeError, TimeoutError, OSError, ValueError) as error:
            member.fail(error)

    parallel([lambda m=m: guarded(m) for m in members if not m.over])


def start_members(config, scheduler, members, held):
    for number, member in enumerate(members):
        words = [*member.argv, "--seed", str(number + 1), "--held", str(held)]
        run = [config.nvsharectl, "run", "--name", member.label, "--", *words]
        extra = member.program.environment
        environment = {**config.environment, "NVSHARE_RUNTIME_DIR": str(scheduler.runtime), "NVSHARE_LIBRARY": str(config.library),
                       "NVSHARE_LOG_LEVEL": config.library_log, **extra}
        member.shared = Process(config, f"{member.label}-shared", run, environment)
        member.solo = Process(config, f"{member.label}-solo", words, {**config.environment, **extra})

    def ready(member):
        for process in (member.shared, member.solo):
            record = announced(process)
            if record["event"] == "skip":
                member.row["skipped"] = record["reason"]
                member.drop()
                return
            member.row["held"] = record["held"]

    each_member(members, ready)


def share_until_switched(config, scheduler, members):
    """Lets the shared ones work until each has been switched often enough, or the time is over."""
    begin = time.monotonic()
    time.sleep(0.25)  # so that the last report is not older than what is counted from here
    for member in members:
        member.turns_before = turns_of(scheduler, member.label)
    each_member(members, lambda member: tell(member.shared, "go"))
    limit = begin + min(SHARED_S, max(5, config.left() - 30))
    while time.monotonic() < limit:
        going = [m for m in members if not m.over]
        for member in going:
            member.row["switches"] = turns_of(scheduler, member.label) - member.turns_before
            if member.shared.end is not None:
                member.fail(f"ended with {member.shared.popen.returncode} in mid-work: {member.shared.tail()}")
        if all(m.row["switches"] >= switches_wanted(config) for m in going):
            break
        time.sleep(0.1)
    each_member(members, lambda member: tell(member.shared, "stop"))

    def finish(member):
        record = result_record(member.shared, 60)
        member.row.update(units=record["units"], shared_s=record["work_s"], shared=record["checksum"], shared_value=record.get("value"))
        member.shared.expect_success(30)

    each_member(members, finish)
    return time.monotonic() - begin


def repeat_alone(config, member, process, key):
    tell(process, f"go {member.row['units']}")
    record = result_record(process, SOLO_S)
    member.row.update({f"{key}_s": record["work_s"], key: record["checksum"], f"{key}_value": record.get("value")})
    process.expect_success(30)


def repeat_once_more(config, member, held, number):
    """Shared and alone differ: does alone differ from itself as well?"""
    words = [*member.argv, "--seed", str(number + 1), "--held", str(held)]
    again = Process(config, f"{member.label}-again", words, {**config.environment, **member.program.environment})
    announced(again)
    repeat_alone(config, member, again, "again")


def judge(row):
    """Equal to solo; where two solos differ, no further from one of them than they are from each other."""
    if "shared" not in row or "solo" not in row:
        return False
    if row["shared"] == row["solo"]:
        return True
    if row.get("again", row["solo"]) == row["solo"] or row.get("shared_value") is None:
        return False
    apart = abs(row["solo_value"] - row["again_value"])
    return min(abs(row["shared_value"] - row[key]) for key in ("solo_value", "again_value")) <= apart


def gap_of(scheduler, member):
    """NVML's bytes minus the counted ones, while the program worked: the scheduler compares the two when nothing moves."""
    tenants = {t["id"] for t in scheduler.tenants.values() if t.get("name") == member.label}
    rows = {}
    for report in scheduler.history:
        for client in report["clients"]:
            if client.get("tenant") in tenants and client.get("overhead", 0) > 0 and client.get("resident", 0) > 0:
                rows.setdefault(client["pid"], []).append((client["overhead"], client["resident"], client.get("unswappable", 0)))
    found = []
    for values in rows.values():
        overhead, resident, unswappable = values[-1]
        found.append({"nvml_minus_counted": overhead, "counted": resident, "unswappable": unswappable,
                      "highest": max(v[0] for v in values), "median": median([v[0] for v in values])})
    return max(found, key=lambda f: f["counted"], default=None)


def run_stage(config, number, names, commands, held, told_mb, turn_s):
    """The rows of one stage's programs."""
    members = []
    for at, name in enumerate(names):
        row = {"program": name, "stage": number, "framework": PROGRAMS[name].framework}
        members.append(Member(f"{name}-{number}{at}", PROGRAMS[name], commands[name], row))
    rows = [member.row for member in members]
    if config.left() < 45:
        for member in members:
            member.row.setdefault("error", f"left out: {config.left():.0f} s were left")
        return rows
    contexts = sum(m.program.contexts for m in members)
    told = told_mb if told_mb else 500 + (contexts * CONTEXT_ROOM + held + 256 * MIB) // MIB
    with Scheduler(config, turn_s, told, {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else None) as scheduler:
        begin = time.monotonic()
        try:
            start_members(config, scheduler, members, held)
            started = time.monotonic()
            shared_s = share_until_switched(config, scheduler, members)
            each_member(members, lambda member: repeat_alone(config, member, member.solo, "solo"))
            for at, member in enumerate(members):
                if not member.over and member.row["shared"] != member.row["solo"] and config.left() > 60:
                    each_member([member], lambda m, at=at: repeat_once_more(config, m, held, at))
            for member in members:
                describe(scheduler, member)
                member.row["stage_s"] = {"start": round(started - begin, 1), "shared": round(shared_s, 1), "told_mb": told}
        finally:
            for member in members:
                member.drop()
    return rows


def describe(scheduler, member):
    """What the scheduler and the library said of it, for the row."""
    row = member.row
    row["equal"] = row.get("shared") == row.get("solo") is not None
    row["nvml"] = gap_of(scheduler, member)
    wanted = ("turns", "drops", "unanswered", "failed_drains", "allocated", "unswappable", "swapped_out_total", "overhead", "state", "waiting_for")
    row["clients"] = [{key: client.get(key) for key in wanted} for client in reports_of(scheduler, member.label)]
    said = member.shared.log_path.read_text(errors="replace").splitlines()
    row["nvshare_said"] = [line[:300] for line in said if line.startswith("nvshare[")][-8:]


def bare_context(config):
    """NVML's bytes of a process that has a context and next to nothing else."""
    with Sampler(config, "context") as sampler:
        holder = Process(config, "context", [config.program("holder"), "--leave", "1024G"])
        holder.wait_event("holding", 60)
        time.sleep(0.5)
        holder.close_input()
        holder.wait(30)
    return sampler.figures.get("process_peaks", {}).get(str(holder.pid))


def stages_that_fit(config, held, told_mb_about):
    """A stage takes what its scheduler was told, and its native twins as much each as they hold."""
    if config.small:
        return 1
    smi = shutil.which("nvidia-smi")
    free_mb = 0
    if smi:
        answer = subprocess.run([smi, "--query-gpu=memory.free", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30,
                                check=False)
        free_mb = int((answer.stdout.split() or ["0"])[0])
    each_mb = told_mb_about + 3 * (held + CONTEXT_ROOM) // MIB
    return max(1, min(config.stages, free_mb // each_mb if free_mb else 1))


def programs(config, result):
    """Every program, three at once, on GPUs told too small; equal to the same program alone."""
    if config.nvsharectl is None or config.library is None:
        raise Skip("nvsharectl or libnvshare.so is not built")
    names = chosen(config)
    held = 96 * MIB if config.small else int(config.held_gib * GIB)
    told_mb = 200 if config.small else None
    turn_s = 0.2 if config.small else 0.5
    context = result.figure("bare_context", bare_context(config))
    commands = prepare(config, sorted(set(names)))
    rows = []
    for name, why in commands.items():
        if isinstance(why, Exception):
            rows.append({"program": name, "skipped" if isinstance(why, Skip) else "error": str(why)})
    names = [name for name in names if not isinstance(commands[name], Exception)]
    groups = groups_of(names, config.same) if names else []
    stages = result.figure("stages_at_once", stages_that_fit(config, held, (held + 3 * CONTEXT_ROOM) // MIB + 756))
    result.figure("held_by_each", held)
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, min(96 * GIB, stages * 3 * (held + 2 * GIB))))
    with concurrent.futures.ThreadPoolExecutor(stages) as pool:
        futures = [pool.submit(run_stage, config, number, group, commands, held, told_mb, turn_s) for number, group in enumerate(groups)]
        for group, future in zip(groups, futures):
            try:
                rows += future.result()
            except Exception as error:  # one stage's harness failing must not hide the others' rows
                rows += [{"program": name, "error": f"{type(error).__name__}: {error}"} for name in group]
            result.figure("programs", rows)
    for row in rows:
        if "skipped" in row:
            continue
        label = row["program"]
        result.require(f"{label}: as alone", judge(row) and "error" not in row, "==", True)
        result.require(f"{label}: switches", row.get("switches"), ">=", switches_wanted(config))
    result.figure("skipped", {row["program"]: row["skipped"] for row in rows if "skipped" in row})
    result.require("programs that ran", sum("skipped" not in row for row in rows), ">=", 1)
    table = nvml_table(rows, context)
    result.figure("nvml_minus_counted", table)
    for row in table:
        if row["beyond_context"] is not None:
            bound = max(300 * MIB, 0.1 * row["counted"])
            result.require_time(f"{row['program']}: NVML beyond counted and context", row["beyond_context"] / MIB, "<=", bound / MIB, "MiB")


def nvml_table(rows, context):
    """One line a program. Contexts of its own are nobody's fault, so they are taken off."""
    table = []
    for row in rows:
        seen = row.get("nvml")
        if not seen or "skipped" in row:
            continue
        # What has several contexts has them not all the time: at its most.
        contexts = PROGRAMS[row["program"]].contexts_of_one
        measured = seen["highest" if contexts > 1 else "nvml_minus_counted"]
        beyond = measured - contexts * context if context is not None else None
        table.append({"program": row["program"], "framework": row["framework"], **seen, "beyond_context": beyond})
    return table
