"""Check trace: three trainers and one server that do not fit together, and `nvsharectl trace` of that: of the scheduler that runs, and of
its recording. Each file is held to Chrome's trace format as Perfetto reads it, and the recording's sums to the scheduler's own figures,
which its metrics are."""
import json
import subprocess
import time

from harness import MIB, Process, Scheduler, Skip, parallel, prewarm_host, wait_all

GIB_MB = 1024
# Of the "Trace Event Format" these phases: complete events, counters, and names of processes and threads.
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name", "thread_sort_index": "sort_index"}


class Shape:
    """Sizes in MiB; times in seconds."""

    def __init__(self, config):
        small = config.small
        self.told, self.block = (512, 16) if small else (24 * GIB_MB, 256)
        self.trainer, self.server = (192, 128) if small else (10 * GIB_MB, 6 * GIB_MB)
        self.lasts_s = 4 if small else 40
        self.turn_s = 0.5 if small else 4
        self.requests = 4 if small else 12
        self.request_ms = 5 if small else 100
        self.extra = {"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if small else {}


def problems_of(trace):
    """What is wrong in such a file, at most ten: its fields and their types, slices of one track that overlap, tracks without names."""
    problems = []
    tracks, names = {}, set()

    def is_number(value):
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        return ["no list traceEvents"]
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        problems.append("displayTimeUnit is neither ms nor ns")
    for event in events:
        kind, said = event.get("ph"), json.dumps(event)[:120]
        if not isinstance(event.get("name"), str) or not isinstance(event.get("pid"), int):
            problems.append(f"no name or pid: {said}")
        elif kind == "M":
            wanted = METADATA.get(event["name"])
            value = event.get("args", {}).get(wanted)
            if wanted is None or not isinstance(value, str if wanted == "name" else int):
                problems.append(f"metadata: {said}")
            names.add((event["name"], event["pid"], event.get("tid")))
        elif not is_number(event.get("ts")) or event["ts"] < 0:
            problems.append(f"no time: {said}")
        elif kind == "C":
            if not event.get("args") or not all(is_number(value) for value in event["args"].values()):
                problems.append(f"a counter without numbers: {said}")
        elif kind == "X":
            if not is_number(event.get("dur")) or event["dur"] < 0 or not isinstance(event.get("tid"), int):
                problems.append(f"a slice without its time or track: {said}")
            else:
                tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
        else:
            problems.append(f"phase {kind!r} is not one that this file has: {said}")
    for (process, track), slices in tracks.items():
        if ("process_name", process, None) not in names or ("thread_name", process, track) not in names:
            problems.append(f"track {track} of {process} has no name")
        slices.sort()
        problems += [f"'{one[2]}' and '{other[2]}' overlap in track {track}" for one, other in zip(slices, slices[1:]) if other[0] < one[1] - 0.0015]
    return problems[:10]


def sums_of(trace):
    """Nanoseconds of slices by their names, bytes of copies, and the number of turns."""
    sums = {"turns": 0}
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        if event["name"].startswith("turn "):
            sums["turns"] += 1
        elif "bytes" in event.get("args", {}):
            sums[event["name"]] = sums.get(event["name"], 0) + event["args"]["bytes"]
        else:
            sums[event["name"]] = sums.get(event["name"], 0) + event["dur"] * 1000
    return sums


def picture(config, scheduler, name, *words):
    file = config.out / f"{name}.json"
    done = subprocess.run([str(config.nvsharectl), "trace", *map(str, words), "-o", str(file)], env={**config.environment, "NVSHARE_RUNTIME_DIR": str(scheduler.runtime)},
                          capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"nvsharectl trace {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
    return json.loads(file.read_text()), done.stdout.strip()


def start(config, scheduler, shape, name, megabytes, seed):
    argv = [config.program("served"), "--bytes", f"{megabytes}M", "--block", f"{shape.block}M", "--seed", seed]
    return Process(config, name, argv, scheduler.program_environment())


def trace(config, result):
    if config.nvsharectl is None:
        raise Skip("nvsharectl is not built")
    shape = Shape(config)
    result.figure("sizes_mib", {"told": shape.told, "trainer": shape.trainer, "server": shape.server})
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, (3 * shape.trainer + shape.server) * MIB))
    with Scheduler(config, shape.turn_s, shape.told, shape.extra) as scheduler:
        trainers = [start(config, scheduler, shape, f"trainer-{seed}", shape.trainer, seed) for seed in (1, 2, 3)]
        server = start(config, scheduler, shape, "server", shape.server, 4)
        for process in [*trainers, server]:
            process.wait_event("ready", 180)
        pause_s = shape.lasts_s / shape.requests
        parallel([lambda trainer=trainer: trainer.order(f"batch {shape.lasts_s}", shape.lasts_s + 120) for trainer in trainers]
                 + [lambda: server.order(f"serve {shape.requests} {shape.request_ms} {pause_s}", 2 * shape.lasts_s + 120)])
        live, said = picture(config, scheduler, "trace-live")
        result.figure("live_said", said)
        for process in [*trainers, server]:
            process.close_input()
        wait_all([*trainers, server], 60)
        for _ in range(600):  # until their ends are known
            status = scheduler.ask({"request": "status"})
            if not status["clients"]:
                break
            time.sleep(0.1)
        usage = status["gpus"][0]["usage"]
        scheduler.stop()
        recorded, said = picture(config, scheduler, "trace-recorded", scheduler.runtime / "trace")
        result.figure("recorded_said", said)
    result.figure("usage", usage)
    result.require("the last minute, live: what is wrong in the file", problems_of(live), "==", [])
    result.require("the recording: what is wrong in the file", problems_of(recorded), "==", [])
    tracks = {event["args"]["name"] for event in recorded["traceEvents"] if event["name"] == "thread_name"}
    result.figure("tracks", sorted(tracks))
    sums = result.figure("sums", sums_of(recorded))
    result.require("bytes copied out: the file's sum over the scheduler's", sums.get("swap out", 0), "==", usage["swapped_out"])
    result.require("bytes copied in", sums.get("swap in", 0), "==", usage["swapped_in"])
    result.require("turns", sums["turns"], "==", usage["turns"])
    result.require("turns that began by another's end", usage["turns"], ">=", 4)
    result.require("bytes copied out", usage["swapped_out"], ">=", 1)
    for names, figure in ((("running", "dropping", "unresponsive"), "running_ns"), (("waiting",), "waiting_ns"), (("loading",), "swapping_ns")):
        result.require(f"{' + '.join(names)}: apart from {figure}, ns", abs(sum(sums.get(name, 0) for name in names) - usage[figure]), "<=", 1000)
