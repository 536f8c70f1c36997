"""How the program `conformance` is started in each state, and what it said (conformance.py compares)."""
import collections
import concurrent.futures
import itertools
import pathlib
import re
import time

try:
    import tomllib
except ImportError:  # before Python 3.11: nothing is explained then
    tomllib = None

from harness import MIB, Process, Scheduler, Skip

HERE = pathlib.Path(__file__).resolve().parent.parent / "conformance"
FRAME = re.compile(r"\S+\(\S*\) ?\[0x[0-9a-f]+\]$")  # of a stack, as backtrace_symbols_fd writes it
DRIVER_FRAME = re.compile(r"libcuda\.so[^(]*\((\w*\+0x[0-9a-f]+)\)")
CRASHING = HERE / "crashing.txt"
ENTRY_POINTS = HERE.parent.parent.parent / "src" / "interposer" / "entry_points.txt"
# Display and video interop, other vendors' interfaces, and the debugger's: no program of this kind has what they need.
OUT_OF_SCOPE = re.compile(r"cu(GL|EGL|VDPAU|Graphics|dbg)|cuDeviceGetNvSciSync|cuStream(Consumer|(Begin|End)CaptureToCig)")
COLD_FIRST = 20_000_000  # sequences about what comes before the first turn (conformance/generate.h)
STATES = ("unscheduled", "first_turn", "alone", "switching", "full", "limits", "managed", "none")


class State:
    """How the program is started. `together`: so many processes share a scheduler."""

    def __init__(self, name, library=True, scheduled=True, together=1, told=None, ballast=0, turn_s=None, fresh=False, environment=None,
                 limits=False, other_heap=False):
        self.name = name
        self.library = library
        self.scheduled = scheduled
        self.together = together
        self.told = told
        self.ballast = ballast
        self.turn_s = turn_s
        self.fresh = fresh
        self.environment = environment or {}
        self.limits = limits
        self.other_heap = other_heap


def states_of(config):
    """The stand-in's contexts take 8 MiB; a real GPU's are taken for 300 where NVML is off, and 500 are kept free."""
    ballast = (48 if config.small else 256) * MIB
    # Each process has a second one, with a context from the start.
    one, two = (120, 166) if config.small else (500 + 600 + 256 + 192, 500 + 1200 + 256 + 192)
    return {state.name: state for state in (
        State("native", library=False, scheduled=False),
        State("native_fresh", library=False, scheduled=False, fresh=True),
        State("native_other_heap", library=False, scheduled=False, fresh=True, other_heap=True),
        State("unscheduled", scheduled=False),
        State("first_turn", fresh=True),
        State("alone"),
        State("switching", together=2, told=two, ballast=ballast, turn_s=0.05),
        State("full", told=one, ballast=ballast),
        State("limits", limits=True),
        State("managed", environment={"NVSHARE_MEMORY_BACKEND": "managed"}),
        State("none", environment={"NVSHARE_MEMORY_BACKEND": "none"}),
    )}


WAITS = {"cuStreamSynchronize", "cuCtxSynchronize"}  # of which a driver was seen to crash in one natively, in the other not


class CrashSite:
    """The driver's functions on the stack of a crash (crash_report.cc), from the one that crashed to the one that was called."""

    def __init__(self):
        self.frames, self.ended = [], False

    def take(self, line):
        found = DRIVER_FRAME.search(line)
        if found and not self.ended:
            self.frames.append(found[1])
        elif self.frames:
            self.ended = True

    def same(self, other):
        """The same calls, or one that waits for a stream and one that waits for a context; the last function crashed within the same few
        instructions."""
        if not self.frames or not other.frames:
            return False
        if self.frames[1:] != other.frames[1:] and {self.called(), other.called()} != WAITS:
            return False
        tops = [frame.rpartition("+") for frame in (self.frames[0], other.frames[0])]
        return tops[0][0] == tops[1][0] and abs(int(tops[0][2], 16) - int(tops[1][2], 16)) <= 64

    def called(self):
        return self.frames[-1].partition("+")[0].removesuffix("_ptsz")


class Outcome:
    """What a run of the program said."""

    def __init__(self):
        self.hashes = {}   # sequence -> (hash, calls made)
        self.others = {}   # sequence -> hash without what differences.toml compares apart
        self.begins = {}   # sequence -> the first one of its process
        self.lines = {}    # sequence -> outcomes, where they were asked for
        self.digests = {}  # sequence -> a word for each outcome, `CODE/HASH`, where those were not asked for
        self.events = []   # crashes, hangs, broken contexts
        self.sites = {}    # sequence -> where in the driver it crashed (CrashSite)
        self.counts = collections.Counter()
        self.failures = collections.Counter()
        self.swaps = 0

    def take(self, text):
        pending, begin, digest, site = [], None, "", None
        for line in text:
            if line.startswith("signal "):
                site = CrashSite()
            elif site is not None and FRAME.match(line):
                site.take(line)
            kind, _, rest = line.partition(" ")
            if kind == "L":
                pending.append(rest)
            elif kind == "D":
                digest = rest
            elif kind == "S":
                number, value, _, made, other = rest.split()
                self.hashes[int(number)] = (value, int(made))
                self.others[int(number)] = other
                begin, site = int(number) if begin is None else begin, None  # what crashed was the second process
                self.begins[int(number)] = begin
                if digest:
                    self.digests[int(number)] = digest
                    digest = ""
                if pending:
                    self.lines[int(number)] = pending
                    pending = []
            elif kind in ("P", "X", "H"):
                begin = None
                self.events.append((kind, rest))
                if kind == "X" and site is not None:
                    self.sites[int(rest.split()[0])] = site
                site = None
                if kind != "P" and pending:
                    self.lines[int(rest.split()[0])] = pending
                pending = []
            elif kind == "C":
                symbol, success, failure = rest.split()
                self.counts[symbol] += int(success)
                self.failures[symbol] += int(failure)
            elif kind == "!":
                raise RuntimeError(f"conformance: {rest}")

    def merge(self, other):
        self.hashes.update(other.hashes)
        self.others.update(other.others)
        self.begins.update(other.begins)
        self.lines.update(other.lines)
        self.digests.update(other.digests)
        self.events += other.events
        self.sites.update(other.sites)
        self.counts += other.counts
        self.failures += other.failures
        self.swaps += other.swaps

    def calls(self):
        return sum(made for _, made in self.hashes.values())

    def crashed_as(self, native):
        """Sequences that crashed where the driver crashes natively, too, maybe in other sequences."""
        return {sequence for sequence, site in self.sites.items() if any(site.same(known) for known in native.sites.values())}

    def crashed(self):
        return {int(rest.split()[0]): rest for kind, rest in self.events if kind in ("X", "H")}


class Instrument:
    def __init__(self, config, options):
        self.config = config
        self.options = options
        self.program = config.program("conformance")
        self.states = states_of(config)
        self.without = list(options.without)
        self.tame = list(options.tame)
        self.journal = None
        self.deadline = time.monotonic() + config.left()
        self.groups = itertools.count()
        self.unshown = sorted({number for row in read_differences() for number in row.get("attributes", [])})
        self.apart = sorted({name for row in read_differences() for name in row.get("apart", [])})

    def left(self):
        """Seconds; nothing runs longer."""
        return self.deadline - time.monotonic()

    def take_known(self, path):
        """Entry points with which the driver is known to crash (crashing.txt)."""
        for line in path.read_text().splitlines():
            words = line.partition("#")[0].split()
            if len(words) >= 2 and words[1] in ("tame", "without"):
                self.blame(words[0], words[1])

    def blame(self, symbol, how="tame"):
        marks = self.without if how == "without" else self.tame
        if symbol not in marks:
            marks.append(symbol)

    def twin(self, name):
        """The native state to compare with: what earlier sequences of a process left behind must be the same."""
        return "native_fresh" if self.states[name].fresh else "native"

    # ---- starting the program ----
    def arguments(self, state, extra):
        argv = [self.program, "--seed", self.options.seed, "--calls", self.options.calls, "--devices", self.options.devices,
                "--cold-calls", self.options.cold_calls,
                "--patience", self.options.patience, *extra]
        if state.ballast:
            argv += ["--ballast", state.ballast, "--partner"]
        if state.fresh and "--fresh" not in argv:
            argv += ["--fresh"]
        if state.other_heap:
            argv += ["--other-heap"]
        if self.unshown:
            argv += ["--unshown", ",".join(str(number) for number in self.unshown)]
        if self.apart:
            argv += ["--apart", ",".join(self.apart)]
        if self.tame:
            argv += ["--tame", ",".join(self.tame)]
        if self.without:
            argv += ["--without", ",".join(self.without)]
        return argv

    def group(self, state, jobs, seconds, first_decides=False, watch=None):
        """Runs the jobs (lists of arguments) at once, under one scheduler where the state has one; their outcomes. They are killed a while after
        `seconds`, and at the deadline. `first_decides`: the others are killed when the first has ended. `watch`: what to do meanwhile."""
        if self.left() < 0.5:
            return [Outcome() for _ in jobs]
        more = {"first_decides": first_decides, "watch": watch}
        environment = dict(self.config.environment)
        if self.config.simgpu:  # a GPU of its own, so that groups do not disturb each other
            environment["SIMGPU_STATE"] = str(self.config.work / f"conformance-{next(self.groups)}.state")
            environment["SIMGPU_TIME_SCALE"] = "0"
            environment["SIMGPU_COUNT"] = str(self.options.devices)
        if not state.library:
            return self.run_jobs(state, jobs, environment, seconds, None, **more)
        environment["LD_PRELOAD"] = str(self.config.library)
        environment["NVSHARE_LOG_LEVEL"] = self.config.library_log
        environment.update(state.environment)
        if not state.scheduled:
            environment["NVSHARE_RUNTIME_DIR"] = str(self.config.work / "nobody")
            return self.run_jobs(state, jobs, environment, seconds, None, **more)
        extra = {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if self.config.small else {"NVSHARE_NVML": "off"} if state.told else {}
        extra["NVSHARE_LOG_LEVEL"] = "info"
        extra.update({name: environment[name] for name in ("SIMGPU_STATE", "SIMGPU_COUNT") if name in environment})
        with Scheduler(self.config, state.turn_s, state.told, extra) as scheduler:
            environment["NVSHARE_RUNTIME_DIR"] = str(scheduler.runtime)
            return self.run_jobs(state, jobs, environment, seconds, scheduler, **more)

    def run_jobs(self, state, jobs, environment, seconds, scheduler, first_decides, watch):
        if state.limits:
            if self.config.nvsharectl is None:
                raise Skip("nvsharectl is not built")
            environment.pop("LD_PRELOAD", None)
            limits = ["--gpu-memory-limit", "800Mi" if self.config.small else "64Gi", "--gpu-core-limit", "95"]
            limits += ["--gpu", "0,1"] if self.options.devices > 1 else []
            jobs = [[self.config.nvsharectl, "run", "--quiet", "--name", f"job{i}", *limits, "--", *job] for i, job in enumerate(jobs)]
        processes = [self.start(f"conformance-{state.name}", job, environment) for job in jobs]
        limit = min(self.deadline, time.monotonic() + seconds + 5)
        if watch is not None:
            watch(processes[0])
        outcomes = []
        for process in processes:
            try:
                process.wait(max(0, limit - time.monotonic()))
            except TimeoutError:
                process.popen.poll()  # what it said counts
            self.ended(process)
            if first_decides:
                limit = 0
            outcome = Outcome()
            outcome.take(process.lines[:])
            outcomes.append(outcome)
            if process.popen.returncode not in (None, 0, -9) and not outcome.hashes and not outcome.events:
                raise RuntimeError(f"{state.name}: {process.tail()}")
        if scheduler is not None and outcomes:
            outcomes[0].swaps += scheduler.drops()
        return outcomes

    def start(self, name, argv, environment=None):
        process = Process(self.config, name, argv, environment)
        if self.journal is not None:
            self.journal.watch(process)
        return process

    def ended(self, process):
        if self.journal is not None:
            self.journal.forget(process)

    def sweep(self, name, first, count, seconds, part=None):
        """As many of the sequences as the time allows, in several processes, each from the begin of its own range. `part`: (how many of each
        range are left out, how many are made)."""
        state = self.states[name]
        seconds = max(1.0, min(seconds, self.left() - 1))
        workers = max(1, self.options.processes // state.together) * state.together
        each = -(-count // workers)
        skipped, made = part or (0, each)
        jobs = []
        for start in range(first, first + count, each):
            some = min(made, each - skipped, first + count - start - skipped)
            if some > 0:
                jobs.append(self.arguments(state, ["--first", start + skipped, "--count", some, "--seconds", max(1, int(seconds))]))
        # A scheduler for each pair, or process: alone means alone.
        size = state.together if state.library and state.scheduled else len(jobs)
        whole = Outcome()
        with concurrent.futures.ThreadPoolExecutor(max(1, len(jobs))) as pool:
            futures = [pool.submit(self.group, state, jobs[i:i + size], seconds) for i in range(0, len(jobs), size)]
            for future in futures:
                for outcome in future.result():
                    whole.merge(outcome)
        return whole

    def run_plans(self, name, plans, seconds=120, watch=None, hashes=False):
        """Runs plans (lists of lines); the outcomes' lines of each: none where the time was over before. `hashes`: and both hashes."""
        state = self.states[name]
        path = self.config.work / f"plans-{next(self.groups)}.txt"
        path.write_text("".join("= \n" + "".join(line + "\n" for line in plan) for plan in plans))
        jobs = [self.arguments(state, ["--plan", path, "--verbose"])]
        if state.together > 1:  # a neighbour that wants the GPU as well
            jobs.append(self.arguments(state, ["--first", 0, "--count", 50, "--repeat", 5]))
        outcome = self.group(state, jobs, seconds, first_decides=True, watch=watch)[0]
        path.unlink(missing_ok=True)
        crashed = outcome.crashed()
        lines = [outcome.lines.get(i, []) + ([f"crashed: {crashed[i]}"] if i in crashed else []) for i in range(len(plans))]
        if not hashes:
            return lines
        return [(said, (outcome.hashes.get(i, ("", 0))[0], outcome.others.get(i, ""))) for i, said in enumerate(lines)]

    def crashing_with_another_heap(self, sequences):
        """Those with which the driver crashes natively, too, if the program's memory has come to lie where it has freed some (other_heap.h)."""
        found = set()
        for sequence, plan in zip(sequences, self.plans(sequences) if sequences else []):
            path = self.config.work / f"plans-{next(self.groups)}.txt"
            path.write_text("= \n" + "".join(line + "\n" for line in plan))
            state = self.states["native_other_heap"]
            outcome = self.group(state, [self.arguments(state, ["--plan", path])], 30)[0]
            path.unlink(missing_ok=True)
            if 0 in outcome.sites:
                found.add(sequence)
        return found

    def plans(self, sequences):
        process = Process(self.config, "conformance-list", self.list_arguments(sequences))
        try:
            process.wait(max(1, min(60, self.left())))
        except TimeoutError:
            return []
        found = []
        for line in process.lines:
            if line.startswith("="):
                found.append([])
            elif found:
                found[-1].append(line)
        return found

    def list_arguments(self, sequences):
        return self.arguments(self.states["native"], ["--list", "--only", ",".join(str(s) for s in sequences)])


def read_differences():
    if tomllib is None:
        return []
    with open(HERE / "differences.toml", "rb") as file:
        return tomllib.load(file).get("difference", [])


class Options:
    def __init__(self, **values):
        self.seed, self.calls, self.devices, self.first, self.count = 1, 100, 1, 0, 40000
        self.known, self.crash_search = "", True
        self.cold_calls = 0
        self.reserve = None  # seconds of the budget that are kept for the end; None: by where it runs
        self.native, self.unstable = None, set()  # what was answered natively before (an Outcome), and the sequences that nobody can compare
        self.volume = ()  # calls natively, calls in each other state, fresh processes in first_turn
        self.processes, self.patience, self.states, self.without, self.tame, self.examined, self.budget = 8, 30, list(STATES), [], [], 160, 560
        self.__dict__.update(values)
