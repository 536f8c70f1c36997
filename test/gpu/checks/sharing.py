"""Check sharing: how much work programs that fit together get done, natively, under nvshare, with `sharing = turns` and with `mps = on`, in one run.
With the row `auto` also with `sharing = auto`, without and with MPS: against the best of the fixed ways, and how soon it is chosen.

A row is a load; what is measured is the sum of the programs' work over what one of them gets done alone and natively. `mixed`: one program
that is attached to the MPS server beside one that is not, both saturating. Then, under MPS: a program that is killed, by nvsharectl too, one that faults, the
daemon killed; and what the control daemon answers, word for word. --rows picks of: control, 1ms, 20us, small, bursty, auto, limits, mixed, deaths;
or alone auto20: twenty mixes without MPS (sharing_mixes.py), or real: PyTorch's training and servers (sharing_real.py).
"""
import os
import pathlib
import signal
import subprocess
import threading
import time

from checks import sharing_mixes, sharing_real
from checks.quota import SECOND, done_at
from harness import Process, Scheduler, Skip, median, parallel

# For --rows, name, programs, thread blocks of a kernel, kind of work, and what the sum is due to be with mps = on.
ROWS = (
    ("1ms", "two that saturate, 1 ms kernels", 2, 1024, "1ms", 1.04),
    ("20us", "two that saturate, 20 us kernels", 2, 1024, "20us", 1.04),
    ("small", "four of 16 thread blocks", 4, 16, "1ms", 3.6),
    ("bursty", "three that work 3 ms of every 10", 3, 1024, "burst", 2.9),
)
PARTS = ("control", *(row[0] for row in ROWS), "auto", "limits", "mixed", "deaths")
ALONE = ("auto20", "real")  # rows that run only where they are all that is asked for
# Each way's name, the settings `mps` and `sharing`.
FIXED = (("mps-off", "off", "together"), ("turns", "off", "turns"), ("mps-on", "on", "together"))
AUTO = (("auto", "off", "auto"), ("auto-mps", "on", "auto"))
BEST_OF = {"auto": ("mps-off", "turns"), "auto-mps": ("mps-off", "turns", "mps-on")}
CHOOSES = 9  # seconds of work that the choice is waited for
LENGTHS_US = {"20us": 20, "1ms": 1000}
BURST = "3000 7000"
CYCLE = SECOND // 100
PROGRAMS = 4
CONTROL = "nvidia-cuda-mps-control"


def settings(config, mps, sharing_way="together"):
    return {"NVSHARE_MPS": mps, "NVSHARE_SHARING": sharing_way, **({"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else {})}


class Way:
    """Four `steady` programs: natively (no scheduler), or under `nvsharectl run`."""

    def __init__(self, config, name, scheduler=None):
        self.config, self.name, self.scheduler = config, name, scheduler
        self.rounds, self.round_ps = {}, 0
        self.processes = []
        self.bursts = []  # of each work in them

    def begin(self, rounds=None, round_ps=0, programs=PROGRAMS):
        self.rounds, self.round_ps = rounds or {}, round_ps
        for index in range(programs):
            self.start(f"{self.name}-{index}")
        for process in self.processes:
            process.wait_event("ready", 60)
        return self

    def start(self, name, attached=True):
        argv = [self.config.program("steady"), "--round-ps", str(self.round_ps)]
        environment = None
        if self.scheduler:
            environment = self.scheduler.program_environment()
            environment.pop("LD_PRELOAD", None)
            if not attached:
                environment["CUDA_MPS_PIPE_DIRECTORY"] = str(self.config.work / "no-mps")
            argv = [self.config.nvsharectl, "run", "--name", name, "--", *argv]
        process = Process(self.config, name, argv, environment)
        self.processes.append(process)
        return process

    @classmethod
    def calibrated(cls, config, result, programs=PROGRAMS):
        """Natively. How long a round takes one process finds for all: a program that does not know it has other batches and bursts."""
        finds = cls(config, "calibration").begin(programs=1)
        result.figure("kernels", finds.calibrate())
        finds.end()
        return cls(config, "native").begin(finds.rounds, finds.round_ps, programs)

    def calibrate(self):
        answer = self.processes[0].order("calibrate " + ",".join(str(us) for us in LENGTHS_US.values()), 60)
        self.rounds = dict(zip(LENGTHS_US, answer["rounds"]))
        self.round_ps = max(1, round(1e6 * answer["us"][1] / answer["rounds"][1]))
        return answer

    def order(self, kind, begin, end):
        if kind == "burst":
            return f"burst {begin} {end} {self.rounds['20us']} {BURST}"
        return f"run {begin} {end} {self.rounds[kind]}"

    def work(self, count, blocks, kind, seconds, limits=None):
        """Each program's work per ns."""
        chosen = self.processes[:count]
        parallel([lambda process=process: process.order(f"blocks {blocks}", 30) for process in chosen])
        for process, limit in zip(chosen, limits or []):
            self.limit(process.name, limit)
        turns = self.turns()
        begin = time.monotonic_ns() + SECOND // 5
        end = begin + int(seconds * SECOND)
        # Bursts that begin together would wait for each other natively, and so get out of step, but not where they run at the same time.
        step = CYCLE // count if kind == "burst" else 0
        answers = parallel([lambda process=process, at=begin + index * step: process.order(self.order(kind, at, end), seconds + 60)
                            for index, process in enumerate(chosen)])
        settled = begin + (end - begin) // 10
        marks = [answer["marks"] for answer in answers]
        if kind == "burst":
            cycles = [answer["cycles"] for answer in answers]
            self.bursts.append({"met": meetings(marks), "turns": self.turns() - turns,
                                **{name: [each[name] for each in cycles] for name in ("count", "first_us", "wait_us", "pause_us")}})
        return [(done_at(each, end) - done_at(each, settled)) / (end - settled) for each in marks]

    def turns(self):
        return sum(client["turns"] for client in self.scheduler.ask({"request": "status"})["clients"]) if self.scheduler else 0

    def limit(self, name, percent):
        environment = self.scheduler.program_environment()
        environment.pop("LD_PRELOAD", None)
        subprocess.run([str(self.config.nvsharectl), "set", name, f"core={percent}"], env=environment, check=True, capture_output=True, timeout=20)

    def end(self):
        for process in self.processes:
            process.close_input()
        for process in self.processes:
            process.expect_success(30)


def meetings(marks):
    """The share of bursts that ended within a burst's length of another program's: programs that run at the same time delay each other alike, and so
    meet again a cycle later; those of which one waits for the other are apart from then on."""
    length = int(BURST.split()[0]) * 1000
    ends = [[time_ns for time_ns, _ in each[1:]] for each in marks]
    met = sum(any(abs(other - end) < length for index, others in enumerate(ends) if index != own for other in others)
              for own, each in enumerate(ends) for end in each)
    return round(met / max(1, sum(map(len, ends))), 3)


class Choices:
    """What `status` tells of the choice while something runs: each change of it, in seconds from the start."""

    def __init__(self, scheduler):
        self.scheduler, self.seen, self.ends = scheduler, [], threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        began = time.monotonic()
        while not self.ends.wait(0.05):
            try:
                gpu = self.scheduler.ask({"request": "status"})["gpus"][0]
            except (OSError, KeyError, IndexError, ValueError):
                continue
            now = {"way": gpu["sharing"], "percent": gpu["sharing_percent"], "trials": gpu["sharing_trials"]}
            if not self.seen or {**self.seen[-1], "s": 0} != {**now, "s": 0}:
                self.seen.append({**now, "s": round(time.monotonic() - began, 2)})

    def __enter__(self):
        self.thread.start()
        return self.seen

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def judge_auto(result, rows, sums):
    """The best fixed way gets at most 2 % more done, and none does less than 0.99 of the driver's."""
    for name, *_ in rows:
        for way, fixed in BEST_OF.items():
            median_of = {each: sums[name][each]["median"] for each in (way, "native", *fixed)}
            best = max(fixed, key=lambda each, found=median_of: found[each])
            result.require_time(f"{name}, {way} over the best fixed way ({best})", round(median_of[way] / median_of[best], 3), ">=", 0.98)
            result.require_time(f"{name}, {way} over the driver alone", round(median_of[way] / median_of["native"], 3), ">=", 0.99)


def repeated(way, load, solo, seconds, repetitions, during):
    """The sums of the repetitions; `during` gets what `status` said in each, where there is a scheduler."""
    found = []
    for _ in range(repetitions):
        if way.scheduler:
            with Choices(way.scheduler) as seen:
                found.append(sum(way.work(*load, seconds)) / solo)
            during.append(seen)
        else:
            found.append(sum(way.work(*load, seconds)) / solo)
    return found


def table(config, result, parts):
    seconds, repetitions = (1, 1) if config.small else (2, 5)
    rows = [row[1:] for row in ROWS if row[0] in parts or parts == ["auto"]]
    ways = FIXED + (AUTO if "auto" in parts else ())
    native = Way.calibrated(config, result)
    saturating = native.work(1, 1024, "1ms", seconds)[0]
    solo = {name: native.work(1, blocks, kind, seconds)[0] for name, _, blocks, kind, _ in rows}
    sums = {name: {} for name, *_ in rows}
    shares, choices, during, bursts = {}, {}, {}, {}

    def measure(way):
        for name, count, blocks, kind, _ in rows:
            if way.name in BEST_OF:
                with Choices(way.scheduler) as seen:
                    way.work(count, blocks, kind, CHOOSES)
                choices.setdefault(way.name, {})[name] = seen
            found = repeated(way, (count, blocks, kind), solo[name], seconds, repetitions, during.setdefault(way.name, {}).setdefault(name, []))
            sums[name][way.name] = {"median": round(median(found), 3), "all": [round(one, 3) for one in found]}
        bursts[way.name] = way.bursts[-repetitions:]

    measure(native)
    native.end()
    for name, mps, sharing_way in ways:
        with Scheduler(config, None, None, settings(config, mps, sharing_way)) as scheduler:
            way = Way(config, name, scheduler).begin(native.rounds, native.round_ps)
            time.sleep(0.5)
            report = scheduler.ask({"request": "status"})
            result.figure(f"attached: {name}", sum(client["mps"] for client in report["clients"]))
            result.figure(f"status: {name}", report.get("mps"))
            measure(way)
            if "limits" in parts and sharing_way == "together":
                found = way.work(2, 1024, "1ms", 3 if config.small else 10, (30, 60))
                shares[way.name] = [round(100 * one / saturating, 2) for one in found]
            way.end()
        if "mixed" in parts and name == "mps-on":
            result.figure("mixed", mixed(config, native, seconds, repetitions, saturating))
    result.figure("sum over one alone natively", sums)
    result.figure("bursts in each repetition", bursts)
    result.figure("percent of alone under limits 30 + 60", shares)
    result.require("attached with mps off", result.figures["attached: mps-off"], "==", 0)
    result.require("attached with mps on", result.figures["attached: mps-on"], "==", PROGRAMS)
    if "auto" in parts:
        result.figure("what auto chose, and when", choices)
        result.figure("what was chosen in each repetition", {way: during[way] for way in BEST_OF})
        result.require("rows in which auto measured", sum(bool(seen and seen[-1]["trials"]) for way in choices.values() for seen in way.values()),
                       "==", len(rows) * len(AUTO))
        judge_auto(result, rows, sums)
    for name, _, _, _, due in rows:
        result.require_time(f"{name}, mps on", sums[name]["mps-on"]["median"], ">=", due)
    for got, due in zip(shares.get("mps-on", ()), (30, 60)):
        result.require_time(f"mps on, limit {due}: off by", abs(got - due), "<=", 0.5, "points")
    return native.rounds, native.round_ps


def mixed(config, native, seconds, repetitions, saturating):
    """One that is attached beside one that is not: each one's work over one's alone, and their turns."""
    with Scheduler(config, None, None, settings(config, "on")) as scheduler:
        way = Way(config, "mixed", scheduler)
        way.rounds, way.round_ps = native.rounds, native.round_ps
        for name, attached in (("attached", True), ("not-attached", False)):
            way.start(name, attached).wait_event("ready", 60)
        time.sleep(0.5)
        found = {}
        for kind in ("1ms", "burst"):
            way.work(2, 1024, kind, seconds)  # the scheduler has seen what they do
            found[kind] = [[round(one / saturating, 3) for one in way.work(2, 1024, kind, seconds)] for _ in range(repetitions)]
        clients = scheduler.ask({"request": "status"})["clients"]
        found["turns"] = {client["program"] + (" attached" if client["mps"] else ""): client["turns"] for client in clients}
        way.end()
        return found


# ---- deaths ----

def keep_busy(way, processes, seconds):
    """All begin to work; returns a function that waits, and says of each how long it worked and how it ended."""
    begin = time.monotonic_ns() + SECOND // 5
    end = begin + int(seconds * SECOND)
    for process in processes:
        process.popen.stdin.write(way.order("1ms", begin, end) + "\n")
        process.popen.stdin.flush()

    def outcome(process):
        try:
            marks = process.wait_record(lambda record: "marks" in record, seconds + 15)["marks"]
            return {"worked_s": round((marks[-1][0] - begin) / SECOND, 2), "fails": False}
        except RuntimeError:
            return {"fails": True, "status": process.wait(5), "after_s": round(process.end - begin / SECOND, 2), "says": process.tail(2)[-300:]}
        except TimeoutError:
            process.kill()
            return {"fails": True, "status": "did not end", "says": process.tail(2)[-300:]}

    return lambda: {process.name: outcome(process) for process in processes}


def pid_of(scheduler, tenant):
    report = scheduler.ask({"request": "status"})
    ids = [each["id"] for each in report["tenants"] if each["name"] == tenant]
    return next(client["pid"] for client in report["clients"] if client["tenant"] in ids)


def strike(config, rounds, round_ps, kind):
    """What the others see of one program's, or the daemon's, end."""
    with Scheduler(config, None, None, settings(config, "on")) as scheduler:
        way = Way(config, kind, scheduler).begin(rounds, round_ps, 3)
        time.sleep(0.5)
        victim, others = way.processes[0], way.processes[1:]
        before = scheduler.ask({"request": "status"})["mps"]
        busy = keep_busy(way, others if kind == "fault" else way.processes, 4)
        time.sleep(1.5)
        said = None
        if kind == "killed":
            os.kill(pid_of(scheduler, victim.name), signal.SIGKILL)
        elif kind == "nvsharectl":
            environment = scheduler.program_environment()
            environment.pop("LD_PRELOAD", None)
            done = subprocess.run([str(config.nvsharectl), "kill", "--signal", "KILL", victim.name], env=environment, capture_output=True, text=True,
                                  timeout=20, check=True)
            said = done.stdout + done.stderr
        elif kind == "fault":
            try:
                said = victim.order("fault", 15)
            except (RuntimeError, TimeoutError) as error:
                said = str(error)[-300:]
        else:
            os.kill(before[0]["pid"], signal.SIGKILL)
        outcome = busy()
        if kind != "fault":
            outcome.pop(victim.name, None)
        for process in way.processes:
            process.kill()
        # Does a new one work, and how soon?
        begin = time.monotonic()
        works = None
        while works is None and time.monotonic() - begin < 25:
            again = way.start(f"{kind}-again")
            try:
                again.wait_event("ready", 15)
                works = again.order(way.order("1ms", time.monotonic_ns(), time.monotonic_ns() + SECOND // 2), 20)
            except (RuntimeError, TimeoutError):
                again.kill()
                time.sleep(0.5)
        report = scheduler.ask({"request": "status"})
        for process in way.processes:  # so that the scheduler ends the daemon
            process.kill()
        until = time.monotonic() + 5
        while scheduler.ask({"request": "status"})["clients"] and time.monotonic() < until:
            time.sleep(0.1)
        log = [line for line in scheduler.process.log_path.read_text(errors="replace").splitlines() if "MPS" in line]
        return {"others": outcome, "said": said, "a new one works after_s": round(time.monotonic() - begin, 2) if works else None,
                "before": before, "after": report["mps"], "attached": [client["mps"] for client in report["clients"]], "log": log[-12:]}


# ---- what the control daemon answers ----

def record_control(config, result):
    """Started by hand, as the scheduler does it."""
    folder = pathlib.Path(config.work) / "mps"
    for name in ("pipe", "log"):
        (folder / name).mkdir(parents=True)
    environment = dict(config.environment, CUDA_MPS_PIPE_DIRECTORY=str(folder / "pipe"), CUDA_MPS_LOG_DIRECTORY=str(folder / "log"))

    def ask(commands, patience=10):
        try:
            done = subprocess.run([CONTROL], input=commands, env=environment, capture_output=True, text=True, timeout=patience, check=False)
            return {"asked": commands, "status": done.returncode, "out": done.stdout[-600:], "err": done.stderr[-300:]}
        except subprocess.TimeoutExpired:
            return {"asked": commands, "status": f"nothing in {patience} s"}

    answers = {"no daemon": ask("get_server_list\n")}
    daemon = Process(config, "control", [CONTROL, "-f"], environment)
    begin = time.monotonic()
    while ask("get_server_list\n")["status"] != 0 and time.monotonic() - begin < 10:
        time.sleep(0.02)
    answers["serves after_s"] = round(time.monotonic() - begin, 3)
    answers["no server"] = [ask("get_server_list\n"), ask("get_client_list 1\n"), ask("nonsense\n"), ask("")]
    second = Process(config, "control-second", [CONTROL, "-f"], environment)
    try:
        answers["a second daemon"] = {"status": second.wait(5), "says": second.tail(4)}
    except TimeoutError:
        answers["a second daemon"] = "did not end"
    program = Process(config, "attached", [config.program("steady")], environment)
    program.wait_event("ready", 60)
    servers = ask("get_server_list\n")
    pids = [line.strip() for line in servers.get("out", "").splitlines() if line.strip().isdigit()]
    answers["one program"] = {"its pid": program.pid, "servers": servers, "clients": [ask(f"get_client_list {pid}\n") for pid in pids],
                              "ps": ask("ps\n"), "lists at once": ask("get_server_list\nget_server_list\n")}
    answers["pipe folder"] = sorted(f"{path.name} {path.lstat().st_mode:o}" for path in (folder / "pipe").iterdir())
    answers["log folder"] = sorted(path.name for path in (folder / "log").iterdir())
    if pids:
        answers["the server's process"] = subprocess.run(["ps", "-o", "pid,ppid,pgid,sid,user,comm", "-p", f"{pids[0]},{daemon.pid}"],
                                                         capture_output=True, text=True, check=False).stdout
    answers["quit with a program"] = {"said": ask("quit\n", 3), "daemon ended": daemon.end is not None}
    program.close_input()
    try:
        answers["the program"] = program.wait(20)
    except TimeoutError:
        answers["the program"] = "did not end"
    begin = time.monotonic()
    try:
        answers["the daemon after it"] = {"status": daemon.wait(10), "after_s": round(time.monotonic() - begin, 3), "says": daemon.tail(6)}
    except TimeoutError:
        answers["the daemon after it"] = "did not end"
    daemon = Process(config, "control-terminated", [CONTROL, "-f"], environment)
    time.sleep(1)
    daemon.kill(signal.SIGTERM)
    try:
        answers["SIGTERM"] = daemon.wait(5)
    except TimeoutError:
        answers["SIGTERM"] = "did not end"
    answers["log"] = {path.name: path.read_text(errors="replace").splitlines()[-25:] for path in (folder / "log").iterdir() if path.is_file()}
    result.figure("control daemon", answers)


def beside_fixed_ways(config, measure):
    """measure(name -> scheduler), without MPS: together, in turns, and as measured."""
    schedulers = {name: Scheduler(config, None, None, settings(config, "off", name)) for name in ("together", "turns", "auto")}
    try:
        measure({name: scheduler.__enter__() for name, scheduler in schedulers.items()})
    finally:
        for scheduler in schedulers.values():
            scheduler.__exit__(None, None, None)


def twenty_mixes(config, result):
    native = Way.calibrated(config, result)

    def measure(schedulers):
        ways = {name: Way(config, name, scheduler).begin(native.rounds, native.round_ps) for name, scheduler in schedulers.items()}
        found = sharing_mixes.measure(config, ways, native)
        for way in (native, *ways.values()):
            way.end()
        result.figure("sum over one alone natively, p99 of requests", found)
        result.require("mixes", len(found), ">=", 1)
        sharing_mixes.judge(result, found)

    beside_fixed_ways(config, measure)


def real_loads(config, result):
    probe = subprocess.run([config.python, "-c", "import torch, transformers, sys; sys.exit(0 if torch.cuda.is_available() else 4)"], check=False,
                           capture_output=True, env=config.environment, timeout=120)
    if probe.returncode != 0:
        raise Skip(f"{config.python} has no PyTorch with CUDA and transformers")
    if wrong := [mix for mix in config.mixes if mix not in sharing_real.MIXES]:
        raise Skip(f"no mix {'; '.join(wrong)}; there are: {'; '.join(sharing_real.MIXES)}")

    if config.ways and (not config.mixes or "auto" not in config.ways or set(config.ways) - {"together", "turns", "auto", "control"}):
        raise Skip(f"--ways is {','.join(config.ways)}; it goes with --mixes, and names auto and maybe together, turns and control")

    def measure(schedulers):
        schedulers = {name: scheduler for name, scheduler in schedulers.items() if name in config.ways or not config.ways}
        if "control" in config.ways:  # the driver alone once more, in programs of its own: what programs started anew differ by
            schedulers["control"] = None
        ways = {name: sharing_real.Loads(config, name, scheduler) for name, scheduler in (("native", None), *schedulers.items())}
        for way in ways.values():
            way.wait()
        found = sharing_real.measure(config, ways)
        for way in ways.values():
            way.end()
        result.figure("steps over alone natively, and requests", found)
        sharing_real.judge(result, found)

    beside_fixed_ways(config, measure)


def sharing(config, result):
    if config.nvsharectl is None:
        raise Skip("nvsharectl is not built")
    if config.rows in ALONE:
        {"auto20": twenty_mixes, "real": real_loads}[config.rows](config, result)
        return
    found = subprocess.run(["sh", "-c", f"command -v {CONTROL}"], env=config.environment, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise Skip(f"there is no {CONTROL} in PATH")
    parts = [part for part in config.rows.split(",") if part] or list(PARTS)
    if wrong := [part for part in parts if part not in PARTS]:
        raise Skip(f"no row {', '.join(wrong)}; there are: {', '.join(PARTS)}")
    try:
        if "control" in parts:
            record_control(config, result)
    except (RuntimeError, TimeoutError, OSError) as error:
        result.figure("control daemon: not recorded", str(error)[-300:])
    rounds, round_ps = table(config, result, parts)
    for index, kind in enumerate(("killed", "nvsharectl", "nvsharectl", "nvsharectl", "fault", "daemon") if "deaths" in parts else ()):
        if config.left() < 30:
            result.figure(f"under MPS, {index} {kind}", "left out: no time")
            continue
        try:
            seen = result.figure(f"under MPS, {index} {kind}", strike(config, rounds, round_ps, kind))
            if kind == "nvsharectl":
                result.require(f"nvsharectl kill ({index}): others that fail", sum(other["fails"] for other in seen["others"].values()), "==", 0)
        except (RuntimeError, TimeoutError, OSError, StopIteration) as error:
            result.figure(f"under MPS, {index} {kind}", f"not seen: {error}"[-400:])
