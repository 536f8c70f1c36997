"""What the checks share: processes that always end, a scheduler of their own, results with requirements. Standard library only."""
import copy
import io
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import traceback

GIB = 1 << 30
MIB = 1 << 20


class Skip(Exception):
    """The check cannot run here; its text says why."""


class Config:
    """Where things are, and how large the checks are to be. `small`: for the stand-in GPU, in seconds instead of minutes."""

    def __init__(self, args):
        here = pathlib.Path(__file__).resolve()
        self.repo = here.parent.parent.parent
        self.small = args.small
        self.python = args.python
        self.variants = args.variants.split(",")
        self.seconds = args.seconds
        self.library_log = args.library_log
        self.turn_s = args.turn
        self.launcher = args.launcher
        self.only_programs = getattr(args, "only_programs", "")
        self.only_sequences = getattr(args, "only_sequences", "")
        self.stages = getattr(args, "stages", 4)
        self.same = getattr(args, "same", False)
        self.count = getattr(args, "count", 60)
        self.seed = getattr(args, "seed", None)
        self.death_seconds = getattr(args, "death_seconds", 75.0)
        self.held_gib = getattr(args, "held", 4.0)
        self.plan = getattr(args, "plan", "auto")
        self.rows = getattr(args, "rows", "")
        self.mixes = [mix.strip() for mix in getattr(args, "mixes", "").split(";") if mix.strip()]
        self.ways = [way.strip() for way in getattr(args, "ways", "").split(",") if way.strip()]
        self.mission_seconds = getattr(args, "mission_seconds", 540.0)
        self.serve_seconds = getattr(args, "serve_seconds", 120.0)
        self.skip_unchanged = getattr(args, "skip_unchanged", "on")
        self.ddp_turn_s = getattr(args, "ddp_turn", 2.0)
        self.ddp_variants = set(getattr(args, "ddp_variants", "own_vmm,legacy_ipc_and_third").split(","))
        self.out = pathlib.Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-gpu-"))
        self.deadline = time.monotonic() + args.budget
        roots = [pathlib.Path(args.root).resolve()] if args.root else [self.repo / "dist", self.repo / "build" / "release"]
        self.scheduler = self._find(roots, "bin/nvshare-scheduler")
        self.nvsharectl = self._find(roots, "bin/nvsharectl")
        self.library = self._find(roots, "lib/libnvshare.so")
        self.programs = next((root / name for root in roots for name in ("test", "gpu") if (root / name / "probe").exists()), None)
        self.former = pathlib.Path(args.former).resolve() if getattr(args, "former", "") else None
        self.simgpu = pathlib.Path(args.simgpu).resolve() if args.simgpu else None
        self.environment = dict(os.environ)
        for name in list(self.environment):
            if name.startswith("NVSHARE_") or name == "LD_PRELOAD":
                del self.environment[name]
        if self.simgpu:
            self.environment["LD_LIBRARY_PATH"] = str(self.simgpu)
            self.environment["SIMGPU_STATE"] = str(self.work / "simgpu.state")
            self.environment.setdefault("SIMGPU_MEMORY_MB", "1024")

    @staticmethod
    def _find(roots, path):
        return next((root / path for root in roots if (root / path).exists()), None)

    def of_former_version(self):
        """The same with the scheduler and the library of --former."""
        config = copy.copy(self)
        for name, path in (("scheduler", "bin/nvshare-scheduler"), ("nvsharectl", "bin/nvsharectl"), ("library", "lib/libnvshare.so")):
            found = self._find([self.former], path)
            if found is None:
                raise Skip(f"--former {self.former} has no {path}")
            setattr(config, name, found)
        return config

    def program(self, name):
        if self.programs is None:
            raise Skip("the test programs are not built: cmake --build build/release --target gpu_programs")
        return str(self.programs / name)

    def left(self):
        return self.deadline - time.monotonic()


class Process:
    """A child in a process group of its own. Its standard output is kept line by line; lines that are JSON objects become `records`."""

    alive = set()
    numbers = itertools.count()

    def __init__(self, config, name, argv, environment=None):
        self.name = name
        self.argv = [str(word) for word in argv]
        self.lines = []
        self.records = []
        self._condition = threading.Condition()
        self.log_path = config.work / f"{next(Process.numbers):03d}-{name}.log"
        self._log = open(self.log_path, "w", buffering=1)
        self._log.write("$ " + " ".join(self.argv) + "\n")
        self.begin = time.monotonic()
        self.end = None
        self.popen = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1,
            env=environment or config.environment, start_new_session=True, cwd=config.work)
        Process.alive.add(self)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self.popen.pid

    def _read(self):
        for line in self.popen.stdout:
            self._log.write(line)
            with self._condition:
                self.lines.append(line.rstrip("\n"))
                try:
                    record = json.loads(line)
                    if isinstance(record, dict):
                        self.records.append(record)
                except ValueError:
                    pass
                self._condition.notify_all()
        self.popen.wait()
        self._log.close()
        self.popen.stdout.close()
        self.close_input()
        with self._condition:
            self.end = time.monotonic()
            self._condition.notify_all()

    def wait_record(self, wanted, timeout, after=0):
        """The first record from index `after` on for which wanted(record) holds."""
        limit = time.monotonic() + timeout
        with self._condition:
            while True:
                for record in self.records[after:]:
                    if wanted(record):
                        return record
                if self.end is not None:
                    raise RuntimeError(f"{self.name} ended with {self.popen.returncode} before it said what was awaited: {self.tail()}")
                if not self._condition.wait(max(0, limit - time.monotonic())):
                    raise TimeoutError(f"{self.name} did not say what was awaited within {timeout:.0f} s")

    def wait_event(self, event, timeout):
        return self.wait_record(lambda record: record.get("event") == event, timeout)

    def order(self, text, timeout):
        """Sends one line and returns the record that answers it."""
        after = len(self.records)
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()
        return self.wait_record(lambda record: True, timeout, after)

    def wait(self, timeout):
        """The exit status; TimeoutError (and the process killed) when it does not come."""
        limit = time.monotonic() + timeout
        with self._condition:
            while self.end is None:
                if not self._condition.wait(max(0, limit - time.monotonic())) and self.end is None:
                    break
        if self.end is None:
            self.kill()
            raise TimeoutError(f"{self.name} did not end within {timeout:.0f} s and was killed")
        Process.alive.discard(self)
        return self.popen.returncode

    def expect_success(self, timeout):
        status = self.wait(timeout)
        if status != 0:
            raise RuntimeError(f"{self.name} ended with {status}; its last words: {self.tail()}")

    def close_input(self):
        try:
            self.popen.stdin.close()
        except OSError:
            pass

    def kill(self, number=signal.SIGKILL):
        try:
            os.killpg(self.popen.pid, number)
        except ProcessLookupError:
            pass

    def tail(self, count=8):
        try:
            return " | ".join(self.log_path.read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return ""

    @classmethod
    def end_all(cls):
        for process in list(cls.alive):
            process.kill()
        for process in list(cls.alive):
            try:
                process.popen.wait(10)
            except subprocess.TimeoutExpired:
                pass
            process._reader.join(10)
            cls.alive.discard(process)


class Scheduler:
    """An nvshare-scheduler with a runtime directory of its own. `told_mb`: the size that it takes the GPU for."""

    def __init__(self, config, turn_s=None, told_mb=None, extra=None):
        if config.scheduler is None or config.library is None:
            raise Skip("nvshare-scheduler or libnvshare.so is not built")
        self.config = config
        self.runtime = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=config.work))
        environment = dict(config.environment)
        environment["NVSHARE_RUNTIME_DIR"] = str(self.runtime)
        environment["NVSHARE_LOCK_DIR"] = str(self.runtime)
        environment["NVSHARE_LOG_LEVEL"] = "debug"
        environment["NVSHARE_TRACE"] = str(self.runtime / "trace")
        if turn_s is not None:
            environment["NVSHARE_SWITCH_TIME_MODE"] = "fixed"
            environment["NVSHARE_SWITCH_TIME_FIXED"] = str(turn_s)
        if told_mb is not None:
            environment["NVSHARE_GPU_PHYSICAL_MEMORY_MB"] = str(int(told_mb))
        environment.update(extra or {})
        self.environment = environment
        self.history = []  # status reports, thinned; the last one of each client stays in `clients`
        self.clients = {}
        self.tenants = {}
        self.last = None
        self.last_gpu = {}
        self._stop = threading.Event()
        self.process = Process(config, "scheduler", [config.scheduler], environment)
        self._await_socket()
        self._poller = threading.Thread(target=self._poll, daemon=True)
        self._poller.start()

    def _await_socket(self):
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            if self.process.end is not None:
                raise RuntimeError(f"the scheduler ended: {self.process.tail()}")
            try:
                self.last = self.ask({"request": "status"})
                return
            except OSError:
                time.sleep(0.02)
        raise TimeoutError("the scheduler did not open its admin socket within 20 s")

    def ask(self, request):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(str(self.runtime / "admin" / "admin.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
        return json.loads(answer)

    def _poll(self):
        while not self._stop.wait(0.1):
            try:
                report = self.ask({"request": "status"})
            except (OSError, ValueError):
                continue
            self.last = report
            self.last_gpu = (report.get("gpus") or [self.last_gpu])[0]
            for client in report.get("clients", []):
                self.clients[client["id"]] = client
            for tenant in report.get("tenants", []):
                self.tenants[tenant["id"]] = tenant
            self.history.append({"t": time.monotonic_ns(), "gpus": report.get("gpus", []), "clients": report.get("clients", [])})

    def program_environment(self, **more):
        """The environment of a program that runs under nvshare with this scheduler."""
        environment = dict(self.config.environment)
        environment["NVSHARE_RUNTIME_DIR"] = str(self.runtime)
        if self.config.launcher == "preload":
            environment["LD_PRELOAD"] = str(self.config.library)
        environment["NVSHARE_LOG_LEVEL"] = self.config.library_log
        environment.update(more)
        return environment

    def command(self, argv):
        """argv as the chosen launcher starts it: `nvsharectl run --` or plainly (the environment then preloads the library)."""
        if self.config.launcher != "nvsharectl":
            return argv
        if self.config.nvsharectl is None:
            raise Skip("nvsharectl is not built")
        return [self.config.nvsharectl, "run", "--", *argv]

    def gpu(self):
        """The last report on the GPU; also after the last client has left."""
        return self.last_gpu

    def drops(self):
        return sum(client.get("drops", 0) for client in self.clients.values())

    def summary(self):
        """For the result: the GPU's last report and each client's last one."""
        return {"gpu": self.gpu(), "clients": list(self.clients.values())}

    def movements(self):
        """Every finished movement of memory, from the scheduler's trace (scheduler/trace.h). Ends the scheduler: the trace is whole then."""
        self.stop()
        found = []
        try:
            lines = (self.runtime / "trace").read_text(errors="replace").splitlines()
        except OSError:
            return found
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("event") == "SwapProgressed" and record.get("finished") and record.get("copied", 0) > 0:
                found.append({"t": record.get("now"), "client": record.get("client"), "out": bool(record.get("out")),
                              "copied": record["copied"], "elapsed_ns": record.get("elapsed", 0)})
        return found

    def restart(self):
        """SIGKILL, and a new one in its place; programs go on and connect anew."""
        self.kill()
        self.begin_again()

    def kill(self):
        self.process.kill(signal.SIGKILL)
        self.process.wait(10)

    def begin_again(self):
        self.process = Process(self.config, "scheduler", [self.config.scheduler], self.environment)
        self._await_socket()

    def stop(self):
        self._stop.set()
        if self.process.end is None:
            self.process.kill(signal.SIGTERM)
            try:
                self.process.wait(10)
            except TimeoutError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()


class Sampler:
    """GPU memory by NVML every 5 ms, as long as the block lasts; afterwards `figures` and the raw `samples`."""

    def __init__(self, config, name):
        self.path = config.work / f"samples-{name}.jsonl"
        argv = [config.program("sampler"), "--interval-us", "5000", "--out", self.path]
        self.process = Process(config, "sampler", argv)
        self.process.wait_event("sampling", 20)
        self.figures = {}
        self.samples = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.close_input()
        try:
            self.process.wait(10)
            self.figures = self.process.records[-1]
            self.samples = [json.loads(line) for line in self.path.read_text().splitlines()]
        except (TimeoutError, OSError, ValueError, IndexError):
            self.figures = {}

    def risen(self):
        """Bytes in use at the highest point, beyond those at the first sample."""
        return self.figures.get("highest_used", 0) - self.figures.get("first_used", 0)

    def utilisation(self, begin_ns, end_ns):
        """Mean of NVML's GPU utilisation, percent; None without samples."""
        values = [s["gpu_percent"] for s in self.samples if "gpu_percent" in s and begin_ns <= s["t"] <= end_ns]
        return sum(values) / len(values) if values else None


class Result:
    """What a check measured. It passes when it ended without an error and every requirement holds."""

    def __init__(self, name, judge_times=True):
        self.name = name
        self.judge_times = judge_times
        self.figures = {}
        self.requirements = []
        self.error = None
        self.skipped = None
        self.seconds = 0.0

    def figure(self, key, value):
        self.figures[key] = value
        return value

    def require(self, what, measured, relation, bound, unit=""):
        holds = {
            "<=": lambda: measured <= bound,
            ">=": lambda: measured >= bound,
            "==": lambda: measured == bound,
        }[relation]() if measured is not None else False
        self.requirements.append(
            {"what": what, "measured": measured, "relation": relation, "bound": bound, "unit": unit, "holds": bool(holds)})

    def require_time(self, what, measured, relation, bound, unit=""):
        """A requirement on speed. On the stand-in GPU, whose times are made up, it is a figure only."""
        if self.judge_times:
            self.require(what, measured, relation, bound, unit)
        else:
            self.figures[f"not judged here: {what}"] = [measured, relation, bound, unit]

    @property
    def state(self):
        if self.skipped:
            return "SKIP"
        if self.error or not all(r["holds"] for r in self.requirements):
            return "FAIL"
        return "PASS" if self.requirements else "DONE"

    def as_json(self):
        return {"check": self.name, "state": self.state, "seconds": round(self.seconds, 1), "skipped": self.skipped, "error": self.error,
                "requirements": self.requirements, "figures": self.figures}


def run_check(config, name, function):
    result = Result(name, judge_times=not config.small)
    begin = time.monotonic()
    try:
        function(config, result)
    except Skip as reason:
        result.skipped = str(reason)
    except Exception as error:  # a broken check must not take the others' device time with it
        result.error = f"{type(error).__name__}: {error}"
        result.figures["traceback"] = traceback.format_exc().splitlines()[-6:]
    finally:
        Process.end_all()
    result.seconds = time.monotonic() - begin
    (config.out / f"{name}.json").write_text(json.dumps(result.as_json(), indent=1) + "\n")
    return result


def wait_all(processes, timeout):
    """Waits until all have ended well. Raises as soon as one fails, or after `timeout` seconds; the rest is killed then."""
    limit = time.monotonic() + timeout
    while any(process.end is None for process in processes):
        failed = next((p for p in processes if p.end is not None and p.popen.returncode != 0), None)
        late = time.monotonic() > limit
        if failed or late:
            for process in processes:
                process.kill()
            if failed:
                raise RuntimeError(f"{failed.name} ended with {failed.popen.returncode}; its last words: {failed.tail()}")
            raise TimeoutError(f"after {timeout:.0f} s still running: {', '.join(p.name for p in processes if p.end is None)}")
        time.sleep(0.02)
    for process in processes:
        process.expect_success(1)


def host_memory():
    """MiB of this machine's memory: total and available."""
    rows = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return {name: int(rows[name].split()[0]) // 1024 for name in ("MemTotal", "MemAvailable")}


def machine(config):
    """What the results were measured on."""
    facts = {"host_memory_mib": host_memory(), "processors": os.cpu_count(), "kernel": os.uname().release, "stand_in": bool(config.simgpu)}
    smi = shutil.which("nvidia-smi")
    if smi and not config.simgpu:
        columns = "name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,temperature.gpu,pcie.link.gen.max"
        query = [smi, f"--query-gpu={columns}", "--format=csv"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        facts["gpu"] = answer.stdout.splitlines()
    if shutil.which("git"):
        version = subprocess.run(["git", "-C", str(config.repo), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        facts["commit"] = version.stdout.strip() or None
    return facts


def prewarm_host(config, bytes_wanted):
    """Makes a virtual machine's host give it that much memory now and not in the middle of a measurement."""
    process = Process(config, "host_memory", [config.program("host_memory"), "--bytes", bytes_wanted, "--threads", os.cpu_count() or 4])
    before = host_memory()
    process.expect_success(max(10, min(150, config.left())))
    return {"seconds": process.records[-1]["seconds"], "before_mib": before, "after_mib": host_memory()}


def parallel(calls):
    """Runs the calls at once, each in a thread; their results in order. The first exception is raised after all have ended."""
    answers = [None] * len(calls)
    errors = []

    def run(index, call):
        try:
            answers[index] = call()
        except Exception as error:  # handed on below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i, call)) for i, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


def archive_logs(config, bytes_each=2 * MIB):
    """All output of all processes, the samples and the schedulers' traces in one file of the out folder; the ends of long ones."""
    with tarfile.open(config.out / "logs.tar.gz", "w:gz") as archive:
        for path in sorted(config.work.rglob("*")):
            if path.suffix not in (".log", ".jsonl") and path.name != "trace" or not path.is_file():
                continue
            text = path.read_bytes()[-bytes_each:]
            entry = tarfile.TarInfo(str(path.relative_to(config.work)))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
