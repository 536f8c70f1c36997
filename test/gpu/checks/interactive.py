"""Check interactive: a server and a notebook beside a trainer on a GPU that counts as 24 GiB. How long do requests and cells wait, and what
does the trainer keep?"""
from harness import MIB, Process, Scheduler, parallel, prewarm_host, wait_all

GIB_MB = 1024


class Shape:
    """Sizes in MiB; times in seconds but for what the GPU is kept busy, in milliseconds."""

    def __init__(self, config):
        small = config.small
        self.told = 512 if small else 24 * GIB_MB
        self.trainer, self.server, self.notebook = (320, 288, 96) if small else (20 * GIB_MB, 18 * GIB_MB, 2 * GIB_MB)
        self.block = 16 if small else 256
        self.request_ms, self.request_pause_s = (20, 1) if small else (300, 10)
        self.cell_ms, self.cell_pause_s = (5, 0.5) if small else (50, 5)
        self.solo_s = 2 if small else 4
        # Measured; before them a few that are not. Of 20 or more cells p95 is not the longest.
        self.requests, self.cells = (3, 6) if small else (10, 21)
        self.warm_ups = 2
        self.extra = {"NVSHARE_MEMORY_RESERVE_PERCENT": "20"} if small else {}


def percentile_95(values):
    ordered = sorted(values)
    return ordered[(len(ordered) * 95 + 99) // 100 - 1] if ordered else None


def waits(took_ms, alone_ms):
    """What each request took beyond what it takes alone, in seconds."""
    return [max(0.0, ms - alone_ms) / 1000 for ms in took_ms]


def start(config, name, scheduler, megabytes, block, seed):
    argv = [config.program("served"), "--bytes", f"{megabytes}M", "--block", f"{block}M", "--seed", seed]
    return Process(config, name, argv, scheduler.program_environment() if scheduler else None)


def alone(config, shape, name, megabytes, seed, busy_ms, count):
    """The same requests without nvshare and without pauses: the checksum that is due, and what a request takes."""
    process = start(config, f"{name}-alone", None, megabytes, shape.block, seed)
    process.wait_event("ready", 60)
    took = process.order(f"serve {count} {busy_ms} 0", 120)["took_ms"]
    checksum = process.order("sum", 60)["checksum"]
    process.close_input()
    process.expect_success(30)
    return sorted(took)[len(took) // 2], checksum


def interactive(config, result):
    shape = Shape(config)
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, (shape.trainer + shape.server + shape.notebook) * MIB))
    cells = shape.cells
    counts = {"server": shape.warm_ups + shape.requests, "notebook": 2 * shape.warm_ups + cells}
    request_alone_ms, server_sum = alone(config, shape, "server", shape.server, 2, shape.request_ms, counts["server"])
    cell_alone_ms, notebook_sum = alone(config, shape, "notebook", shape.notebook, 3, shape.cell_ms, counts["notebook"])

    with Scheduler(config, None, shape.told, shape.extra) as scheduler:
        trainer = start(config, "trainer", scheduler, shape.trainer, shape.block, 1)
        trainer.wait_event("ready", 60)
        solo = trainer.order(f"batch {shape.solo_s}", shape.solo_s + 60)
        server = start(config, "server", scheduler, shape.server, shape.block, 2)
        notebook = start(config, "notebook", scheduler, shape.notebook, shape.block, 3)
        answers = {}

        def warm_up():
            # The trainer works on meanwhile; the first switches of all, which nothing was measured for yet, are listed and not judged.
            for process in (server, notebook):
                process.wait_event("ready", 120)
            parallel([lambda: answers.update(w1=server.order(f"serve {shape.warm_ups} {shape.request_ms} {shape.request_pause_s / 4}", 120)),
                      lambda: answers.update(w2=notebook.order(
                          f"serve {2 * shape.warm_ups} {shape.cell_ms} {shape.cell_pause_s / 4}", 120))])
            trainer_stops.append(True)

        trainer_stops = []
        first = []

        def train_meanwhile():
            while not trainer_stops:
                first.append(trainer.order("batch 1", 60))

        parallel([warm_up, train_meanwhile])
        lasts_s = max(shape.requests * (shape.request_pause_s + shape.request_ms / 1000), cells * (shape.cell_pause_s + shape.cell_ms / 1000))
        together, served, worked = parallel([
            lambda: trainer.order(f"batch {lasts_s}", lasts_s + 120),
            lambda: server.order(f"serve {shape.requests} {shape.request_ms} {shape.request_pause_s}", lasts_s + 120),
            lambda: notebook.order(f"serve {cells} {shape.cell_ms} {shape.cell_pause_s}", lasts_s + 120)])
        sums = parallel([lambda: server.order("sum", 120)["checksum"], lambda: notebook.order("sum", 120)["checksum"]])
        for process in (trainer, server, notebook):
            process.close_input()
        wait_all([trainer, server, notebook], 60)
        result.figure("scheduler", scheduler.summary())

    request_waits = waits(served["took_ms"], request_alone_ms)
    cell_waits = waits(worked["took_ms"], cell_alone_ms)
    share = (together["rounds"] / together["seconds"]) / (solo["rounds"] / solo["seconds"])
    result.figure("trainer", {"solo": solo, "together": together})
    result.figure("request", {"alone_ms": request_alone_ms, "waits_s": request_waits, "warm_up_ms": answers["w1"]["took_ms"]})
    result.figure("cell", {"alone_ms": cell_alone_ms, "waits_s": cell_waits, "warm_up_ms": answers["w2"]["took_ms"]})
    result.require("server: bytes as alone", sums[0], "==", server_sum)
    result.require("notebook: bytes as alone", sums[1], "==", notebook_sum)
    result.figure("p95_s", {"cell": percentile_95(cell_waits), "request": percentile_95(request_waits), "trainers_share": share})
    if config.small:
        return  # the stand-in's times say nothing
    result.require("cells: wait, p95", percentile_95(cell_waits), "<=", 1.0, "s")
    result.require("requests: wait, p95", percentile_95(request_waits), "<=", 2.0, "s")
    result.require("trainer: share of what it does alone", share, ">=", 0.75)
