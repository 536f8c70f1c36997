"""What a real driver answered, kept in a file, and the same calls made once more on the stand-in GPU.

A recording is text, compressed: for each sequence a line `=`, then each call and, after `> `, what came back; `~ ` lines are from taking everything
away. Replaying makes the recorded calls, not those of the generator as it is now.
"""
import collections
import concurrent.futures
import fnmatch
import gzip
import pathlib
import re
import threading
import time

from checks import conformance as checks

LACKING = "801"  # what the stand-in answers for a call that it does not have


def append(path, plans, outcomes):
    """Adds what is whole to the file, as a compressed part of its own: the file can be read at any time. How many sequences and calls."""
    text, sequences, calls = [], 0, 0
    for plan, outcome in zip(plans, outcomes):
        if not outcome or outcome[-1].startswith("crashed") or len(outcome) < len(plan):
            continue  # nothing to compare with
        text.append("=\n")
        text += [f"{line}\n> {said.partition(' ')[2]}\n" for line, said in zip(plan, outcome)]
        text += [f"~ {said}\n" for said in outcome[len(plan):]]
        sequences += 1
        calls += len(plan)
    if text:
        with open(path, "ab") as file:
            file.write(gzip.compress("".join(text).encode(), 9))
    return sequences, calls


def read(path):
    """Sequences: lists of (call, what came back), and the lines of the end."""
    sequences = []
    with gzip.open(path, "rt") as file:
        for line in file.read().splitlines():
            if line == "=":
                sequences.append(([], []))
            elif line.startswith("> "):
                call = sequences[-1][0].pop()
                sequences[-1][0].append((call, f"{symbol_of(call)} {line[2:]}"))
            elif line.startswith("~ "):
                sequences[-1][1].append(line[2:])
            else:
                sequences[-1][0].append(line)
    return sequences


def symbol_of(call):
    words = call.split()
    return words[1] if words[0].startswith("@") else words[0]


def record(instrument, path, sequences, say=lambda text: None, each=100):
    """Records until all are done or the time is over; what is made is in the file a second later. What crashes the driver gets right arguments
    only in the parts that follow, and is left out where that does not help. How many sequences and calls were recorded."""
    pathlib.Path(path).unlink(missing_ok=True)
    lock = threading.Lock()
    done = [0, 0]

    def part(first):
        if instrument.left() < 1:
            return
        tamed = set(instrument.tame)
        plans = instrument.plans(range(first, min(first + each, sequences)))
        read = 0

        def keep(process):
            nonlocal read
            lines = process.lines[read:]
            whole = next((at + 1 for at in range(len(lines) - 1, -1, -1) if lines[at][:2] in ("S ", "X ", "H ", "P ")), 0)
            read += whole
            said = checks.Outcome()
            said.take(lines[:whole])
            crashed = said.crashed()
            numbers = [number for number in said.lines if number not in crashed and number < len(plans)]
            with lock:
                made = append(path, [plans[number] for number in numbers], [said.lines[number] for number in numbers])
                done[0] += made[0]
                done[1] += made[1]
                for rest in crashed.values():
                    symbol = rest.split()[2]
                    if symbol != "-":
                        instrument.blame(symbol, "without" if symbol in tamed else "tame")

        def watch(process):
            while process.end is None and instrument.left() > 0:
                time.sleep(0.02)
                if time.monotonic() - watch.kept > 1:
                    watch.kept = time.monotonic()
                    keep(process)
            keep(process)

        watch.kept = time.monotonic()
        instrument.run_plans("native", plans, max(1.0, instrument.left()), watch)
        say(f"recorded {done[0]} sequences, {done[1]} calls")

    with concurrent.futures.ThreadPoolExecutor(max(1, instrument.options.processes)) as pool:
        for _ in pool.map(part, range(0, sequences, each)):
            pass
    return tuple(done)


def objects_of(call):
    """Objects that a call makes, uses and writes, as names like `s3`; and whether it writes all of what it writes."""
    made, used, written, whole = set(), set(), set(), False
    for word in call.split():
        kind, _, rest = word.lstrip("~").partition(":")
        slot = rest.split(":")[0]
        if kind.startswith("+"):
            made.add(kind[1:] + slot)
        elif kind == "bind":
            made.add("m" + slot)
        elif kind == "dst":
            written.add("m" + slot)
            whole = rest.split(":")[2] == "1"
        elif kind in ("src", "ptr", "freed", "lost"):
            used.add("m" + slot)
        elif kind == "at":
            used.add("r" + slot)
        elif kind.startswith("-") and len(kind) == 2:
            used.add(kind[1:] + slot)
        elif len(kind) == 1 and kind != "i" and slot:
            used.add(kind + slot)
    return made, used, written, whole


def without(calls, lacking):
    """Which calls stay when those of `lacking` cannot be made: not those either that need what these would have made or written."""
    gone = set()     # what is not there, or holds something else
    lasting = set()  # memory that a graph writes otherwise, or not at all, at each launch
    targets = collections.defaultdict(set)  # of each node, the memory that it writes
    present = set()  # of these, memory that is there all the same: it can be freed
    memory = set()   # all that was made
    stays = []
    for call in calls:
        made, used, written, whole = objects_of(call)
        memory |= {name for name in made if name[0] == "m"}
        lasting -= made
        nodes = {name for name in made | used if name[0] == "n"}
        if symbol_of(call) in lacking and nodes:
            lasting |= {name for name in written if name[0] == "m"}.union(*(targets[node] for node in nodes))
        for node in nodes & made:
            targets[node] = set()
        for node in nodes:
            targets[node] |= {name for name in written if name[0] == "m"}
        frees = {word[1] + word.partition(":")[2] for word in call.split() if re.match(r"-m:\d+$", word)}
        if frees and frees <= present and symbol_of(call) not in lacking and not (used - frees) & gone:
            gone -= frees
            present -= frees
            stays.append(True)
        elif symbol_of(call) in lacking or used & gone or (written & gone and not whole):
            # Streams, events, contexts and pools are as they were; graphs and memory are not.
            present |= {name for name in written if name[0] == "m" and name not in gone}
            present -= made
            gone |= made | written | {name for name in used if name[0] in "gxna"}
            if "GraphLaunch" in call:  # whatever it would have written
                gone |= memory
                present |= memory
            stays.append(False)
        else:
            now = written if whole and not call.startswith("cuGraph") else set()  # a node writes when its graph runs
            gone -= made | now
            present -= made | now
            if "GraphLaunch" in call:
                gone |= lasting
                present |= lasting
            stays.append(True)
    return stays, gone


LASTING = re.compile(r"cuDevicePrimaryCtx(Retain|Release|Reset|SetFlags)")
GONE = "709"  # the context is destroyed


def stands_alone(sequence):
    """Whether it needs nothing of what earlier sequences of its process left: the primary context, and how often that was retained. Recordings
    from before such sequences ended their process have others (README.md of test/gpu/conformance)."""
    calls, end = sequence
    return not any(checks.code_of(was) == GONE or (LASTING.match(symbol_of(call)) and checks.code_of(was) == "0") for call, was in calls) \
        and not any(line.endswith(" " + GONE) for line in end)


class Replay:
    """Each sequence in a process of its own."""

    def __init__(self, instrument, sequences, rows):
        self.instrument = instrument
        self.sequences = [sequence for sequence in sequences if stands_alone(sequence)]
        self.left_out = len(sequences) - len(self.sequences)
        self.rows = rows
        self.lacking = set()
        self.differences = []
        self.known = collections.Counter()
        self.compared = 0
        self.parted = 0

    def run(self):
        plans = [[call for call, _ in calls] for calls, _ in self.sequences]
        self.find_lacking(plans, self.answers(plans))
        kept = [without(plan, self.lacking) for plan in plans]
        shorter = [[call for call, stay in zip(plan, stays) if stay] for plan, (stays, _) in zip(plans, kept)]
        for number, (answers, (stays, gone)) in enumerate(zip(self.answers(shorter), kept)):
            self.compare(number, answers, stays, gone)
        return self

    def answers(self, plans):
        found = []
        for at in range(0, len(plans), 200):
            found += self.instrument.run_plans("native_fresh", plans[at:at + 200])
        return found

    def find_lacking(self, plans, answers):
        """Entry points that answered "not supported" each time, and did not in the recording."""
        seen = collections.defaultdict(set)
        recorded = collections.defaultdict(set)
        for plan, said, (calls, _) in zip(plans, answers, self.sequences):
            for call, line, (_, was) in zip(plan, said, calls):
                if checks.code_of(line) != "-":
                    seen[symbol_of(call)].add(checks.code_of(line))
                    recorded[symbol_of(call)].add(checks.code_of(was))
        self.lacking = {symbol for symbol, codes in seen.items() if codes == {LACKING} and recorded[symbol] != {LACKING}}

    def compare(self, number, answers, stays, gone):
        calls, end = self.sequences[number]
        expected = [pair for pair, stay in zip(calls, stays) if stay]
        for at, (call, was) in enumerate(expected):
            said = answers[at] if at < len(answers) else "(ended)"
            self.compared += 1
            if said == was:
                continue
            if "-" in (checks.code_of(was), checks.code_of(said)):
                self.parted += 1  # not made here or there, because of what was left out before it: the driver did not answer
                return
            row = self.known_row(call, was, said)
            if row is not None:
                self.known[row["name"]] += 1
            else:
                self.differences.append({"sequence": number, "call": call, "recorded": was, "answered": said,
                                         "before": [c for c, _ in expected[:at]]})
            if not checks.HARMLESS.match(was) and checks.code_of(said) != checks.code_of(was):
                return  # what comes after it is not the same any more
        checked = {line.split()[1]: line for line in answers[len(expected):] if line.startswith("~check")}
        for line in end:
            if line.startswith("~check") and line.split()[1] not in gone and checked.get(line.split()[1], line) != line:
                self.differences.append({"sequence": number, "call": "~check", "recorded": line, "answered": checked[line.split()[1]], "before": []})

    def known_row(self, call, was, said):
        for row in self.rows:
            if any(fnmatch.fnmatchcase(symbol_of(call), pattern) for pattern in row["symbols"]) and re.fullmatch(row.get("call", ".*"), call) \
                    and re.fullmatch(row.get("recorded", ".*"), was.partition(" ")[2]) \
                    and re.fullmatch(row.get("answered", ".*"), said.partition(" ")[2]):
                return row
        return None

    def kinds(self):
        """One example of each kind of difference, most frequent first."""
        kinds = {}
        for difference in self.differences:
            key = (symbol_of(difference["call"]), checks.code_of(difference["recorded"]), checks.code_of(difference["answered"]))
            kinds.setdefault(key, [0, difference])[0] += 1
        return sorted(kinds.values(), key=lambda entry: -entry[0])
