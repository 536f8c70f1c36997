"""A first look at a GPU, half a minute at most: where the time of a few sequences goes, in one process.

The program counts its calls in memory that it shares with its child (`Progress`, execute.h); it is read from outside many times a second, so
that the time between is known for each entry point. Without access to that memory there are seconds per sequence only.
"""
import collections
import os
import re
import subprocess
import struct
import threading
import time

PROGRESS = struct.Struct("<QQii?")  # beat, sequence, call, op, poisoned


def shared_address(pid):
    """Where `Progress` lies in the process, or None."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            for line in maps:
                if re.search(r"\srw-s\s.*(/dev/zero|\(deleted\))", line):
                    return int(line.partition("-")[0], 16)
    except OSError:
        pass
    return None


class Sampler:
    def __init__(self):
        self.seconds = collections.Counter()     # op -> seconds; "start", "clean-up"
        self.beats = collections.Counter()       # op -> calls seen
        self.longest = collections.Counter()     # op -> seconds of one call
        self.samples = 0
        self.problem = ""
        self.arrivals = []  # when each sequence was over
        self.last = None
        self.since = None

    def follow(self, process, deadline):
        """Until the process ends."""
        descriptor = address = None
        before = time.monotonic()
        read = 0
        while process.end is None and time.monotonic() < deadline:
            if descriptor is None and not self.problem:
                address = shared_address(process.pid)
                if address is not None:
                    try:
                        descriptor = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY)
                    except OSError as error:
                        self.problem = f"its memory cannot be read: {error}"
            time.sleep(0.0003)
            now = time.monotonic()
            read = self.take_lines(process, read, now)
            if descriptor is not None:
                try:
                    self.take(PROGRESS.unpack(os.pread(descriptor, PROGRESS.size, address)), now - before, now)
                except (OSError, struct.error) as error:
                    if not self.samples:
                        self.problem = self.problem or f"its memory cannot be read: {error}"
                    os.close(descriptor)
                    descriptor = None
                    address = None
                    time.sleep(0.01)
            before = now
        self.take_lines(process, read, time.monotonic())
        if descriptor is not None:
            os.close(descriptor)
        if not self.samples:
            self.problem = self.problem or "the program's shared memory was not found"

    def take_lines(self, process, read, now):
        lines = process.lines[read:]
        self.arrivals += [now for line in lines if line.startswith("S ")]
        return read + len(lines)

    def take(self, state, seconds, now):
        beat, _, call, op, _ = state
        key = "start of a process" if beat == 0 else op if call >= 0 else "clean-up and making plans"
        if self.last != (beat, key):
            self.last, self.since = (beat, key), now
            self.beats[key] += 1
        self.longest[key] = max(self.longest[key], now - self.since)
        self.seconds[key] += seconds
        self.samples += 1


def probe(instrument, journal, name, sequences, beside=0):
    """Figures, and lines to print. `beside`: so many other processes make sequences of their own meanwhile, natively."""
    state = instrument.states[name]
    journal.enter(f"probe {name}")
    symbols = subprocess.run([instrument.program, "--symbols"], capture_output=True, text=True, timeout=10, check=False).stdout.split()
    sampler = Sampler()
    begin = time.monotonic()

    def watch(process):
        sampler.follow(process, instrument.deadline)

    others = [instrument.arguments(instrument.states["native"], ["--first", 1_000_000 * number, "--count", 100_000, "--seconds", int(instrument.left())])
              for number in range(1, beside + 1)]
    if others:
        threading.Thread(target=instrument.group, args=(instrument.states["native"], others, instrument.left()), daemon=True).start()
    outcome = instrument.group(state, [instrument.arguments(state, ["--count", sequences, "--verbose"])], max(1, instrument.left()),
                               watch=watch)[0]
    wall = time.monotonic() - begin
    rows = []
    for key, seconds in sampler.seconds.most_common():
        symbol = symbols[key] if isinstance(key, int) and 0 <= key < len(symbols) else str(key)
        made = sampler.beats[key]
        rows.append({"what": symbol, "seconds": round(seconds, 3), "calls_seen": made, "ms_a_call": round(1000 * seconds / max(1, made), 3),
                     "longest_ms": round(1000 * sampler.longest[key], 1)})
    merged = {}  # an entry point has several rows of the table
    for row in rows:
        entry = merged.setdefault(row["what"], dict(row, seconds=0.0, calls_seen=0))
        entry["seconds"] = round(entry["seconds"] + row["seconds"], 3)
        entry["calls_seen"] += row["calls_seen"]
        entry["longest_ms"] = max(entry["longest_ms"], row["longest_ms"])
        made = outcome.counts[row["what"]] + outcome.failures[row["what"]] or entry["calls_seen"]
        entry["ms_a_call"] = round(1000 * entry["seconds"] / max(1, made), 3)
    rows = sorted(merged.values(), key=lambda row: -row["seconds"])
    ends = [round(at - begin, 3) for at in sampler.arrivals]
    durations = [round(b - a, 3) for a, b in zip([0.0] + ends, ends)]
    return {"state": name, "wall_s": round(wall, 2), "sequences": len(outcome.hashes), "calls": outcome.calls(), "events": outcome.events[:30],
            "ends_s": ends, "seconds_each": durations, "first_is_with_start": True, "samples": sampler.samples, "problem": sampler.problem,
            "time": rows[:60]}


def lines_of(figures):
    yield (f"probe {figures['state']}: {figures['sequences']} sequences, {figures['calls']} calls in {figures['wall_s']} s; events "
           f"{figures['events']}")
    yield f"seconds of each sequence (the first with the start of the process): {figures['seconds_each']}"
    if figures["problem"]:
        yield f"no time per call: {figures['problem']}"
    phases = [row for row in figures["time"] if " " in row["what"]]
    for row in phases + [row for row in figures["time"] if row not in phases][:20]:
        yield (f"  {row['seconds']:8.3f} s  {row['ms_a_call']:9.3f} ms a call  longest {row['longest_ms']:7.1f} ms  {row['calls_seen']:5d} seen  "
               f"{row['what']}")
