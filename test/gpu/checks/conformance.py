"""The same calls natively and under nvshare: runs the program `conformance` (../conformance/README.md) in each state and compares what came back.

A difference is a failure unless ../conformance/differences.toml names it. One example of each kind of difference is shrunk to the fewest calls.
"""
import collections
import concurrent.futures
import fnmatch
import itertools
import json
import pathlib
import re
import time

try:
    import tomllib
except ImportError:  # before Python 3.11: nothing is explained then
    tomllib = None

from harness import MIB, Process, Scheduler, Skip

HERE = pathlib.Path(__file__).resolve().parent.parent / "conformance"
CRASHING = HERE / "crashing.txt"
ENTRY_POINTS = HERE.parent.parent.parent / "src" / "interposer" / "entry_points.txt"
# Display and video interop, other vendors' interfaces, and the debugger's: no program of this kind has what they need.
OUT_OF_SCOPE = re.compile(r"cu(GL|EGL|VDPAU|Graphics|dbg)|cuDeviceGetNvSciSync|cuStreamConsumer")
COLD_FIRST = 20_000_000  # sequences about what comes before the first turn (conformance/generate.h)
STATES = ("unscheduled", "first_turn", "alone", "switching", "full", "limits", "managed", "none")


class State:
    """How the program is started. `together`: so many processes share a scheduler."""

    def __init__(self, name, library=True, scheduled=True, together=1, told=None, ballast=0, turn_s=None, fresh=False, environment=None,
                 limits=False):
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


def states_of(config):
    """The stand-in's contexts take 8 MiB; a real GPU's are taken for 300 where NVML is off, and 500 are kept free."""
    ballast = (48 if config.small else 256) * MIB
    one, two = (112, 150) if config.small else (500 + 300 + 256 + 192, 500 + 600 + 256 + 192)
    return {state.name: state for state in (
        State("native", library=False, scheduled=False),
        State("native_fresh", library=False, scheduled=False, fresh=True),
        State("unscheduled", scheduled=False),
        State("first_turn", fresh=True),
        State("alone"),
        State("switching", together=2, told=two, ballast=ballast, turn_s=0.05),
        State("full", told=one, ballast=ballast),
        State("limits", limits=True),
        State("managed", environment={"NVSHARE_MEMORY_BACKEND": "managed"}),
        State("none", environment={"NVSHARE_MEMORY_BACKEND": "none"}),
    )}


class Outcome:
    """What a run of the program said."""

    def __init__(self):
        self.hashes = {}   # sequence -> (hash, calls made)
        self.lines = {}    # sequence -> outcomes, where they were asked for
        self.events = []   # crashes, hangs, broken contexts
        self.counts = collections.Counter()
        self.failures = collections.Counter()
        self.swaps = 0

    def take(self, text):
        pending = []
        for line in text:
            kind, _, rest = line.partition(" ")
            if kind == "L":
                pending.append(rest)
            elif kind == "S":
                number, value, _, made = rest.split()
                self.hashes[int(number)] = (value, int(made))
                if pending:
                    self.lines[int(number)] = pending
                    pending = []
            elif kind in ("P", "X", "H"):
                self.events.append((kind, rest))
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
        self.lines.update(other.lines)
        self.events += other.events
        self.counts += other.counts
        self.failures += other.failures
        self.swaps += other.swaps

    def calls(self):
        return sum(made for _, made in self.hashes.values())

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
                "--patience", self.options.patience, *extra]
        if state.ballast:
            argv += ["--ballast", state.ballast]
        if state.fresh and "--fresh" not in argv:
            argv += ["--fresh"]
        if self.unshown:
            argv += ["--unshown", ",".join(str(number) for number in self.unshown)]
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

    def sweep(self, name, first, count, seconds):
        """As many of the sequences as the time allows, in several processes."""
        state = self.states[name]
        seconds = max(1.0, min(seconds, self.left() - 1))
        workers = max(1, self.options.processes // state.together) * state.together
        each = -(-count // workers)
        jobs = []
        for start in range(first, first + count, each):
            extra = ["--first", start, "--count", min(each, first + count - start), "--seconds", max(1, int(seconds))]
            jobs.append(self.arguments(state, extra))
        # A scheduler for each pair, or process: alone means alone.
        size = state.together if state.library and state.scheduled else len(jobs)
        whole = Outcome()
        with concurrent.futures.ThreadPoolExecutor(max(1, len(jobs))) as pool:
            futures = [pool.submit(self.group, state, jobs[i:i + size], seconds) for i in range(0, len(jobs), size)]
            for future in futures:
                for outcome in future.result():
                    whole.merge(outcome)
        return whole

    def run_plans(self, name, plans, seconds=120, watch=None):
        """Runs plans (lists of lines); the outcomes' lines of each: none where the time was over before."""
        state = self.states[name]
        path = self.config.work / f"plans-{next(self.groups)}.txt"
        path.write_text("".join("= \n" + "".join(line + "\n" for line in plan) for plan in plans))
        jobs = [self.arguments(state, ["--plan", path, "--verbose"])]
        if state.together > 1:  # a neighbour that wants the GPU as well
            jobs.append(self.arguments(state, ["--first", 0, "--count", 50, "--repeat", 5]))
        outcome = self.group(state, jobs, seconds, first_decides=True, watch=watch)[0]
        path.unlink(missing_ok=True)
        crashed = outcome.crashed()
        return [outcome.lines.get(i, []) + ([f"crashed: {crashed[i]}"] if i in crashed else []) for i in range(len(plans))]

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


# What these answer changes nothing: sequences stay comparable behind a difference.
HARMLESS = re.compile(r"cu\w*(Get|Query|IsLoaded|IsCapturing)")
SELECTORS = ("cuPointerGetAttribute", "cuDeviceGetAttribute", "cuStreamGetAttribute", "cuMemPoolGetAttribute", "cuFuncGetAttribute")


def code_of(line):
    words = line.split()
    return words[2] if words[0].startswith("~cuMem") and len(words) > 2 else words[1] if len(words) > 1 else ""


def differences(plan, native, other):
    """Pairs of lines that differ, as (call's number, call, native line, other line), up to the first that changes what comes after it."""
    found = []
    for at, (a, b) in enumerate(zip(native, other)):
        if a == b:
            continue
        found.append((at, plan[at] if at < len(plan) else a, a, b))
        if not HARMLESS.match(a) and (code_of(a) != code_of(b) or a.startswith("~check")):
            return found
    if len(native) != len(other):
        at = min(len(native), len(other))
        found.append((at, plan[at] if at < len(plan) else "", (native[at:] + ["(ended)"])[0], (other[at:] + ["(ended)"])[0]))
    return found


def kind_of(difference):
    """What makes two differences the same: the call, what it was asked for, and the two codes, or that only what came back differs."""
    _, call, native, other = difference
    symbol = native.split()[0]
    if symbol in SELECTORS:
        selector = next((word for word in call.split() if word.startswith("i:")), "")
        symbol += f"({selector})"
    return (symbol, code_of(native), code_of(other) if other.split()[0] == native.split()[0] else other)


def read_differences():
    if tomllib is None:
        return []
    with open(HERE / "differences.toml", "rb") as file:
        return tomllib.load(file).get("difference", [])


def explanation_of(difference, state, rows):
    _, call, native, other = difference
    symbol = native.split()[0]
    for row in rows:
        if not any(fnmatch.fnmatchcase(symbol, pattern) for pattern in row["symbols"]) or state not in row.get("states", [state]):
            continue
        if "attributes" in row:  # a program that is older than --unshown shows their values
            if code_of(native) == code_of(other) and {f"i:{number}" for number in row["attributes"]} & set(call.split()):
                return row
        elif re.fullmatch(row.get("call", ".*"), call) and re.fullmatch(row.get("native", ".*"), native.partition(" ")[2]) \
                and re.fullmatch(row.get("nvshare", ".*"), other.partition(" ")[2]):
            return row
    return None


def run_both(instrument, state, plans, seconds=120):
    """The plans natively and in the state, at the same time."""
    with concurrent.futures.ThreadPoolExecutor(1 if instrument.options.processes == 1 else 2) as pool:
        native = pool.submit(instrument.run_plans, instrument.twin(state), plans, seconds)
        other = pool.submit(instrument.run_plans, state, plans, seconds)
        return native.result(), other.result()


def shrink(instrument, state, plan, kind, deadline):
    """The fewest calls that still show a difference of that kind."""
    def shows(candidates):
        native, other = run_both(instrument, state, candidates, max(1.0, deadline - time.monotonic()))
        return [shows_one(candidate, a, b) for candidate, a, b in zip(candidates, native, other)]

    def shows_one(candidate, a, b):
        return bool(a and b) and any(kind_of(d) == kind for d in differences(candidate, a, b))

    chunk = max(1, len(plan) // 2)
    while time.monotonic() < deadline:
        starts = range(0, len(plan), chunk)
        without = [plan[:i] + plan[i + chunk:] for i in starts]
        usable = [i for i, candidate in enumerate(without) if candidate]
        shown = shows([without[i] for i in usable]) if usable else []
        removable = [usable[i] for i, yes in enumerate(shown) if yes]
        if removable:
            gone = set()
            for i in removable:
                gone.update(range(i * chunk, min(len(plan), (i + 1) * chunk)))
            together = [line for i, line in enumerate(plan) if i not in gone]
            plan = together if together and len(removable) > 1 and shows([together])[0] else without[removable[0]]
            if chunk > len(plan):
                chunk = max(1, len(plan) // 2)
        elif chunk == 1:
            break
        else:
            chunk = max(1, chunk // 2)
    return plan


class Comparison:
    def __init__(self, instrument, deadline):
        self.instrument = instrument
        self.deadline = deadline
        self.rows = read_differences()
        self.found = {}      # (state, kind) -> example
        self.explained = collections.Counter()
        self.changed = lambda: None
        self.unreached = collections.Counter()
        self.unseen = collections.Counter()  # differences that a second run of the same sequence did not show

    def examine(self, state, sequences):
        """Runs the sequences once more, line by line, and sorts what differs."""
        # A process for each sequence takes long to start on a real GPU.
        fresh = self.instrument.states[state].fresh
        each, at_once = (10, 2) if fresh else (40, 4)
        parts = [sequences[at:at + each] for at in range(0, len(sequences), each)]
        with concurrent.futures.ThreadPoolExecutor(max(1, self.instrument.options.processes // at_once)) as pool:
            for part, found in zip(parts, pool.map(lambda part: self.both(state, part), parts)):
                for sequence, plan, a, b in zip(part, *found):
                    if not a or not b:
                        self.unreached[state] += 1  # the time was over
                        continue
                    seen = differences(plan, a, b)
                    self.unseen[state] += not seen
                    for difference in seen:
                        self.sort_in(state, sequence, plan, difference)
                self.changed()

    def both(self, state, part):
        if time.monotonic() > self.deadline:
            return [[]] * len(part), [[]] * len(part), [[]] * len(part)
        plans = self.instrument.plans(part)
        if len(plans) != len(part):
            return [[]] * len(part), [[]] * len(part), [[]] * len(part)
        return plans, *run_both(self.instrument, state, plans, max(1.0, self.deadline - time.monotonic()))

    def sort_in(self, state, sequence, plan, difference):
        row = explanation_of(difference, state, self.rows)
        if row is not None:
            self.explained[row["name"]] += 1
            return
        at, _, native, other = difference
        example = {"sequence": sequence, "plan": plan, "native": native, "nvshare": other, "at": at}
        entry = self.found.setdefault((state, kind_of(difference)), {"count": 0, **example})
        entry["count"] += 1
        if at < entry["at"]:
            entry.update(example)

    def shrink_all(self):
        first = {}  # shown once is enough
        for (state, kind), entry in sorted(self.found.items(), key=lambda item: item[1]["at"]):
            first.setdefault(kind, (state, entry))

        def one(item):
            kind, (state, entry) = item
            if time.monotonic() < self.deadline - 5:
                plan = entry["plan"][:entry["at"] + 1] or entry["plan"]
                entry["shrunk"] = shrink(self.instrument, state, plan, kind, min(self.deadline, time.monotonic() + 30))

        with concurrent.futures.ThreadPoolExecutor(max(1, self.instrument.options.processes // 2)) as pool:
            for _ in pool.map(one, first.items()):
                self.changed()


def find_crashing(instrument, seconds):
    """Entry points with which the driver itself crashes or hangs get right arguments only, or are left out when that does not help."""
    examples = []
    end = time.monotonic() + seconds
    patience, instrument.options.patience = instrument.options.patience, min(instrument.options.patience, 3)
    for _ in range(4):
        if time.monotonic() > end - 1:
            break
        outcome = instrument.sweep("native", 10_000_000, 40 * instrument.options.processes, max(1.0, (end - time.monotonic()) / 2))
        crashed = outcome.crashed()
        symbols = sorted({rest.split()[2] for rest in crashed.values()} - {"-"})
        for plan, (sequence, rest) in zip(instrument.plans(crashed), crashed.items()):
            call = int(rest.split()[1])
            examples.append(plan[call] if 0 <= call < len(plan) else f"sequence {sequence}: {rest}")
        if not symbols:
            break
        instrument.without += [symbol for symbol in symbols if symbol in instrument.tame]
        instrument.tame += [symbol for symbol in symbols if symbol not in instrument.tame]
        write_crashing(instrument)
    instrument.options.patience = patience
    return {"tame": instrument.tame, "without": instrument.without, "crashing_calls": examples[:60]}


def write_crashing(instrument):
    """For `--known` of the next run."""
    lines = [f"{symbol} without" for symbol in instrument.without] + [f"{s} tame" for s in instrument.tame if s not in instrument.without]
    (instrument.config.out / "crashing.txt").write_text("".join(line + "\n" for line in lines))


def coverage(outcome):
    names = [line.split()[0] for line in ENTRY_POINTS.read_text().splitlines() if line and not line.startswith("#")] if ENTRY_POINTS.exists() else []
    wanted = [name for name in names if not OUT_OF_SCOPE.match(name)]
    called = [name for name in wanted if outcome.counts[name] or outcome.failures[name]]
    return {"entry_points": len(wanted), "called": len(called), "with_success": sum(1 for n in wanted if outcome.counts[n]),
            "with_failure": sum(1 for n in wanted if outcome.failures[n]), "never_called": sorted(set(wanted) - set(called)),
            "never_succeeded": sorted(n for n in called if not outcome.counts[n]), "never_failed": sorted(n for n in called if not outcome.failures[n])}


class Comparing:
    """The check, phase by phase; `fill` puts what is known so far into the result."""

    def __init__(self, config, result, options, journal=None):
        self.options, self.result, self.journal = options, result, journal
        self.instrument = Instrument(config, options)
        self.instrument.journal = journal
        self.begin = time.monotonic()
        # Without a journal, which would kill what is late, there is more room for the end.
        self.budget = min(options.budget, config.left()) - (3 if config.small or journal else 15)
        self.instrument.deadline = self.begin + self.budget
        self.names = [name for name in options.states if name != "native"]
        self.comparison = Comparison(self.instrument, self.begin + self.budget * 0.8)
        self.native, self.unstable, self.figures, self.errors = Outcome(), set(), {}, {}
        self.comparison.changed = self.fill
        if not config.small:
            self.instrument.take_known(pathlib.Path(options.known or CRASHING))

    def enter(self, phase):
        self.fill()
        if self.journal is not None:
            self.journal.enter(phase)

    def run(self):
        if self.instrument.config.small or not self.options.crash_search:
            left_out = {"tame": self.instrument.tame, "without": self.instrument.without}
            self.result.figure("left_out", {} if self.instrument.config.small else left_out)
        else:
            self.enter("finding entry points with which the driver crashes")
            self.result.figure("left_out", find_crashing(self.instrument, self.budget * 0.06))
        share = self.budget * 0.5 / (len(self.names) + 2.0)
        self.natively(share)
        for name in self.names:
            try:
                self.state(name, share)
            except (RuntimeError, TimeoutError, OSError) as error:  # the other states count all the same
                self.errors[name] = f"{type(error).__name__}: {error}"
                if self.journal is not None:
                    self.journal.say(f"{name}: {self.errors[name]}"[:1500])
        self.comparison.deadline = self.begin + self.budget
        self.enter("shrinking")
        self.comparison.shrink_all()
        self.fill()
        return self.instrument, self.native

    def natively(self, share):
        options, instrument = self.options, self.instrument
        self.enter("native")
        self.native = instrument.sweep("native", options.first, options.count, share * 1.6)
        if "first_turn" in self.names:
            self.native.merge(instrument.sweep("native", COLD_FIRST + options.first, options.count, share * 0.4))
        self.enter("native, again")
        again = instrument.sweep("native", options.first, options.count, share * 0.4)
        self.unstable = {s for s, value in again.hashes.items() if s in self.native.hashes and self.native.hashes[s] != value}
        if self.unstable:
            instrument.states["native_again"] = instrument.states["native"]
            self.enter(f"native: line by line, {min(40, len(self.unstable))} of {len(self.unstable)} that differ")
            self.comparison.examine("native_again", sorted(self.unstable)[:40])

    def state(self, name, share):
        self.enter(name)
        native, options = self.native, self.options
        outcome = self.instrument.sweep(name, options.first, options.count, share * (0.5 if name == "first_turn" else 1))
        if name == "first_turn":
            outcome.merge(self.instrument.sweep(name, COLD_FIRST + options.first, options.count, share * 0.5))
        crashed = outcome.crashed()
        common = [s for s in outcome.hashes if s in native.hashes and s not in self.unstable]
        differing = sorted(s for s in common if outcome.hashes[s] != native.hashes[s])
        differing += [s for s in crashed if s in native.hashes]
        self.figures[name] = {"calls": outcome.calls(), "compared": len(common), "differing": len(differing), "drops": outcome.swaps,
                              "events": outcome.events[:20], "not_looked_at": max(0, len(differing) - options.examined),
                              "first_differing": differing[:40]}
        if differing:
            self.enter(f"{name}: line by line, {len(differing[:options.examined])} of {len(differing)} that differ")
            self.comparison.examine(name, differing[:options.examined])

    def fill(self):
        result, comparison, native = self.result, self.comparison, self.native
        rows = {(state, kind): dict(entry) for (state, kind), entry in list(comparison.found.items())}
        for entry in rows.values():
            entry["plan"] = entry["plan"][:entry["at"] + 1] if "shrunk" in entry else []
        native_found = [dict(entry, kind=kind) for (state, kind), entry in rows.items() if state == "native_again"]
        found = [dict(entry, state=state, kind=kind) for (state, kind), entry in rows.items() if state != "native_again"]
        for name, count in comparison.unreached.items():
            if name in self.figures:
                self.figures[name]["out_of_time"] = count
        first = {"native": {"calls": native.calls(), "sequences": len(native.hashes), "events": native.events[:50]}}
        result.figure("states", {**first, "not_the_same_natively": len(self.unstable), **self.figures})
        result.figure("coverage", coverage(native))
        result.figure("explained", dict(comparison.explained))
        result.figure("not_seen_again", dict(comparison.unseen))
        result.figure("racy_natively", native_found)
        result.figure("differences", found)
        result.figure("errors", dict(self.errors))
        lost = sum(row["not_looked_at"] + row.get("out_of_time", 0) for row in self.figures.values())
        result.requirements = []
        result.require("unexplained kinds of differences", len({entry["kind"] for entry in found}), "==", 0)
        result.require("differing sequences that nobody looked at", lost, "==", 0)
        for name in self.names:
            result.require(f"sequences compared: {name}", self.figures.get(name, {}).get("compared", 0), ">=", 1)


def compare_all(config, result, options, journal=None):
    """The check. `options`: see ../conformance/run.py."""
    return Comparing(config, result, options, journal).run()


class Options:
    def __init__(self, **values):
        self.seed, self.calls, self.devices, self.first, self.count = 1, 100, 1, 0, 40000
        self.known, self.crash_search = "", True
        self.processes, self.patience, self.states, self.without, self.tame, self.examined, self.budget = 8, 30, list(STATES), [], [], 160, 560
        self.__dict__.update(values)


def conformance(config, result):
    """The row of ../run.py."""
    small = {"processes": 1, "count": 60, "states": ["unscheduled", "alone", "switching"]} if config.small else {}
    compare_all(config, result, Options(budget=min(config.left(), 560), **small))


def summary(result):
    return json.dumps(result.as_json(), indent=1, default=str)
