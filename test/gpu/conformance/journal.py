"""What a run has done so far, on the screen and in files while it goes on, and its end in time whatever happens.

A thread prints a line of progress every few seconds and rewrites the results. It also ends the program: shortly after the deadline, or when
SIGTERM or SIGINT has come. Nothing else is waited for then, the driver least of all.
"""
import collections
import os
import signal
import threading
import time

from harness import Process

GRACE_S = 2.0  # after the deadline: children are killed, and the run may end by itself


class Journal:
    def __init__(self, deadline, save, say_every=5.0, save_every=10.0):
        """`save(reason)` writes the results as they are; `reason` is empty while the run goes on."""
        self.begin = time.monotonic()
        self.deadline = deadline
        self.save = save
        self.phase = "start"
        self.phases = []  # [name, seconds, sequences, calls, crashes]
        self.sequences = self.calls = self.starts = 0
        self.crashes = collections.Counter()
        self.reason = ""
        self.closed = False
        self._at_phase = (self.begin, 0, 0, 0)
        self._seen = {}  # process -> lines that were counted
        self._lock = threading.RLock()
        self._saving = threading.Lock()
        self._every = (say_every, save_every)
        threading.Thread(target=self._run, daemon=True).start()

    def catch_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number, _):
        self.reason = self.reason or signal.Signals(number).name  # the thread sees it

    # ---- what happens ----
    def say(self, text):
        print(f"[{time.monotonic() - self.begin:6.1f} s] {text}", flush=True)

    def enter(self, phase):
        """A phase begins, and the one before it is over: the results are written."""
        with self._lock:
            self._end_phase()
            self.phase = phase
        self.say(f"begins: {phase}")
        self.write()

    def _end_phase(self):
        self.count()
        since, sequences, calls, crashes = self._at_phase
        now = time.monotonic()
        blamed = sum(self.crashes.values())
        self.phases.append([self.phase, round(now - since, 1), self.sequences - sequences, self.calls - calls, blamed - crashes])
        self._at_phase = (now, self.sequences, self.calls, blamed)

    def watch(self, process):
        with self._lock:
            self._seen[process] = 0
            self.starts += 1

    def forget(self, process):
        with self._lock:
            self._count_one(process)
            self._seen.pop(process, None)

    def count(self):
        with self._lock:
            for process in list(self._seen):
                self._count_one(process)

    def _count_one(self, process):
        at = self._seen.get(process)
        if at is None:
            return
        lines = process.lines[at:]
        self._seen[process] = at + len(lines)
        for line in lines:
            words = line.split()
            if line.startswith("S ") and len(words) == 6:
                self.sequences += 1
                self.calls += int(words[4])
            elif line[:2] in ("X ", "H ") and len(words) >= 4:
                self.crashes[words[3] + (" (hangs)" if words[0] == "H" else "")] += 1
            elif line.startswith("P "):
                self.starts += 1
        # A child that crashed or hung is followed by another one.
        self.starts += sum(1 for line in lines if line[:2] in ("X ", "H "))

    def progress(self):
        self.count()
        since, sequences, calls, _ = self._at_phase
        seconds = max(0.1, time.monotonic() - since)
        blamed = ", ".join(f"{symbol} {count}" for symbol, count in self.crashes.most_common(8)) or "none"
        return (f"{self.phase}: {len(self._seen)} running, {self.sequences - sequences} sequences, {self.calls - calls} calls, "
                f"{(self.calls - calls) / seconds:.0f} calls/s; in all {self.sequences} sequences, {self.calls} calls, "
                f"{self.starts} processes with a context; crashes and hangs: {blamed}")

    def figures(self):
        """For the results: where the time went."""
        with self._lock:
            self.count()
            now = [self.phase, round(time.monotonic() - self._at_phase[0], 1), self.sequences - self._at_phase[1], self.calls - self._at_phase[2]]
            return {"seconds": round(time.monotonic() - self.begin, 1), "phases (name, seconds, sequences, calls, crashes)": self.phases + [now],
                    "sequences": self.sequences, "calls": self.calls, "processes_with_a_context": self.starts,
                    "crashes_and_hangs": dict(self.crashes.most_common()), "ended_early": self.reason}

    # ---- writing, and the end ----
    def write(self):
        with self._saving:
            try:
                self.save(self.reason)
            except Exception as error:  # while something is being changed: the next time
                self.say(f"the results could not be written: {error!r}")

    def close(self):
        """The run ends by itself; what is written last is its own."""
        with self._lock:
            self.closed = True

    def _run(self):
        said = saved = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            if now > self.deadline + GRACE_S:
                self.reason = self.reason or "out of time"
            if self.reason:
                if self.closed:  # all is written: only something that does not die is waited for
                    kill_all()
                    os._exit(1)
                self._end()
            if now - said >= self._every[0] and not self.closed:
                said = now
                self.say(self.progress())
            if now - saved >= self._every[1] and not self.closed:
                saved = now
                self.write()

    def _end(self):
        """Kills what runs, writes what there is, and ends this process; 2.5 s at most."""
        last = threading.Timer(2.5, os._exit, (1,))
        last.daemon = True
        last.start()
        kill_all()
        try:
            self.say(f"ends early ({self.reason}): {self.progress()}")
            self.write()
        finally:
            os._exit(1)


def kill_all():
    for process in list(Process.alive):
        process.kill()
