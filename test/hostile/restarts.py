#!/usr/bin/env python3
"""A scheduler that is killed at random under many clients, and started again: all are back in time, and no tenant is over its limit.

  restarts.py --scheduler PROGRAM [--kills 200] [--clients 200] [--tenants 10] [--stopped 0] [--seed N]

Each client is a process of its own that charges and returns memory against its tenant's limit, within its lease, and takes turns with its
GPU. With --stopped so many of them, others each time, stand still (SIGSTOP) from before the kill until the rest is back. Prints what it saw as JSON; exits 1 when a limit was passed or a client did not come back.
"""
import argparse
import json
import mmap
import os
import pathlib
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import protocol

GIB = 1 << 30
MIB = 1 << 20
LIMIT = 4 * GIB  # of each tenant; its clients would have more together
GPU = 128 * GIB  # contexts alone count 300 MiB each
STEP = 64 * MIB
MOST = GIB  # of one client
PATIENCE = 60.0


class Table:
    """What each client has charged, in memory that all share: (charged, epoch that it is registered with, its turns since)."""

    ROW = struct.Struct("<QQQ")

    def __init__(self, rows):
        self.rows = rows
        self.memory = mmap.mmap(-1, max(mmap.PAGESIZE, rows * self.ROW.size))

    def get(self, row):
        return self.ROW.unpack_from(self.memory, row * self.ROW.size)

    def put(self, row, column, value):
        struct.pack_into("<Q", self.memory, row * self.ROW.size + 8 * column, value)


class Client:
    def __init__(self, table, row, path, gpu, seed):
        self.table, self.row, self.path, self.gpu = table, row, path, gpu
        self.random = random.Random(seed)
        self.charged = self.lease = self.id = self.node_limit = self.resident = self.request = self.asked = self.turns = 0
        self.runs = False
        self.connection = None

    def memory(self):
        return {"memory_allocated": self.charged, "memory_resident": self.resident, "memory_swappable_host": self.charged,
                "memory_charged": self.charged}

    def say(self, name, **fields):
        self.connection.send(protocol.encode(name, **fields))

    def charge(self, amount):
        self.charged = amount
        self.resident = min(self.resident, amount)
        self.table.put(self.row, 0, amount)

    def come(self):
        while True:
            try:
                self.connection = protocol.connect(self.path, PATIENCE)
                self.connection.send(protocol.register(
                    gpu=self.gpu, total=GPU, client_id=self.id, lease=self.lease, node_limit=self.node_limit, has_lock=int(self.runs),
                    wants_lock=int(not self.runs), allocated=self.charged, memory_resident=self.resident, memory_charged=self.charged))
                self.asked = 0
                return
            except OSError:
                time.sleep(0.02)

    def run(self):
        self.come()
        while True:
            try:
                if select.select([self.connection], [], [], self.random.uniform(0.01, 0.1))[0]:
                    packet = self.connection.recv(1024)
                    if not packet:
                        raise OSError
                    self.take(*protocol.decode(packet))
                else:
                    self.act()
            except OSError:
                self.connection.close()
                time.sleep(0.01)
                self.come()

    def act(self):
        if self.random.random() < 0.3 and self.charged > 0:  # frees, and keeps the room for itself
            self.charge(self.charged - min(self.charged, STEP * self.random.randrange(1, 5)))
        elif self.charged + STEP <= min(self.lease, MOST):
            self.charge(self.charged + STEP)
        elif self.charged < MOST and self.asked == 0:
            self.request += 1
            self.asked = self.request
            self.say("AskHeadroom", request=self.request, bytes=STEP)
            return
        self.say("MemUpdate", **self.memory())

    def take(self, name, fields):
        if name == "Registered":
            self.id, self.lease, self.node_limit = fields["client_id"], fields["lease"], fields["node_limit"]
            self.turns = 0
            self.table.put(self.row, 2, 0)
            self.table.put(self.row, 1, fields["epoch"])
        elif name == "Refused":
            raise OSError
        elif name == "Headroom":
            self.asked = 0
            self.lease += fields["bytes"]
        elif name == "RecallHeadroom":
            given = min(fields["bytes"], self.lease - self.charged)
            self.lease -= given
            self.say("HeadroomReturned", recall=fields["recall"], bytes=given, charged=self.charged)
        elif name == "LockOk":
            self.take_lock(fields)
        elif name == "DropLock" and self.runs:
            self.runs = False
            self.say("LockReleased", epoch=fields["epoch"], grant=fields["grant"], **self.memory())
            self.say("ReqLock", request=self.turns + 1)
        elif name == "Evict":
            self.resident = 0
            self.say("SwapProgress", direction=0, finished=1, id=fields["eviction"], moved=self.charged, copied=self.charged,
                     elapsed_ns=1000, **self.memory())

    def take_lock(self, fields):
        if fields["budget"] < self.charged:
            return
        self.runs = True
        self.turns += 1
        self.table.put(self.row, 2, self.turns)
        self.resident = self.charged
        self.say("SwapProgress", direction=1, finished=1, id=fields["grant"], moved=self.charged, elapsed_ns=1000, **self.memory())


class World:
    def __init__(self, arguments):
        self.arguments = arguments
        self.random = random.Random(arguments.seed)
        self.folder = tempfile.TemporaryDirectory(prefix="nvshare-restarts-")
        root = pathlib.Path(self.folder.name)
        self.runtime = root / "run"
        self.log = open(root / "log", "a+", encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NVSHARE_")}
        self.environment = environment | {
            "NVSHARE_RUNTIME_DIR": str(self.runtime), "NVSHARE_LOCK_DIR": str(root / "locks"), "NVSHARE_NVML": "off",
            "NVSHARE_SWITCH_TIME_MODE": "fixed", "NVSHARE_SWITCH_TIME_FIXED": "20ms"}
        self.table = Table(arguments.clients)
        self.parents, self.charged_most, self.back = [], 0, []

    def start_scheduler(self):
        self.scheduler = subprocess.Popen([self.arguments.scheduler], env=self.environment, stderr=self.log)

    def ask(self, request):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
                    admin.settimeout(PATIENCE)
                    admin.connect(str(self.runtime / "admin/admin.sock"))
                    admin.sendall(json.dumps(request).encode() + b"\n")
                    return json.loads(admin.makefile().readline())
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def tenant_of(self, row):
        return row % self.arguments.tenants

    # A parent for each tenant, whose children are its clients: `nvsharectl run` makes tenants of process trees.
    def start_tenant(self, tenant):
        ready, told = os.pipe()
        parent = os.fork()
        if parent == 0:
            os.setpgid(0, 0)
            os.read(ready, 1)
            for row in range(self.arguments.clients):
                if self.tenant_of(row) == tenant and os.fork() == 0:
                    Client(self.table, row, str(self.runtime / "client/scheduler.sock"), 1 + tenant % 4, self.arguments.seed + row).run()
            while True:
                signal.pause()
        os.close(ready)
        answer = self.ask({"request": "tenant", "pid": parent, "name": f"tenant {tenant}", "gpu_memory_limit": LIMIT})
        if not answer.get("ok"):
            raise RuntimeError(answer)
        os.write(told, b"g")
        os.close(told)
        self.parents.append(parent)

    def charged_of(self, tenant):
        return sum(self.table.get(row)[0] for row in range(self.arguments.clients) if self.tenant_of(row) == tenant)

    def look(self):
        """The figures are not of one moment: what moves from one client to another may be seen twice, but not again and again."""
        for tenant in range(self.arguments.tenants):
            self.charged_most = max(self.charged_most, min(self.charged_of(tenant) for _ in range(5)))

    def wait_for(self, is_there):
        begin = time.monotonic()
        while not is_there():
            self.look()
            if time.monotonic() - begin > PATIENCE:
                return None
            time.sleep(0.002)
        return time.monotonic() - begin

    def has_turns(self, epochs):
        rows = [self.table.get(row) for row in range(self.arguments.clients)]
        return any(epoch not in epochs and turns > 0 for _, epoch, turns in rows)

    def registered(self, epochs):
        return sum(self.table.get(row)[1] not in epochs for row in range(self.arguments.clients))

    def clients(self):
        return [int(pid) for parent in self.parents for pid in pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]

    def run(self):
        self.start_scheduler()
        for tenant in range(self.arguments.tenants):
            self.start_tenant(tenant)
        everybody = self.arguments.clients
        if self.wait_for(lambda: self.registered({0}) == everybody) is None:
            return "not all clients registered at first"
        for kill in range(self.arguments.kills):
            until = time.monotonic() + self.random.uniform(0.0, 0.5)
            while time.monotonic() < until:
                self.look()
                time.sleep(0.005)
            stopped = self.random.sample(self.clients(), self.arguments.stopped)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            self.scheduler.kill()
            self.scheduler.wait()
            epochs = {self.table.get(row)[1] for row in range(everybody)}
            begin = time.monotonic()
            self.start_scheduler()
            serves = self.wait_for(lambda: self.has_turns(epochs))
            if serves is None:
                return f"after kill {kill + 1} nobody had a turn"
            for those, whose in ((everybody - len(stopped), "clients that run"), (everybody, "clients")):
                if self.wait_for(lambda those=those: self.registered(epochs) >= those) is None:
                    return f"after kill {kill + 1} {self.registered(epochs)} of {those} {whose} are back"
                if whose == "clients that run":
                    self.back.append((serves, time.monotonic() - begin))
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
        return None

    def end(self):
        for parent in self.parents:
            os.killpg(parent, signal.SIGKILL)
            os.waitpid(parent, 0)
        self.scheduler.kill()
        self.scheduler.wait()
        self.log.seek(0)
        tail = self.log.read()[-2000:]
        self.log.close()
        self.folder.cleanup()
        return tail


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tenants", type=int, default=10)
    parser.add_argument("--stopped", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    arguments = parser.parse_args()
    world = World(arguments)
    problem = "it did not end"
    try:
        problem = world.run()
    finally:
        tail = world.end()
    if problem is None and world.charged_most > LIMIT:
        problem = f"a tenant had {(world.charged_most - LIMIT) >> 20} MiB more than its limit"
    serves = sorted(serves for serves, _ in world.back)
    back = sorted(back for _, back in world.back)
    share = lambda values, part: round(values[min(len(values) - 1, int(part * len(values)))], 3) if values else None
    print(json.dumps({
        "seed": arguments.seed, "clients": arguments.clients, "tenants": arguments.tenants, "stopped": arguments.stopped, "kills": len(world.back), "problem": problem,
        "first_turn_s": {"median": share(serves, 0.5), "p99": share(serves, 0.99), "most": share(serves, 1)},
        "all_back_s": {"median": share(back, 0.5), "p99": share(back, 0.99), "most": share(back, 1)},
        "limit_bytes": LIMIT, "charged_most_bytes": world.charged_most}))
    if problem is not None:
        print(tail, file=sys.stderr)
    return problem is not None


if __name__ == "__main__":
    sys.exit(main())
