#!/usr/bin/env python3
"""What viewers cost, and how soon they show what happens: `nvsharectl top` in a pseudo-terminal and the page in a headless Chromium.

  bench/viewers.py [--build BUILD] [--clients 200] [--gpus 8] [--seconds 20] [--events 100] [--rates 1,40] [--json FILE] [--all-seen]

The clients are bench/load's, over the scheduler's real socket: all fit, and of so many messages a second (--rates) a tenth asks for the lock, a
tenth gives it up, a twentieth ends a program. One more client, the probe, has a GPU of its own: it asks for the lock and gives it up, and its
tenant gets another priority. From the moment it sends that until the terminal is sent, or the document has, the probe's new state is what is
called from event to screen. Asked: under 100 ms, with viewers under 2 % of a processor each.

The page draws what is on the screen: for the probe its GPU is scrolled to.

What a delay is without a viewer: `bare` asks the scheduler as `top` does, but again at once, reads the answers and shows nothing. Its delays
are the scheduler's part, which lets viewers look at most every 50 ms, and the machine's. The latter is also there beside each viewer
(`sleeper_late_ms`): by how much a thread that sleeps for 5 ms, again and again, wakes up too late.

At last grants of a busier load (--grant-rate) and the scheduler's processor time by the number of viewers (--counts: nine `top` and one page are
ten, where there is a Chromium), in turn, in --pairs rounds, for each of --ways: `plain`, the scheduler's loop a real-time thread where it may be;
`ordinary`, not so (real_time = off); `sliced`, not so, with slices of 0.1 ms; `raised`, ordinary at nice -10; `weighted`, ordinary, the
scheduler in a cgroup of ten times the usual CPU weight, as CPUWeight= of a systemd unit is, the load and the viewers in another; `grouped`, the
same without the weight; `real-time`, scheduler and clients before all else, so that no viewer has the processor that they want, as where there
are more processors than work: what is left of a difference is what viewers cost the scheduler itself. --beside: so many endless compilers run
meanwhile, each in its own session. Under `chrt` only with --pairs 0: viewers would be real-time, too.
With --page-alone made-up reports stand in for all of that, and only the browser's processor time is measured: of the page in --page-folder.

Processor time is the kernel's (/proc/PID/task/*/schedstat), of the page that of all of Chromium's processes.
"""
import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "test/hostile"), str(ROOT / "test/page")]
import chromium  # noqa: E402
import made_up  # noqa: E402
import protocol  # noqa: E402

PROBE = b"vprobe"  # short enough for its column
PROBE_GPU = b"GPU-of-the-probe"  # the bytes of a UUID
PATIENCE_S = 60
START_S = 8  # after so long all viewers have started, and what a browser takes for that is no viewer's
DELAY_MAX_MS, PERCENT_MAX = 100, 2
CALLED_ROWS = 300  # so many lines has the terminal that the probe is looked for in: all clients' rows are on it
LIMITS = (60, 160)
TOP_NICE = 10  # `top` gives way to who is looked at
RAISED_NICE = -10
SLICE_NS, SYS_SCHED_SETATTR = 100_000, {"x86_64": 314, "aarch64": 274}
COMPILES = "while :; do c++ -std=c++20 -O2 -I src -I bench -c bench/load/main.cc -o /dev/null; done"
WEIGHTS = {"grouped": 100, "weighted": 1000}  # of the scheduler's cgroup
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def processor_s(pids):
    busy = 0
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                busy += int(task.read_text().split()[0])
            except (OSError, IndexError):
                pass  # it has just ended
    return busy / 1e9


def family(pid):
    """The process and all that come of it."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def loop_held_up_s(pid):
    """For how long its first thread, which grants, was ready to run while others had the processors."""
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def slice_thread(thread):
    """It preempts threads of longer slices when it wakes up, from Linux 6.12 on."""
    attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, SLICE_NS, 0, 0)  # SCHED_OTHER
    if ctypes.CDLL(None, use_errno=True).syscall(SYS_SCHED_SETATTR[os.uname().machine], thread, attributes, 0) != 0:
        raise SystemExit(f"sched_setattr: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def compilers(count):
    processes = [subprocess.Popen(["sh", "-c", COMPILES], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Cgroup:
    """Of processors, version 1 or 2."""

    def __init__(self, name, weight):
        is_v2 = (CGROUPS / "cgroup.controllers").exists()
        self.folder = (CGROUPS if is_v2 else CGROUPS / "cpu") / name
        self.folder.mkdir()
        try:
            (self.folder / ("cpu.weight" if is_v2 else "cpu.shares")).write_text(str(weight if is_v2 else weight * 1024 // 100))
        except OSError as problem:
            self.folder.rmdir()
            raise SystemExit(f"{self.folder} takes no weight: {problem}; --ways weighted and grouped take root and the controller cpu") from problem

    def take(self, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # one of a browser's, say
                (self.folder / "cgroup.procs").write_text(str(pid))

    def end(self):
        """Its processes are back where they were, if they still live."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self.folder.parent / "cgroup.procs").write_text(pid)
        for _ in range(100):
            with contextlib.suppress(OSError):
                return self.folder.rmdir()
            time.sleep(0.05)
        raise SystemExit(f"{self.folder} has processes that do not end")


def percentile(values, part):
    values = sorted(values)
    return round(values[min(int(len(values) * part), len(values) - 1)], 1) if values else None


class Load:
    """bench/load and its scheduler."""

    def __init__(self, options, rate, seconds, settle=1, way="plain"):
        self.folder = tempfile.mkdtemp(prefix="nvs-viewers-", dir="/tmp")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.page = f"127.0.0.1:{free.getsockname()[1]}"
        self.result, self.wrapper = pathlib.Path(self.folder + ".json"), pathlib.Path(self.folder + ".sh")
        words = ["--clients", options.clients, "--gpus", options.gpus, "--shape", "running", "--rate", rate, "--seconds", seconds, "--status", 0,
                 "--folder", self.folder, "--page", self.page, "--json", self.result, "--settle", settle]
        before = ["chrt", "--rr", "1"] if way == "real-time" else []
        if way == "raised":
            self.wrapper.write_text(f'#!/bin/sh\nexec nice -n {RAISED_NICE} {options.build}/bin/nvshare-scheduler "$@"\n')
            self.wrapper.chmod(0o755)
            words += ["--scheduler", self.wrapper]
        real_time = {} if way in ("plain", "real-time") else {"NVSHARE_REAL_TIME": "off"}
        self.process = subprocess.Popen([*before, str(options.build / "bin/load"), *map(str, words)], stdout=subprocess.DEVNULL,
                                        env={**os.environ, **real_time}, start_new_session=True)
        self.environment = {**os.environ, "NVSHARE_RUNTIME_DIR": self.folder + "/run", "TERM": "xterm-256color"}
        self.admin_path, self.client_path = self.folder + "/run/admin/admin.sock", self.folder + "/run/client/scheduler.sock"
        deadline = time.monotonic() + PATIENCE_S
        while len(self.status().get("clients", [])) < options.clients:
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.kill()  # or who waits for what we say waits for it
                raise SystemExit("the clients of bench/load did not come")
            time.sleep(0.1)
        self.scheduler = self.status()["pid"]
        if way == "sliced":
            slice_thread(self.scheduler)

    def ask(self, **request):
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(PATIENCE_S)
            admin.connect(self.admin_path)
            admin.sendall(json.dumps(request).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                part = admin.recv(1 << 20)
                if not part:
                    raise SystemExit("the scheduler has gone")
                answer += part
        return json.loads(answer)

    def status(self):
        try:
            return self.ask(request="status")
        except OSError:
            return {}

    def kill(self):
        """With all the processes that it plays."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.result.unlink(missing_ok=True)
        self.wrapper.unlink(missing_ok=True)

    def end(self):
        self.process.wait(PATIENCE_S)
        found = json.loads(self.result.read_text())
        self.result.unlink()
        self.wrapper.unlink(missing_ok=True)
        return found


class Probe:
    """A client on a GPU of its own."""

    def __init__(self, load):
        self.load = load
        self.connection = protocol.connect(load.client_path)
        self.connection.send(protocol.encode("Register", version_min=1, version_max=protocol.VERSION_MAX, gpu_uuid=PROBE_GPU,
                                             gpu_total_bytes=1 << 30, gpu_name=b"test card", program=PROBE, pid=os.getpid()))
        self.wait_for("Registered")
        status = load.status()
        (client,) = [client for client in status["clients"] if client["program"] == PROBE.decode()]
        self.tenant, self.gpu = client["tenant"], client["gpu"]
        self.grant = None
        self.requests = 0
        # A priority outlives the tenant's programs: an earlier probe of this process has left it one.
        (self.priority,) = [tenant["priority"] for tenant in status["tenants"] if tenant["id"] == self.tenant]

    def wait_for(self, wanted):
        while True:
            name, fields = protocol.decode(self.connection.recv(65536))
            if name == wanted:
                return fields

    def happen(self):
        """Something that can be seen: (its kind, the state that is to be seen, the priority that is to be seen)."""
        if random.random() < 1 / 3:
            self.priority = (self.priority + 1) % 90 + 10
            self.load.ask(request="set", tenant=str(self.tenant), priority=self.priority)
        elif self.grant:
            self.connection.send(protocol.encode("LockReleased", epoch=self.grant["epoch"], grant=self.grant["grant"], reason=1))
            self.grant = None
        else:
            self.requests += 1
            self.connection.send(protocol.encode("ReqLock", request=self.requests))
            self.grant = self.wait_for("LockOk")
        return "running" if self.grant else "idle", self.priority


class Top:
    """`nvsharectl top` in a pseudo-terminal, and what it shows of the probe."""

    def __init__(self, build, load, lines=LIMITS[0]):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execve(build / "bin/nvsharectl", ["nvsharectl", "top", "--no-colour"], load.environment)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, LIMITS[1], 0, 0))
        os.kill(self.pid, signal.SIGWINCH)
        self.seen, self.changed = None, threading.Condition()
        self.rest = b""
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        while True:
            try:
                part = os.read(self.terminal, 1 << 16)
            except OSError:
                return
            at = time.monotonic()
            self.rest += part
            lines = self.rest.split(b"\033[K")
            self.rest = lines.pop()
            for line in lines:
                if re.search(rb"%s +%s " % (PROBE, PROBE), line):  # the row of the tenant and its program
                    with self.changed:
                        self.seen = (line.decode(errors="replace"), at)
                        self.changed.notify_all()

    def look_at(self, _gpu):
        pass  # all rows are on the terminal

    def shown_at(self, state, priority, patience_s):
        def shows():
            return self.seen and re.search(rf"\b{state}\b", self.seen[0]) and (not priority or re.search(rf"\s{priority}\s", self.seen[0]))
        with self.changed:
            return self.seen[1] if self.changed.wait_for(shows, patience_s) else None

    def last_seen(self):
        return self.seen and self.seen[0]

    def pids(self):
        return [self.pid]

    def close(self):
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


# Notes when the probe's row and its tenant's say something else, in the clock of time.monotonic() once `offset` is added.
WATCH = """(() => {
  window.seen = null;
  const look = () => {
    for (const row of document.querySelectorAll('.programs tbody tr')) {
      if (row.cells[0].textContent !== 'vprobe') continue;
      const tenant = row.closest('.gpu').querySelector('.tenants tbody tr');
      const text = row.cells[3].textContent + ' ' + (tenant ? tenant.cells[9].textContent : '');
      if (window.seen && window.seen.text === text) return;
      window.seen = {text, at: performance.now()};
    }
  };
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
  look();
})()"""


class Page:
    def __init__(self, _build, load):
        self.browser = chromium.Chromium(chromium.find())
        self.tab = self.browser.open(f"http://{load.page}/")
        self.tab.wait_for("document.getElementById('connection')?.textContent === 'Live'")
        self.tab.evaluate(WATCH)
        # Between two readings of the page's clock lies the answer's way, a millisecond or two: the shortest of some counts.
        offsets = []
        for _ in range(20):
            before = time.monotonic()
            there = self.tab.evaluate("performance.now()") / 1e3
            offsets.append((time.monotonic() - before, (time.monotonic() + before) / 2 - there))
        self.offset = min(offsets)[1]

    def look_at(self, gpu):
        panel = f"document.querySelector('[data-gpu=\"{gpu}\"]')"
        if not self.tab.wait_for(f"{panel} !== null", PATIENCE_S):
            raise SystemExit("the page does not show the probe's GPU")
        self.tab.evaluate(f"{panel}.scrollIntoView()")

    def shown_at(self, state, priority, patience_s):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            time.sleep(0.15)  # looking costs the page's own time: seldom, and after it should have been seen
            seen = self.tab.evaluate("window.seen")
            if seen and seen["text"] == f"{state} {priority}":
                return seen["at"] / 1e3 + self.offset
        return None

    def last_seen(self):
        seen = self.tab.evaluate("window.seen")
        return seen and seen["text"]

    def pids(self):
        return family(self.browser.process.pid)

    def close(self):
        self.browser.close()


class Bare:
    """Asks for what is new, and shows nothing."""

    def __init__(self, _build, load):
        self.rows, self.priorities, self.changed, self.ended = {}, {}, threading.Condition(), False
        self.admin = socket.socket(socket.AF_UNIX)
        self.admin.connect(load.admin_path)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        known, rest = 0, b""
        while not self.ended:
            self.admin.sendall(json.dumps({"request": "status", "changes": known, "within_ms": 5000 if known else 0, "early_ms": 0,
                                           "brief": True}).encode() + b"\n")
            while b"\n" not in rest:
                part = self.admin.recv(1 << 20)
                if not part:
                    return
                rest += part
            at = time.monotonic()
            line, _, rest = rest.partition(b"\n")
            report = json.loads(line)
            known = report["changes"]
            with self.changed:
                for tenant in report.get("tenants", []):
                    self.priorities[tenant["id"]] = tenant.get("priority", 0), at
                for client in report.get("clients", []):
                    if client.get("program") == PROBE.decode():
                        self.rows = {"state": client["state"], "tenant": client["tenant"], "at": at}
                self.changed.notify_all()

    def look_at(self, _gpu):
        pass

    def shown_at(self, state, priority, patience_s):
        def shows():
            return self.rows and self.rows["state"] == state and self.priorities.get(self.rows["tenant"], (None,))[0] == priority
        with self.changed:
            if not self.changed.wait_for(shows, patience_s):
                return None
            return max(self.rows["at"], self.priorities[self.rows["tenant"]][1])

    def last_seen(self):
        return self.rows, self.rows and self.priorities.get(self.rows["tenant"])

    def close(self):
        self.ended = True
        self.admin.shutdown(socket.SHUT_RDWR)


class Sleeper:
    """How late this machine lets one run that was asleep."""
    SLEEP_S = 0.005

    def __init__(self):
        self.late_ms, self.ends = [], threading.Event()
        self.thread = threading.Thread(target=self.sleep, daemon=True)
        self.thread.start()

    def sleep(self):
        while not self.ends.is_set():
            before = time.monotonic()
            time.sleep(self.SLEEP_S)
            self.late_ms.append((time.monotonic() - before - self.SLEEP_S) * 1e3)

    def found(self):
        self.ends.set()
        self.thread.join()
        return {"p50": percentile(self.late_ms, 0.5), "p99": percentile(self.late_ms, 0.99), "max": round(max(self.late_ms), 1)}


def measure_delays(viewer, probe, count, pause_s, patience_s):
    delays, missed, began, sleeper = [], 0, time.monotonic(), Sleeper()
    for _ in range(count):
        time.sleep(random.uniform(pause_s / 2, pause_s * 3 / 2))
        at = time.monotonic()
        wanted = probe.happen()
        seen = viewer.shown_at(*wanted, patience_s)
        if seen is None:
            missed += 1
            print(f"not seen within {patience_s} s: {wanted}; {type(viewer).__name__} shows {viewer.last_seen()}", file=sys.stderr)
        else:
            delays.append((seen - at) * 1e3)
    return {"events": count, "events_per_second": round(count / (time.monotonic() - began), 2), "not_seen": missed,
            "p50_ms": percentile(delays, 0.5), "p90_ms": percentile(delays, 0.9), "p99_ms": percentile(delays, 0.99),
            "max_ms": round(max(delays), 1) if delays else None, "sleeper_late_ms": sleeper.found()}


def measure_costs(viewer, load, seconds):
    pids, before = viewer.pids() if viewer else [], time.monotonic()
    used, scheduler = processor_s(pids), processor_s([load.scheduler])
    time.sleep(seconds)
    took = time.monotonic() - before
    return {"cpu_percent": round((processor_s(pids) - used) * 100 / took, 2),
            "scheduler_cpu_percent": round((processor_s([load.scheduler]) - scheduler) * 100 / took, 2)}


def measure(options, rate):
    # For as long as it may take where the machine is busy; it is killed at the end.
    load = Load(options, rate, options.seconds * 3 + options.events * 2 * (options.pause + options.patience) + options.settle * 6 + PATIENCE_S * 2)
    found = {"messages_per_second": rate}
    try:
        time.sleep(options.settle)
        found["no_viewer"] = measure_costs(None, load, options.seconds)
        viewers = {"bare": lambda: Bare(options.build, load), "top": lambda: Top(options.build, load)}
        if chromium.find():
            viewers["page"] = lambda: Page(options.build, load)
        for name, begin in viewers.items():
            viewer = begin()
            time.sleep(options.settle)
            found[name] = measure_costs(viewer, load, options.seconds) if name != "bare" else {}
            if name == "top":  # in one that shows all rows
                wanted, at = min(os.getpriority(os.PRIO_PROCESS, 0) + TOP_NICE, 19), os.getpriority(os.PRIO_PROCESS, viewer.pid)
                if at != wanted:
                    raise SystemExit(f"`top` runs at nice {at}, not {wanted}: it holds up whom it shows")
                viewer.close()
                viewer = Top(options.build, load, CALLED_ROWS)
            probe = Probe(load)
            viewer.look_at(probe.gpu)
            if viewer.shown_at("idle", probe.priority, PATIENCE_S) is None:
                raise SystemExit(f"{name} does not show the probe, but {viewer.last_seen()}")
            found[name]["from_event_to_screen"] = measure_delays(viewer, probe, options.events, options.pause, options.patience)
            probe.connection.close()
            viewer.close()
            time.sleep(1)
    finally:
        load.kill()
    return found


def measure_page_alone(options, rate):
    """With made-up reports in place of a scheduler, which is not measured: `rate` changes a second."""
    scheduler = made_up.Scheduler(options.gpus, options.clients)
    ends = threading.Event()

    def change():
        while not ends.wait(random.expovariate(rate)):
            scheduler.change(random.choice(scheduler.gpus))
    threading.Thread(target=change, daemon=True).start()
    browser = chromium.Chromium(chromium.find())
    tab = browser.open(scheduler.url)
    tab.wait_for("document.getElementById('connection')?.textContent === 'Live'")
    time.sleep(options.settle)
    pids, before = family(browser.process.pid), time.monotonic()
    used = processor_s(pids)
    time.sleep(options.seconds)
    found = {"changes_per_second": rate, "cpu_percent": round((processor_s(pids) - used) * 100 / (time.monotonic() - before), 2)}
    browser.close()
    ends.set()
    scheduler.close()
    return found


def open_viewers(options, load, count):
    page = count > 1 and bool(chromium.find()) and not options.no_page
    return [Top(options.build, load) for _ in range(count - 1 if page else count)] + ([Page(options.build, load)] if page else [])


def measure_grants(options):
    """Of the load's own clients, by the number of viewers, in turn."""
    found = {"messages_per_second": options.grant_rate, "runs": []}
    for _ in range(options.pairs):
        for way in options.ways.split(","):
            for count in map(int, options.counts.split(",")):
                load = Load(options, options.grant_rate, options.seconds, START_S, way)
                began = time.monotonic()
                viewers = open_viewers(options, load, count)
                groups = []
                if way in WEIGHTS:
                    groups = [Cgroup(f"nvs-viewers-{os.getpid()}-others", 100), Cgroup(f"nvs-viewers-{os.getpid()}", WEIGHTS[way])]
                    groups[0].take([load.process.pid, *(pid for viewer in viewers for pid in viewer.pids())])
                    groups[1].take([load.scheduler])
                time.sleep(max(began + START_S - time.monotonic(), 0))
                held_up, since = loop_held_up_s(load.scheduler), time.monotonic()
                time.sleep(options.seconds * 0.8)
                loop = {"loop_held_up_percent": (loop_held_up_s(load.scheduler) - held_up) * 100 / (time.monotonic() - since)}
                mix = load.end()["mix"]
                for viewer in viewers:
                    viewer.close()
                for group in groups:
                    group.end()
                found["runs"].append({"way": way, "viewers": count, **loop, **{key: mix[key] for key in (
                    "grants", "grant_p50_ms", "grant_p99_ms", "cpu_percent", "scheduler_held_up_percent", "load_held_up_percent")}})
    return found


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was begun is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--settle", type=float, default=4, help="seconds before a viewer is measured")
    parser.add_argument("--pause", type=float, default=1, help="seconds between two events, half as much more or less")
    parser.add_argument("--patience", type=float, default=5, help="seconds after which an event counts as not seen")
    parser.add_argument("--all-seen", action="store_true", help="fails where an event was not seen")
    parser.add_argument("--rates", default="1,40", help="messages per second of all clients together")
    parser.add_argument("--grant-rate", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=3, help="rounds of grants")
    parser.add_argument("--counts", default="0,10,0", help="how many viewers there are while grants are measured")
    parser.add_argument("--ways", default="plain", help="plain,ordinary,sliced,raised,weighted,grouped,real-time: grants; the last four take root")
    parser.add_argument("--beside", type=int, default=0, help="so many endless compilers run beside grants")
    parser.add_argument("--no-page", action="store_true", help="grants: ten `top` and no Chromium")
    parser.add_argument("--page-alone", action="store_true")
    parser.add_argument("--page-folder", type=pathlib.Path, default=made_up.PAGE, help="such as one of an earlier version")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.build = options.build.resolve()
    if options.pairs and not options.page_alone and os.sched_getscheduler(0) != os.SCHED_OTHER:
        raise SystemExit("grants are measured without chrt, under which viewers would be real-time, too; accepted: --pairs 0, or no chrt")
    if not chromium.find():
        print("there is no Chromium: the page is left out; tools/install-dependencies.sh test installs one", file=sys.stderr)
    found = {"clients": options.clients, "gpus": options.gpus, "processors": os.cpu_count(), "load_average_before": os.getloadavg()[0],
             "asked": {"cpu_percent": PERCENT_MAX, "from_event_to_screen_ms": DELAY_MAX_MS}}
    rates = [float(rate) for rate in options.rates.split(",") if rate]
    if options.page_alone:
        made_up.PAGE = options.page_folder
        found["page_alone"] = [measure_page_alone(options, rate) for rate in rates]
    else:
        found["viewers"] = [measure(options, rate) for rate in rates]
    if options.pairs and not options.page_alone:
        with compilers(options.beside):
            found["grants"] = {"compilers": options.beside, **measure_grants(options)}
    found["load_average_after"] = os.getloadavg()[0]
    print(text := json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(text + "\n")
    seen = [each[name]["from_event_to_screen"] for each in found.get("viewers", []) for name in ("bare", "top", "page") if name in each]
    if options.all_seen and (missed := sum(each["not_seen"] for each in seen)):
        sys.exit(f"{missed} events were not seen")


if __name__ == "__main__":
    main()
