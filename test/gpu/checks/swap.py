"""Checks that move the memory of plain CUDA programs: swap_pair, swap_speed, swap_baselines."""
from harness import GIB, MIB, Process, Sampler, Scheduler, Skip, median, prewarm_host, wait_all

# The stand-in GPU has small contexts, so the reserve can be small too; on a real one the scheduler's default holds.
SMALL = {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"}


def mixer(config, name, scheduler, bytes_held, *words):
    environment = scheduler.program_environment() if scheduler else None
    argv = [config.program("mixer"), "--bytes", bytes_held, *words]
    return Process(config, name, scheduler.command(argv) if scheduler else argv, environment)


def result_of(process):
    return next(record for record in process.records if record.get("event") == "result")


def swap_pair(config, result):
    """Two programs of which one fits: each must compute what it computes alone."""
    held = 96 * MIB if config.small else 8 * GIB
    told_mb = 160 if config.small else held // MIB + 500 + 2 * 700 + 512
    turn_s = 0.2 if config.small else 1.5
    solo_s = 1 if config.small else 8
    shape = ["--largest", "32M" if config.small else "1G", "--sync-bytes", "16M" if config.small else "1G"]
    result.figure("bytes_each", held)
    result.figure("told_mb", told_mb)
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, 2 * held + 8 * GIB))
    solos = []
    for seed in (1, 2):
        process = mixer(config, f"solo{seed}", None, held, "--seed", seed, "--seconds", solo_s, "--churn", 20, *shape)
        process.expect_success(solo_s * 3 + 60)
        solos.append(result_of(process))
    result.figure("solo", solos)
    with Scheduler(config, turn_s, told_mb, SMALL if config.small else None) as scheduler, Sampler(config, "swap_pair") as sampler:
        pair = [mixer(config, f"shared{seed}", scheduler, held, "--seed", seed, "--rounds", solo["rounds"], "--churn", 20, *shape)
                for seed, solo in zip((1, 2), solos)]
        wait_all(pair, solo_s * 10 + 90)
        switches = scheduler.gpu().get("switches", 0)
        result.figure("scheduler", scheduler.summary())
    shared = [result_of(process) for process in pair]
    result.figure("shared", shared)
    result.figure("nvml", sampler.figures)
    for seed in (1, 2):
        result.require(f"program {seed}: checksum as alone", shared[seed - 1]["checksum"], "==", solos[seed - 1]["checksum"])
    result.require("switches", switches, ">=", 2 if config.small else 4)
    result.require("drops left unanswered", sum(c.get("unanswered", 0) for c in scheduler.clients.values()), "==", 0)


def run_command(config, result):
    """`nvsharectl run -- program` where no scheduler is: it starts the user's own, and the program computes what it computes alone."""
    if config.nvsharectl is None or config.library is None:
        raise Skip("nvsharectl or libnvshare.so is not built")
    shape = ["--bytes", "32M" if config.small else "2G", "--largest", "8M" if config.small else "256M", "--rounds", 20]
    plain = Process(config, "plain", [config.program("mixer"), *shape])
    plain.expect_success(60)
    environment = dict(config.environment, XDG_RUNTIME_DIR=str(config.work))
    under = Process(config, "run", [config.nvsharectl, "run", "--", config.program("mixer"), *shape], environment)
    under.expect_success(90)
    said = [line for line in under.log_path.read_text(errors="replace").splitlines() if "nvshare" in line and not line.startswith("$")]
    result.figure("said", said)
    result.require("checksum as without", result_of(under)["checksum"], "==", result_of(plain)["checksum"])
    result.require("start lines", len(said), "==", 1)


def hand_offs(leaver, comer):
    """Seconds from the leaver's last finished kernel to the comer's first, for each pause of the comer that the leaver's turn caused."""
    stops = [r["from"] for r in leaver.records if r.get("event") == "gap"]
    found = []
    for resumed in (r for r in comer.records if r.get("event") == "gap"):
        before = [stop for stop in stops if resumed["from"] < stop < resumed["to"]]
        if before:
            found.append((resumed["to"] - max(before)) / 1e9)
    return found


def gigabytes_per_second(movements):
    return [m["copied"] / m["elapsed_ns"] for m in movements if m["elapsed_ns"]]  # bytes a nanosecond


def split_first(movements):
    """The first movement out of each client (its host memory may not be pinned yet), and all others."""
    first, rest, seen = [], [], set()
    for movement in movements:
        (rest if movement["client"] in seen else first).append(movement)
        seen.add(movement["client"])
    return first, rest


def pinned_speed(config):
    process = Process(config, "pinned", [config.program("swap_baselines"), "--way", "pinned", "--bytes", "64M" if config.small else "8G"])
    process.expect_success(60)
    return process.records[-1]


def swap_speed(config, result):
    """How fast memory moves: one way alone in each direction, then both ways in a hand-off."""
    held = 96 * MIB if config.small else 24 * GIB
    told_mb = 160 if config.small else 26 * 1024
    turn_s = 0.3 if config.small else 2.5
    shape = ["--smallest", "1M", "--largest", "16M" if config.small else "2G", "--sync-bytes", "16M" if config.small else "512M"]
    if not config.small:
        result.figure("prewarm_host", prewarm_host(config, 2 * held + 8 * GIB))
    result.figure("bytes_each", held)
    pinned = result.figure("pinned_copy", pinned_speed(config))
    extra = SMALL if config.small else None

    # One way: the visitor brings nothing and leaves nothing, so the other one's memory only goes out, later only comes in.
    visits = 3 if config.small else 4
    with Scheduler(config, turn_s, told_mb, extra) as scheduler:
        steady = mixer(config, "steady", scheduler, held, "--seed", 1, "--seconds", 600, *shape)
        steady.wait_event("ready", 60)
        visitor = mixer(config, "visitor", scheduler, held, "--seed", 2, "--visits", visits, "--pause-ms", 300, *shape)
        visitor.expect_success(120)
        steady.kill()
        result.figure("one_way_scheduler", scheduler.summary())
        one_way = scheduler.movements()
    freed = [r["t"] for r in visitor.records if r.get("event") == "visited"]
    out_s = hand_offs(steady, visitor)
    in_s = []
    for pause in (r for r in steady.records if r.get("event") == "gap"):
        ended = [t for t in freed if pause["from"] < t < pause["to"]]
        if ended:
            in_s.append((pause["to"] - max(ended)) / 1e9)
    first_out, later_out = split_first([m for m in one_way if m["out"]])
    moved_in = [m for m in one_way if not m["out"]]
    result.figure("one_way_movements", one_way)
    # As the programs saw it: with the drain, the mapping and, after a visit, what was left of the visitor's turn.
    result.figure("pauses_for_out_s", out_s)
    result.figure("pauses_for_in_s", in_s)
    result.figure("first_out_gb_per_s", gigabytes_per_second(first_out))
    speed_out = result.figure("out_gb_per_s", gigabytes_per_second(later_out))
    speed_in = result.figure("in_gb_per_s", gigabytes_per_second(moved_in))
    result.require_time("out, of the pinned copy's speed", (median(speed_out) or 0) / pinned["out_gb_per_s"], ">=", 0.9)
    result.require_time("in, of the pinned copy's speed", (median(speed_in) or 0) / pinned["in_gb_per_s"], ">=", 0.9)

    # Both ways.
    with Scheduler(config, turn_s, told_mb, extra) as scheduler:
        seconds = 4 if config.small else 32
        pair = [mixer(config, f"swapper{seed}", scheduler, held, "--seed", seed, "--seconds", seconds, *shape) for seed in (1, 2)]
        wait_all(pair, seconds * 3 + 90)
        result.figure("hand_off_scheduler", scheduler.summary())
        result.figure("hand_off_movements", scheduler.movements())
    # A program's first two pauses find host memory unpinned or memory never filled; they are listed, not judged. In small no times are judged,
    # and a busy machine gets to few hand-offs, so there it is enough that one was seen.
    both = result.figure("hand_off_s", [hand_offs(pair[0], pair[1]), hand_offs(pair[1], pair[0])])
    first, fewest = (0, 1) if config.small else (2, 3)
    judged = result.figure("hand_offs_judged_s", both[0][first:] + both[1][first:])
    result.require("hand-offs judged", len(judged), ">=", fewest)
    alone = [median([m["elapsed_ns"] / 1e9 for m in movements]) for movements in (later_out, moved_in)]
    result.figure("one_way_alone_s", alone)
    if all(alone) and judged:
        result.require_time("hand-off over the slower direction alone", median(judged) / max(alone), "<=", 1.3)
    else:
        result.require("both directions were seen alone", bool(all(alone)), "==", True)


def swap_baselines(config, result):
    """The same amount moved by demand paging and by checkpoints, for comparison. Nothing is required."""
    held = "64M" if config.small else "24G"
    result.figure("bytes", held)
    result.figure("pinned", pinned_speed(config))
    for way in ("managed", "checkpoint"):
        process = Process(config, way, [config.program("swap_baselines"), "--way", way, "--bytes", held])
        try:
            process.expect_success(90)
        except (RuntimeError, TimeoutError) as error:
            result.figure(f"{way}_error", str(error))
        result.figure(way, process.records)
    if not result.figures["managed"] and not result.figures["checkpoint"]:
        raise Skip("neither managed memory nor checkpoints work here")
