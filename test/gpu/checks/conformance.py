"""The same calls natively and under nvshare: runs the program `conformance` (../conformance/README.md) in each state and compares what came back.

A difference is a failure unless ../conformance/differences.toml names it. One example of each kind of difference is shrunk to the fewest calls.
"""
import collections
import concurrent.futures
import ctypes
import fnmatch
import json
import math
import pathlib
import re
import time

from checks.conformance_instrument import STATES, tomllib  # noqa: F401: for those who use this module
from checks.conformance_instrument import (COLD_FIRST, CRASHING, ENTRY_POINTS, OUT_OF_SCOPE, Instrument, Options, Outcome,
                                           read_differences)

FAULTS = {"700", "702", "714", "715", "716", "717", "718", "719"}  # each later call of that context answers the same
# What these answer changes nothing: sequences stay comparable behind a difference.
HARMLESS = re.compile(r"cu\w*(Get|Query|IsLoaded|IsCapturing)")
OTHER_HEAPS = 8  # crashing sequences that are made once more natively, with other memory where the driver has freed some
SELECTORS = ("cuPointerGetAttribute", "cuDeviceGetAttribute", "cuStreamGetAttribute", "cuMemPoolGetAttribute", "cuFuncGetAttribute")


CRASH = re.compile(r"crashed: -?\d+ (-?\d+) (.*)")  # the sequence's number in its file, the call's, the entry point and the signal


def code_of(line):
    words = line.split()
    return words[2] if words[0].startswith("~cuMem") and len(words) > 2 else words[1] if len(words) > 1 else ""


def tells_of_a_fault(line):
    return code_of(line) in FAULTS


def differences(plan, native, other):
    """Pairs of lines that differ, as (call's number, call, native line, other line), up to the first that changes what comes after it."""
    found = []
    if native and native[-1].startswith("crashed"):
        return found  # there is nothing to compare with
    if len(other) == 1 and (crash := CRASH.match(other[0])) and native:  # a crash takes the lines before it along
        last = min(len(plan), len(native)) - 1
        at = min(int(crash[1]), last) if int(crash[1]) >= 0 else last  # -1: while the process tidied up
        return [(at, plan[at], native[at], other[0])]
    faults = [next((at for at, line in enumerate(lines) if tells_of_a_fault(line)), None) for lines in (native, other)]
    if None not in faults:  # work on the GPU faulted in both: which call is the first to tell of it depends on time
        native, other = native[:min(faults)], other[:min(faults)]
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
    if crash := CRASH.match(other):
        return ("crashed", "", crash[2])  # wherever in its sequence
    symbol = native.split()[0]
    if symbol in SELECTORS:
        selector = next((word for word in call.split() if word.startswith("i:")), "")
        symbol += f"({selector})"
    return (symbol, code_of(native), code_of(other) if other.split()[0] == native.split()[0] else other)


def explanation_of(difference, state, rows, plan=()):
    at, call, native, other = difference
    symbol = native.split()[0]
    for row in rows:
        if not any(fnmatch.fnmatchcase(symbol, pattern) for pattern in row["symbols"]) or state not in row.get("states", [state]):
            continue
        if "after" in row and not any(re.fullmatch(row["after"], earlier) for earlier in plan[:at]):
            continue
        if "attributes" in row:  # a program that is older than --unshown shows their values
            if code_of(native) == code_of(other) and {f"i:{number}" for number in row["attributes"]} & set(call.split()):
                return row
        elif re.fullmatch(row.get("call", ".*"), call) and re.fullmatch(row.get("native", ".*"), native.partition(" ")[2]) \
                and re.fullmatch(row.get("nvshare", ".*"), other.partition(" ")[2]):
            return row
    return None


def digest_differences(plan, native, other):
    """What `differences` says, of digests: codes are known, values are not. A value that alone differs is a hash."""
    found = []
    for at, (a, b) in enumerate(zip(native.split(), other.split())):
        if a == b:
            continue
        call = plan[at] if at < len(plan) else "~end"
        symbol = next((word for word in call.split() if word.startswith("cu")), call)
        codes = [word.partition("/")[0] for word in (a, b)]
        if codes[0] == codes[1]:
            codes = [word.replace("/", " ") for word in (a, b)]
        found.append((at, call, *(f"{symbol} {code}" for code in codes)))
        if not HARMLESS.match(symbol):
            break
    return found


def run_both(instrument, state, plans, seconds=120, hashes=False):
    """The plans natively and in the state, at the same time."""
    with concurrent.futures.ThreadPoolExecutor(1 if instrument.options.processes == 1 else 2) as pool:
        native = pool.submit(instrument.run_plans, instrument.twin(state), plans, seconds, hashes=hashes)
        other = pool.submit(instrument.run_plans, state, plans, seconds, hashes=hashes)
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
        self.rows = [row for row in read_differences() if row.get("devices", instrument.options.devices) == instrument.options.devices]
        self.found = {}      # (state, kind) -> example
        self.explained = collections.Counter()
        self.changed = lambda: None
        self.unreached = collections.Counter()
        self.crashed_natively = collections.Counter()
        self.unseen = collections.Counter()  # differences that no second run of the same sequence showed
        self.left_behind = collections.Counter()  # natively, earlier sequences of the process had made the difference
        self.once = collections.defaultdict(list)  # of the unseen: what nvshare answered otherwise the first time

    def examine(self, state, sequences, swept=None):
        """Runs the sequences once more, line by line, and sorts what differs. `swept`: the outcomes that differed, natively and in the state."""
        # A process for each sequence takes long to start on a real GPU.
        fresh = self.instrument.states[state].fresh
        each, at_once = (10, 2) if fresh else (40, 4)
        parts = [sequences[at:at + each] for at in range(0, len(sequences), each)]
        with concurrent.futures.ThreadPoolExecutor(max(1, self.instrument.options.processes // at_once)) as pool:
            for part, found in zip(parts, pool.map(lambda part: self.both(state, part), parts)):
                for sequence, plan, (a, first), (b, second) in zip(part, *found):
                    if not a or not b:
                        self.unreached[state] += 1  # the time was over
                        continue
                    if a[-1].startswith("crashed"):
                        self.crashed_natively[state] += 1  # there is nothing to compare with
                        continue
                    seen = differences(plan, a, b)
                    if not seen:
                        self.not_seen(state, sequence, plan, (first, second), swept)
                    for difference in seen:
                        self.sort_in(state, sequence, plan, difference)
                self.changed()

    def both(self, state, part):
        nothing = [[]] * len(part), [([], None)] * len(part), [([], None)] * len(part)
        if time.monotonic() > self.deadline:
            return nothing
        plans = self.instrument.plans(part)
        if len(plans) != len(part):
            return nothing
        return plans, *run_both(self.instrument, state, plans, max(1.0, self.deadline - time.monotonic()), hashes=True)

    def not_seen(self, state, sequence, plan, hashes, swept):
        """A second run shows no difference: which side had answered otherwise? Then that one's process is made again up to the sequence."""
        if swept is None or sequence not in swept[0].hashes or sequence not in swept[1].hashes:
            self.unseen[state] += 1
            return
        native, other = ((outcome.others if self.apart_in(state) else {s: h for s, (h, _) in outcome.hashes.items()})[sequence] for outcome in swept)
        again = hashes[0][1 if self.apart_in(state) else 0], hashes[1][1 if self.apart_in(state) else 0]
        if other == again[1] and native != again[0]:
            self.left_behind[state] += 1
            return
        self.unseen[state] += 1
        if other != again[1]:
            digests = [outcome.digests.get(sequence, "") for outcome in swept]
            seen = digest_differences(plan, *digests)
            unexplained = [d for d in seen if explanation_of(d, state, self.rows, plan) is None]
            self.once[state].append({"sequence": sequence, "calls": [" | ".join((str(at), *texts)) for at, *texts in unexplained or seen]})
            self.in_company(state, sequence, swept[1].begins.get(sequence, sequence))

    def in_company(self, state, sequence, begin):
        """The sequences of its process up to this one, in one process natively and one in the state; the last one's lines are compared."""
        if begin == sequence or sequence - begin > 60 or self.instrument.states[state].fresh:
            return
        plans, natively, inside = self.both(state, list(range(begin, sequence + 1)))
        if natively[-1][0] and inside[-1][0]:
            for difference in differences(plans[-1], natively[-1][0], inside[-1][0]):
                self.sort_in(state, sequence, plans[-1], difference, after=begin)

    def apart_in(self, state):
        return any("apart" in row and state in row.get("states", [state]) for row in self.rows)

    def sort_in(self, state, sequence, plan, difference, after=None):
        row = explanation_of(difference, state, self.rows, plan)
        if row is not None:
            self.explained[row["name"]] += 1
            return
        at, _, native, other = difference
        example = {"sequence": sequence, "plan": plan, "native": native, "nvshare": other, "at": at}
        if after is not None:
            example["in_the_process_that_began_with"] = after
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
                entry["shrunk"] = shrink(self.instrument, state, plan, kind, min(self.deadline, time.monotonic() + max(30, self.instrument.options.budget / 4)))

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


def exported(config):
    """Whether the driver has that function: a driver older than the list lacks some."""
    try:
        driver = ctypes.CDLL(str(pathlib.Path(config.simgpu) / "libcuda.so.1") if config.simgpu else "libcuda.so.1")
    except OSError:
        return lambda name: True
    return lambda name: hasattr(driver, name)


def coverage(outcome, is_there):
    names = [line.split()[0] for line in ENTRY_POINTS.read_text().splitlines() if line and not line.startswith("#")] if ENTRY_POINTS.exists() else []
    wanted = [name for name in names if not OUT_OF_SCOPE.match(name) and is_there(name)]
    called = [name for name in wanted if outcome.counts[name] or outcome.failures[name]]
    return {"entry_points": len(wanted), "called": len(called), "with_success": sum(1 for n in wanted if outcome.counts[n]),
            "with_failure": sum(1 for n in wanted if outcome.failures[n]), "never_called": sorted(set(wanted) - set(called)),
            "never_succeeded": sorted(n for n in called if not outcome.counts[n]), "never_failed": sorted(n for n in called if not outcome.failures[n]),
            "not_in_this_driver": len([name for name in names if not OUT_OF_SCOPE.match(name)]) - len(wanted)}


class Comparing:
    """The check, phase by phase; `fill` puts what is known so far into the result."""

    def __init__(self, config, result, options, journal=None):
        self.options, self.result, self.journal = options, result, journal
        self.instrument = Instrument(config, options)
        self.instrument.journal = journal
        self.begin = time.monotonic()
        # Without a journal, which would kill what is late, there is more room for the end.
        reserve = options.reserve if options.reserve is not None else 3 if config.small or journal else 15
        self.budget = min(options.budget, config.left()) - reserve
        self.instrument.deadline = self.begin + self.budget
        self.names = [name for name in options.states if name != "native"]
        self.comparison = Comparison(self.instrument, self.begin + self.budget * 0.8)
        self.native, self.unstable, self.figures, self.errors = Outcome(), set(), {}, {}
        self.comparison.changed = self.fill
        self.is_there = exported(config)
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
        share = self.budget * 0.5 / (len(self.names) + (2.0 if self.options.native is None else 0.0))
        if self.options.native is not None:
            self.native, self.unstable = self.options.native, self.options.unstable
        elif self.options.volume:
            self.natively_in_volume()
        else:
            self.natively(share)
        for name in self.names:
            try:
                if self.options.volume:
                    self.state_in_volume(name)
                else:
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

    # ---- by numbers of calls (--volume) ----
    def some_of(self, name):
        """How many sequences a state makes of each process' range."""
        # Half of those of first_turn are of another range (COLD_FIRST); some of a plan's calls cannot be made.
        wanted = self.options.volume[2] / 2 if name == "first_turn" else self.options.volume[1] / (self.options.calls * 0.93)
        return math.ceil(wanted / self.options.processes)

    def part_of(self, name):
        """Each state makes others, one after the other, so that all are made natively and in one state at most."""
        return (sum(self.some_of(before) for before in self.names[:self.names.index(name)]), self.some_of(name))

    def volume_count(self):
        """Sequences natively: as many as are asked for, and all that states make."""
        states = sum(self.some_of(name) for name in self.names) * self.options.processes
        return max(states, math.ceil(self.options.volume[0] / (self.options.calls * 0.93)))

    def cold_count(self):
        return self.some_of("first_turn") * self.options.processes

    def natively_in_volume(self):
        options, instrument = self.options, self.instrument
        self.comparison.deadline = self.begin + self.budget * 0.97
        self.enter("native")
        self.native = instrument.sweep("native", options.first, self.volume_count(), self.budget * 0.53)
        if "first_turn" in self.names:
            self.enter("native, what comes before the first turn")
            self.native.merge(instrument.sweep("native", COLD_FIRST + options.first, self.cold_count(), self.budget * 0.1))
        self.enter("native, again")
        again = instrument.sweep("native", options.first, self.volume_count(), self.budget * 0.04, (0, 40))
        self.unstable = {s for s, value in again.hashes.items() if s in self.native.hashes and self.native.hashes[s] != value}

    def state_in_volume(self, name):
        self.enter(name)
        options = self.options
        left = self.budget - (time.monotonic() - self.begin)
        seconds = 0.8 * left / (len(self.names) - self.names.index(name))  # the rest is for what differs
        if name == "first_turn":
            seconds /= 2
        outcome = self.instrument.sweep(name, options.first, self.volume_count(), seconds, self.part_of(name))
        if name == "first_turn":
            outcome.merge(self.instrument.sweep(name, COLD_FIRST + options.first, self.cold_count(), seconds))
        self.compare(name, outcome)

    def state(self, name, share):
        self.enter(name)
        options = self.options
        outcome = self.instrument.sweep(name, options.first, options.count, share * (0.5 if name == "first_turn" else 1))
        if name == "first_turn":
            outcome.merge(self.instrument.sweep(name, COLD_FIRST + options.first, options.count, share * 0.5))
        self.compare(name, outcome)

    def compare(self, name, outcome):
        native, options = self.native, self.options
        crashed = outcome.crashed()
        common = [s for s in outcome.hashes if s in native.hashes and s not in self.unstable]
        apart = self.comparison.apart_in(name)
        differing = sorted(s for s in common if (outcome.others[s] != native.others[s] if apart else outcome.hashes[s] != native.hashes[s]))
        as_native = outcome.crashed_as(native)
        unknown = [s for s in crashed if s in outcome.sites and s in native.hashes and s not in as_native][:OTHER_HEAPS]
        # Where it uses what it has freed, what lies there decides where it crashes.
        of_the_driver = self.instrument.crashing_with_another_heap(unknown)
        as_native |= of_the_driver
        differing += [s for s in crashed if s in native.hashes and s not in as_native]
        stacks = {s: outcome.sites[s].frames[:16] for s in crashed if s in outcome.sites and s not in as_native}
        self.figures[name] = {"calls": outcome.calls(), "compared": len(common), "differing": len(differing), "drops": outcome.swaps,
                              "crashed_as_natively": len(as_native), "crashed_as_natively_with_another_heap": sorted(of_the_driver), "events": outcome.events[:20], "not_looked_at": max(0, len(differing) - options.examined),
                              "first_differing": differing[:40], "crash_stacks": dict(list(stacks.items())[:10])}
        if differing:
            self.enter(f"{name}: line by line, {len(differing[:options.examined])} of {len(differing)} that differ")
            self.comparison.examine(name, differing[:options.examined], (native, outcome))

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
        first = {"native": {"calls": native.calls(), "sequences": len(native.hashes), "events": native.events[:50],
                            "crash_stacks": {s: site.frames[:16] for s, site in list(native.sites.items())[:10]}}}
        result.figure("states", {**first, "not_the_same_natively": len(self.unstable), **self.figures})
        result.figure("coverage", coverage(native, self.is_there))
        result.figure("explained", dict(comparison.explained))
        result.figure("not_seen_again", dict(comparison.unseen))
        result.figure("otherwise_once", dict(comparison.once))
        result.figure("left_behind_natively", dict(comparison.left_behind))
        result.figure("crashed_natively", dict(comparison.crashed_natively))
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


def conformance(config, result):
    """The row of ../run.py."""
    small = {"processes": 1, "count": 60, "states": ["unscheduled", "alone", "switching"]} if config.small else {}
    compare_all(config, result, Options(budget=min(config.left(), 560), **small))


def summary(result):
    return json.dumps(result.as_json(), indent=1, default=str)
