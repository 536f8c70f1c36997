"""Check servers: many inference servers on a GPU that holds a few of them. Each request is for one of them, the more popular the more often, at
random moments; how long until its first token, where the server was there and where it was out, beside what one alone takes and beside what
a schedule gets done that knows the arrivals. What a request takes by itself is measured by the same requests with all servers there, natively."""
import json
import random
import statistics
import time

from checks.swap import pinned_speed
from harness import MIB, Process, Scheduler, parallel, prewarm_host

SECOND = 1_000_000_000


class Shape:
    """Sizes in MiB, times in seconds."""

    def __init__(self, config):
        small = config.small
        self.servers = 4 if small else 8
        self.told = 320 if small else 32 * 1024
        self.rate = 4.0 if small else 0.3  # requests a second, of all servers
        self.lasts = 6 if small else config.serve_seconds
        self.held, self.block, self.busy_ms = 96, 16, 20  # of `served`, in small
        self.layers = 6
        self.tokens = 64
        self.pause_s = 0.1 if small else 2.5  # between the requests of one alone: a GPU without work lowers its clocks
        # What the servers hold leaves little of 128 GiB of host memory to others.
        self.extra = {"NVSHARE_MEMORY_RESERVE_PERCENT": "5"} if small else {"NVSHARE_HOST_MEMORY_KEPT_FREE": "8Gi"}


class Server:
    """One server: it is asked one request at a time, as they come."""

    def __init__(self, config, shape, index, scheduler, name=None, *arguments):
        self.small, self.busy_ms = config.small, shape.busy_ms
        if config.small:
            argv = [config.program("served"), "--bytes", f"{shape.held}M", "--block", f"{shape.block}M", "--seed", index + 1]
        else:
            argv = [config.python, str(config.repo / "test" / "gpu" / "programs" / "torch_server.py"), shape.layers, index + 1, *arguments]
        environment = scheduler.program_environment() if scheduler else None
        self.process = Process(config, name or f"server-{index}", argv, environment)
        self.bytes = shape.held * MIB
        self.tokens = ""

    def wait(self, timeout):
        ready = self.process.wait_event("ready", timeout)
        self.bytes = ready.get("bytes", self.bytes)
        self.tokens = ready.get("tokens", "")

    def ask(self):
        """When its first token and its last were there, by the machine's monotonic clock."""
        if self.small:
            self.process.order(f"read 1 {self.busy_ms} 0", 120)
            now = time.monotonic_ns()
            return {"first_ns": now, "end_ns": now, "tokens": ""}
        return self.process.order("ask", 120)

    def serve(self, arrivals):
        """arrivals: ns, in order. A request that comes while another is answered waits for its turn."""
        answers = []
        for at in arrivals:
            time.sleep(max(0, at - time.monotonic_ns()) / SECOND)
            began = time.monotonic_ns()
            answers.append({**self.ask(), "arrived_ns": at, "asked_ns": began})
        return answers

    def end(self):
        self.process.close_input()
        self.process.expect_success(60)


def arrivals_of(shape, seed):
    """Seconds and server of each request: Poisson arrivals, popularity by Zipf's law."""
    chance = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(shape.servers)]
    found, at = [], 0.0
    while True:
        at += chance.expovariate(shape.rate)
        if at >= shape.lasts:
            return found
        found.append((at, chance.choices(range(shape.servers), weights)[0]))


def oracle(arrivals, fits, load_s, takes_s):
    """When each request of `arrivals` would end if it were known before they come: a server that is out comes in at the link's speed, one at a
    time, in the place of the one that is asked last of those that answer nothing; servers that are there do not slow each other down."""
    coming = {}
    for index, (at, server) in enumerate(arrivals):
        coming.setdefault(server, []).append((at, index))
    there, free_at, link_free, ends = {}, {}, 0.0, []

    def next_use(server, after):
        return next((at for at, _ in coming.get(server, []) if at > after), float("inf"))

    for at, server in arrivals:
        begin = max(at, free_at.get(server, 0.0))
        if server not in there:
            begin = max(begin, link_free)
            if len(there) >= fits:
                idle_from = min(max(begin, free_at.get(one, 0.0)) for one in there)
                begin = max(begin, idle_from)
                idle = [one for one in there if free_at.get(one, 0.0) <= begin]
                there.pop(max(idle, key=lambda one: next_use(one, at)))
            begin += load_s
            link_free = begin
            there[server] = True
        free_at[server] = begin + takes_s
        ends.append(free_at[server])
    return ends


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


def summary(values):
    return {"count": len(values), "p50_ms": percentile(values, 0.5), "p99_ms": percentile(values, 0.99), "most_ms": max(values, default=None)}


def brought_in(movements, client, begin, end):
    """Bytes of a client that came in between two moments."""
    return sum(one["copied"] for one in movements if one["client"] == client and not one["out"] and begin <= one["t"] <= end)


def alone(config, shape):
    """One server natively: what a request takes, and a process started anew for a request."""
    begin = time.monotonic_ns()
    server = Server(config, shape, 0, None, "server-alone")
    server.wait(180)
    ready = time.monotonic_ns()
    took = []
    for _ in range(6):
        time.sleep(shape.pause_s)
        at = time.monotonic_ns()
        answer = server.ask()
        took.append(((answer["first_ns"] - at) / 1e6, (answer["end_ns"] - at) / 1e6))
    server.end()
    return {"first_ms": statistics.median(first for first, _ in took), "end_ms": statistics.median(end for _, end in took),
            "tokens": server.tokens, "bytes": server.bytes, "started_anew_ms": (ready - begin) / 1e6}


def by_demand_paging(config, shape):
    """One server natively whose weights are managed memory and out on the host before each request: the driver brings in each page as it is
    touched. One at a time, as no more managed memory may be asked for than the card has free."""
    server = Server(config, shape, 0, None, "server-paging", "--managed")
    server.wait(180)
    first, end, right = [], [], True
    for _ in range(4):
        server.process.order("evict", 120)
        time.sleep(shape.pause_s)
        at = time.monotonic_ns()
        answer = server.ask()
        first.append((answer["first_ns"] - at) / 1e6)
        end.append((answer["end_ns"] - at) / 1e6)
        right = right and answer["tokens"] == server.tokens
    server.end()
    return {"first_ms": first, "end_ms": end, "right": right, "tokens": server.tokens}


def ask_as_they_come(servers, arrivals):
    """Each request's times, in the order of their coming."""
    begin = time.monotonic_ns() + SECOND // 2
    mine = [[begin + int(at * SECOND) for at, server in arrivals if server == index] for index in range(len(servers))]
    answers = parallel([lambda index=index: servers[index].serve(mine[index]) for index in range(len(servers))])
    requests = [{"server": index, "at_s": (answer["arrived_ns"] - begin) / SECOND, "asked_ns": answer["asked_ns"], "first_ns": answer["first_ns"],
                 "waited_own_ms": (answer["asked_ns"] - answer["arrived_ns"]) / 1e6,
                 "first_ms": (answer["first_ns"] - answer["asked_ns"]) / 1e6, "end_s": (answer["end_ns"] - begin) / SECOND,
                 "right": answer["tokens"] == servers[index].tokens}
                for index in range(len(servers)) for answer in answers[index]]
    return sorted(requests, key=lambda one: one["at_s"])


def natively(config, shape, arrivals):
    """The same requests where all servers are there: what each takes by itself, by the machine's moods at that moment."""
    servers = [Server(config, shape, index, None, f"native-{index}") for index in range(shape.servers)]
    for server in servers:
        server.wait(300)
    requests = ask_as_they_come(servers, arrivals)
    parallel([server.end for server in servers])
    return requests


def serve_all(config, shape, arrivals, setting):
    """The same on a GPU that counts as smaller, and what was brought in for each."""
    extra = dict(shape.extra, NVSHARE_SKIP_UNCHANGED=setting)
    with Scheduler(config, None, shape.told, extra) as scheduler:
        servers = [Server(config, shape, index, scheduler) for index in range(shape.servers)]
        for server in servers:
            server.wait(300)
        for server in servers:  # each has been out, and back, once
            server.ask()
        clients = scheduler.ask({"request": "status"})["clients"]
        pids = {client["pid"]: client["id"] for client in clients}
        held = {client["id"]: client["allocated"] for client in clients}
        requests = ask_as_they_come(servers, arrivals)
        usage = scheduler.ask({"request": "status"})["gpus"][0]["usage"]
        parallel([server.end for server in servers])
        movements = scheduler.movements()
    for one in requests:
        client = pids.get(servers[one["server"]].process.pid)
        one["came_mib"] = brought_in(movements, client, one["asked_ns"], one["first_ns"]) // MIB
        one["out"] = one["came_mib"] * MIB >= 0.5 * held.get(client, 1 << 62)
    return {"requests": requests, "bytes_out": usage["swapped_out"], "bytes_not_moved": usage.get("unmoved", 0),
            "held": statistics.median(held.values()), "first_tokens": servers[0].tokens}


def judge(result, shape, found, native, solo, link, setting):
    pairs = list(zip(found["requests"], native))
    out = [one["first_ms"] for one, _ in pairs if one["out"]]
    there = [one["first_ms"] for one, _ in pairs if one["came_mib"] == 0]
    partly = [one["first_ms"] for one, _ in pairs if one["came_mib"] > 0 and not one["out"]]
    own = percentile([by_itself["first_ms"] for _, by_itself in pairs], 0.5)
    there_natively = [by_itself["first_ms"] for one, by_itself in pairs if one["came_mib"] == 0]
    load_ms = found["held"] / (link * 1e9) * 1e3
    tokens_s = len(pairs) * shape.tokens / max(max(one["end_s"] for one, _ in pairs) - pairs[0][0]["at_s"], 1e-9)
    figures = {"out": summary(out), "partly out": summary(partly), "there": summary(there), "natively": summary([by_itself["first_ms"] for _, by_itself in pairs]),
               "there, natively": summary(there_natively), "held_bytes": found["held"], "load_ms_by_link": load_ms, "tokens_a_second": tokens_s}
    result.figure(f"times, {setting}", figures)
    print(f"      skip_unchanged {setting}: out {json.dumps(figures['out'])}, partly {json.dumps(figures['partly out'])}, there {json.dumps(figures['there'])}, "
          f"natively {json.dumps(figures['there, natively'])}")
    right = all(one["right"] and by_itself["right"] for one, by_itself in pairs)
    result.require(f"{setting}: answers as alone", right and found["first_tokens"] == solo["tokens"], "==", True)
    result.require(f"{setting}: some were out", len(out) > 0, "==", True)
    if setting != "on":
        return figures
    result.require_time("first token of one that was out, p50", figures["out"]["p50_ms"], "<=", 1.2 * load_ms + own, "ms")
    result.require_time("first token of one that was out, p99", figures["out"]["p99_ms"], "<=", 3 * (1.2 * load_ms + own), "ms")
    if there:
        result.require_time("first token of one that was there, p50", figures["there"]["p50_ms"], "<=", 1.05 * figures["there, natively"]["p50_ms"], "ms")
    return figures


def servers(config, result):
    shape = Shape(config)
    pinned = result.figure("pinned_copy", pinned_speed(config))
    solo = result.figure("alone", alone(config, shape))
    paging = None
    if not config.small:  # the stand-in's program has no managed memory
        paging = result.figure("by demand paging", by_demand_paging(config, shape))
        result.require("by demand paging: answers as alone", paging["right"] and paging["tokens"] == solo["tokens"], "==", True)
        result.figure("prewarm_host", prewarm_host(config, int(shape.servers * 1.05 * solo["bytes"])))
    seed = config.seed if config.seed is not None else 1
    arrivals = arrivals_of(shape, seed)
    result.figure("arrivals", {"seed": seed, "requests": len(arrivals), "by server": [sum(1 for _, one in arrivals if one == index) for index in range(shape.servers)]})
    link = pinned["in_gb_per_s"]
    fits = int(shape.told * MIB // (solo["bytes"] * 1.1))
    ends = oracle(arrivals, fits, solo["bytes"] / (link * 1e9), solo["end_ms"] / 1e3)
    best = result.figure("oracle's tokens a second", len(arrivals) * shape.tokens / (max(ends) - arrivals[0][0]))
    native = natively(config, shape, arrivals)
    result.figure("requests, natively", native)
    for setting in config.skip_unchanged.split(","):
        found = serve_all(config, shape, arrivals, setting)
        result.figure(f"requests, {setting}", found)
        figures = judge(result, shape, found, native, solo, link, setting)
        if setting == "on":
            result.require_time("tokens a second, of the oracle's", figures["tokens_a_second"] / best, ">=", 0.9)
            if paging is not None:
                slower = statistics.median(paging["first_ms"]) / figures["out"]["p50_ms"]
                result.require_time("first token of one that was out, p50: by demand paging over under nvshare", slower, ">=", 1)
