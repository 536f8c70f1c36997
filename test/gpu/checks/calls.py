"""Checks of single calls: probe, proc_address, launch_cost, alloc_cost."""
import os
import pathlib
import shutil
import struct

from harness import GIB, MIB, Process, Scheduler, Skip, median


def probe(config, result):
    """Facts about this machine; nothing is required but that each probe ends."""
    listed = Process(config, "probe-list", [config.program("probe"), "--list"])
    listed.expect_success(10)
    small = ["--largest", "16M", "--allocations", "20", "--vmm-bytes", "256M", "--pin-bytes", "64M", "--copy-bytes", "64M", "--launches", "500"]
    sizes = small if config.small else []
    for name in listed.lines:
        process = Process(config, f"probe-{name}", [config.program("probe"), "--only", name, *sizes])
        try:
            process.expect_success(60)
        except (RuntimeError, TimeoutError) as error:
            result.figure(f"{name}_error", str(error)[:500])
        result.figure(name, process.records)
    result.require("probes that failed", [key for key in result.figures if key.endswith("_error")], "==", [])


def exported_functions(path):
    """The names that an ELF library defines for others, from its dynamic symbol table (64 bit, little endian)."""
    image = pathlib.Path(path).read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        raise Skip(f"{path} is no 64-bit ELF file")
    offset, = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * size) for i in range(count)]
    names = []
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index = struct.unpack_from("<IBBH", image, at)
            if index != 0 and info & 15 in (2, 10):  # defined; function or indirect function
                begin = strings + name
                names.append(image[begin:image.index(b"\0", begin)].decode())
    return names


CUDA_VERSIONS = ([2000, 2010, 2020, 3000, 3010, 3020] + [major * 1000 + minor * 10 for major in range(4, 13) for minor in range(0, 10)] +
                 [13000, 13010, 13020])


def stem(symbol):
    """cuMemAlloc_v2_ptsz -> cuMemAlloc: the name that cuGetProcAddress is asked for."""
    for suffix in ("_ptsz", "_ptds"):
        symbol = symbol.removesuffix(suffix)
    base, _, version = symbol.rpartition("_v")
    return base if base and version.isdigit() else symbol


def hooked_symbols(config):
    path = config.repo / "src" / "interposer" / "entry_points.txt"
    rows = [line.split("#")[0].split() for line in path.read_text().splitlines()]
    return sorted(row[0] for row in rows if len(row) >= 2 and row[1] in ("submit", "custom", "grows", "looks"))


def proc_address(config, result):
    """Every request for every name gets the hook of exactly the symbol that the driver would have given."""
    if config.library is None:
        raise Skip("libnvshare.so is not built")
    loaded = Process(config, "where", [config.program("proc_address")])
    loaded.popen.stdin.write("cuInit\n\n")
    loaded.close_input()
    loaded.expect_success(30)
    driver_path = loaded.lines[0].split()[2]
    symbols = [name for name in exported_functions(driver_path) if name.startswith("cu")]
    stems = sorted({stem(symbol) for symbol in symbols})
    requests = [(name, version, flags) for name in stems for version in CUDA_VERSIONS for flags in (0, 1, 2)]
    text = "".join(f"{s}\n" for s in symbols) + "\n" + "".join(f"{n} {v} {f}\n" for n, v, f in requests)
    order = config.work / "requests.txt"
    order.write_text(text)

    def answers(name, environment):
        process = Process(config, name, ["/bin/sh", "-c", f'exec "$0" < "{order}"', config.program("proc_address")], environment)
        process.expect_success(90)
        where = dict(line.split()[1:3] for line in process.lines if line.startswith("S "))
        return where, [line for line in process.lines if line.startswith("R ")]

    plain_where, plain = answers("plain", None)
    preloaded = dict(config.environment, LD_PRELOAD=str(config.library), NVSHARE_RUNTIME_DIR=str(config.work / "nobody"))
    hooked_where, hooked = answers("hooked", preloaded)
    wanted = [symbol for symbol in hooked_symbols(config) if plain_where.get(symbol, "absent") != "absent"]
    ours = {symbol for symbol, path in hooked_where.items() if "libnvshare" in path}
    result.figure("exported", len(symbols))
    result.figure("hooked", len(wanted))
    result.figure("requests", len(requests))
    result.figure("found", sum(line.split()[4] == "0" for line in plain))
    result.figure("unknown_addresses", sorted({line.split()[1] for line in plain if line.endswith(" unknown")}))
    result.figure("other_symbols_in_library", sorted(ours - set(wanted)))
    different = [f"{a} -> {b}" for a, b in zip(plain, hooked) if a != b]
    result.figure("different", different[:40])
    result.require("hooked symbols that dlsym does not find in the library", sorted(set(wanted) - ours)[:20], "==", [])
    result.require("requests answered", len(hooked), "==", len(plain))
    result.require("requests that map to another symbol", len(different), "==", 0)
    result.require("requests that found a symbol", result.figures["found"], ">=", len(wanted))


def launch_programs(config, result):
    """The same program through the driver API and through a static CUDA runtime, where the machine can compile it."""
    programs = {"driver": config.program("launch_driver")}
    compiler = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if compiler and not config.small:
        target = config.work / "launch_cudart"
        if target.exists():
            return {**programs, "runtime": str(target)}
        source = config.repo / "bench" / "launch_cudart.cu"
        build = Process(config, "nvcc", [compiler, "-O2", "-cudart", "static", "-arch=native", "-o", target, source])
        if build.wait(120) == 0:
            programs["runtime"] = str(target)
        else:
            result.figure("nvcc", build.tail())
    return programs


def start_pair(config, scheduler, name, program, native_first=True):
    """The program native and under nvshare, both alive and ready."""
    def native():
        return Process(config, f"{name}-native", [program])

    def shared():
        return Process(config, f"{name}-nvshare", scheduler.command([program]), scheduler.program_environment())

    pair = [native(), shared()] if native_first else [shared(), native()][::-1]
    for process in pair:
        process.wait_event("ready", 60)
    return pair


def answer_of(process, order):
    answer = process.order(order, 60)
    if "error" in answer:
        raise RuntimeError(f"{process.name}: {order}: {answer['error']}")
    return answer


def end_pair(pair):
    for process in pair:
        process.close_input()
        process.expect_success(30)


def in_turn(config, scheduler, name, program):
    """The program native and under nvshare, both alive; a function that gives both the same order, one after the other."""
    native, shared = start_pair(config, scheduler, name, program)
    turn = [0]

    def ask(order):
        turn[0] += 1
        first, second = (native, shared) if turn[0] % 2 else (shared, native)
        answers = {p: answer_of(p, order) for p in (first, second)}
        return answers[native], answers[shared]

    return ask, lambda: end_pair((native, shared))


def spread(values):
    """How far values of the same thing lie apart: the middle, both ends, and all of them in order."""
    ordered = sorted(values)
    return {"median": median(ordered), "lowest": ordered[0], "highest": ordered[-1], "all": ordered}


def measure_pair(config, scheduler, name, program, number, launches, blocks, processor):
    """A fresh pair of processes on one processor, windows in the order native, nvshare, nvshare, native, then the other way round."""
    pair = start_pair(config, scheduler, f"{name}{number}", program, native_first=number % 2 == 0)
    for process in pair:
        answer_of(process, f"pin {processor}")
        answer_of(process, f"launch {launches}")
    windows = ([], [])
    for block in range(blocks):
        for who in (0, 1, 1, 0) if (block + number) % 2 == 0 else (1, 0, 0, 1):
            windows[who].append(answer_of(pair[who], f"launch {launches}")["launch_ns"])
    straight = [answer_of(process, f"ab {launches} {max(1, blocks // 2)}") for process in pair] if name == "driver" else None
    end_pair(pair)
    row = {"native_ns": median(windows[0]), "nvshare_ns": median(windows[1]), "windows_ns": windows}
    row["ratio"] = row["nvshare_ns"] / row["native_ns"]
    if straight:
        row["in_process"] = {"native": straight[0], "nvshare": straight[1]}
    return row


def launch_cost(config, result):
    """Empty kernels back to back. Where a process's buffers come to lie decides several per cent of a launch and is drawn at its start, so
    the figure is the median over many fresh pairs of processes. Beside it, in one process: the hook against the driver's own function."""
    launches, pairs, blocks = (2000, 3, 1) if config.small else (30_000, 9, 6)
    processor = max(os.sched_getaffinity(0))
    result.figure("processor", processor)
    with Scheduler(config, 10, extra={"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else None) as scheduler:
        for name, program in launch_programs(config, result).items():
            rows = [measure_pair(config, scheduler, name, program, number, launches, blocks, processor) for number in range(pairs)]
            figures = {"ratio_over_pairs": spread([row["ratio"] for row in rows]), "pairs": rows}
            if name == "driver":
                both = [row["in_process"] for row in rows]
                # A native process has one function under both names: how far its ratio is from 1 is what this way cannot see.
                figures["in_process_hook_over_own"] = spread([each["nvshare"]["ratio"] for each in both])
                figures["in_process_native_over_itself"] = spread([each["native"]["ratio"] for each in both])
                result.require("driver: the hook was measured", [each["nvshare"]["hooked"] for each in both], "==", [True] * pairs)
                result.require("driver: native has no hook", [each["native"]["hooked"] for each in both], "==", [False] * pairs)
            result.figure(name, figures)
            result.require_time(f"{name}: launch over native, median of {pairs} pairs", figures["ratio_over_pairs"]["median"], "<=", 1.02)


def alone(config, name, argv, environment, order):
    """What a process of its own answers to one order."""
    process = Process(config, name, argv, environment)
    process.wait_event("ready", 60)
    answer = process.order(order, 60)
    process.close_input()
    process.expect_success(30)
    return answer


def compare_alloc(result, name, label, pairs, slack_us):
    """pairs: what native and nvshare answered. At most 5 % more than native, or `slack_us` more."""
    native = median([a["pair_us"] for a, _ in pairs])
    shared = median([b["pair_us"] for _, b in pairs])
    result.figure(f"{name} {label}", {"native_us": native, "nvshare_us": shared, "pairs": pairs})
    result.require_time(f"{name}: malloc+free {label}", shared, "<=", native + slack_us if slack_us else native * 1.05, "us")


def alloc_cost(config, result):
    """Allocating and freeing, against native."""
    with Scheduler(config, 10, extra={"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if config.small else None) as scheduler:
        for name, program in launch_programs(config, result).items():
            ask, close = in_turn(config, scheduler, name, program)
            for label, size, count in (("1 KB", 1024, 500), ("4 MiB", 4 * MIB, 200), ("256 MiB", 256 * MIB, 20)):
                ask(f"alloc {size} {max(2, count // 10)}")
                compare_alloc(result, name, label, [ask(f"alloc {size} {count}") for _ in range(5)], None)
            many = [ask("many 2000 1000") for _ in range(3)]
            result.figure(f"{name} 2000 x 1000 bytes", {"native": many[-1][0], "nvshare": many[-1][1]})
            close()
            if config.small:
                continue
            # Each alone: the driver takes 25 ms instead of 0.5 for 8 GiB after another process had gigabytes and gave them back.
            order = f"alloc {8 * GIB} 8"
            shared = scheduler.command([program])
            pairs = [(alone(config, f"{name}-8g-native", [program], None, order),
                      alone(config, f"{name}-8g-nvshare", shared, scheduler.program_environment(), order)) for _ in range(3)]
            compare_alloc(result, name, "8 GiB", pairs, 10_000)
