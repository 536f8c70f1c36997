#!/usr/bin/env python3
"""A node with honest and hostile clients: the honest ones finish as alone, the scheduler stays.

  hostile_test.py --scheduler PROGRAM [--seconds N] [--pods N] [unittest arguments]
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import resource
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import protocol

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = argparse.Namespace(scheduler=None, seconds=3.0, pods=16)
SEED = int(os.environ.get("NVSHARE_TEST_SEED", random.SystemRandom().randrange(1 << 31)))
GIB = 1 << 30
PATIENCE = 60.0
DROPPED, EARLY = 0, 1
OUT, IN = 0, 1


class Honest:
    """A client, a process of its own, that does what it should: so many turns of a few milliseconds, out of the GPU between them when it is
    asked to."""

    def __init__(self, path, gpu, size, turns):
        self.path, self.gpu, self.size, self.wanted = path, gpu, size, turns
        self.turns = 0
        self.resident = 0
        self.grant = self.loading = None
        self.ours, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=self.run, args=(theirs,), daemon=True)

    def start(self):
        self.process.start()

    def result(self, patience):
        """(turns, seconds, what went wrong or None)"""
        if self.ours.poll(max(0.0, patience)):
            result = self.ours.recv()
        else:
            result = ("unknown", patience, "did not finish")
        self.process.kill()
        self.process.join()
        return result

    def memory(self):
        return {"memory_allocated": self.size, "memory_resident": self.resident, "memory_swappable_host": self.size, "memory_charged": 0}

    def say(self, name, **fields):
        self.connection.send(protocol.encode(name, **fields))

    def run(self, out):
        begin, error = time.monotonic(), None
        try:
            self.connection = protocol.connect(self.path, PATIENCE)
            self.connection.send(protocol.register(gpu=self.gpu, allocated=self.size))
            self.say("ReqLock", request=1)
            while self.turns < self.wanted:
                try:
                    packet = self.connection.recv(1024)
                except ConnectionResetError:  # of what it had not read; what it said before comes after that
                    packet = self.connection.recv(1024)
                if not packet:
                    raise OSError("the connection ended")
                self.take(protocol.decode(packet))
            self.connection.close()
        except (OSError, struct.error) as problem:
            error = repr(problem)
        out.send((self.turns, time.monotonic() - begin, error))

    def take(self, message):
        name, fields = message
        if name == "Refused" or name == "?":
            raise OSError(f"{name} after {self.turns} turns: {fields}")
        if name == "LockOk" and fields["budget"] < self.size:
            self.loading = fields["grant"]  # the rest of its budget follows, or it has to go before that
        elif name == "DropLock" and fields["grant"] == self.loading:
            self.loading = None
            self.say("LockReleased", reason=DROPPED, epoch=fields["epoch"], grant=fields["grant"], **self.memory())
            self.say("ReqLock", request=self.turns + 1)
        elif name == "LockOk" and self.grant != fields["grant"]:
            self.grant, self.loading = fields["grant"], None
            self.resident = self.size
            grant = {"epoch": fields["epoch"], "grant": fields["grant"]}
            self.say("SwapProgress", direction=IN, finished=1, id=self.grant, moved=self.size, elapsed_ns=1000, **self.memory())
            reason = EARLY
            end = time.monotonic() + 0.005
            while (left := end - time.monotonic()) > 0:
                if not select.select([self.connection], [], [], left)[0]:
                    break
                then, _ = protocol.decode(self.connection.recv(1024))
                if then == "DropLock":
                    reason = DROPPED
                    break
            self.say("LockReleased", reason=reason, used_ns=5_000_000, **grant, **self.memory())
            self.turns += 1
            self.say("ReqLock", request=self.turns + 1)
        elif name == "Evict":
            self.resident = 0
            self.say("SwapProgress", direction=OUT, finished=1, id=fields["eviction"], moved=self.size, copied=self.size, elapsed_ns=1000,
                     **self.memory())
        elif name == "RecallHeadroom":
            self.say("HeadroomReturned", recall=fields["recall"])


class Node:
    """A scheduler of its own, without NVML."""

    def __init__(self, **variables):
        self.folder = tempfile.TemporaryDirectory(prefix="nvshare-hostile-")
        root = pathlib.Path(self.folder.name)
        self.runtime = root / "run"
        self.log = open(root / "log", "w+", encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NVSHARE_")}
        environment |= {
            "NVSHARE_RUNTIME_DIR": str(self.runtime), "NVSHARE_LOCK_DIR": str(root / "locks"), "NVSHARE_NVML": "off",
            "NVSHARE_SWITCH_TIME_MODE": "fixed", "NVSHARE_SWITCH_TIME_FIXED": "20ms", "NVSHARE_UNANSWERED_GRACE": "100ms",
            "NVSHARE_HOST_MEMORY_BUDGET": "256Mi", "NVSHARE_RESTART_GRACE": "0", **variables,
        }
        self.process = subprocess.Popen([PROGRAMS.scheduler], env=environment, stderr=self.log)
        self.socket = str(self.runtime / "client/scheduler.sock")
        self.hostile = []
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.tail())
            time.sleep(0.01)

    def attack(self, count, gpus, pause=0.002, limit=0):
        """With a limit each is a tenant of its own that was granted so much memory, as a pod is."""
        for i in range(count):
            command = [sys.executable, HERE / "hostile.py", "--socket", self.socket, "--seed", str(SEED + i), "--seconds", str(PATIENCE),
                       "--gpus", gpus, "--pause", str(pause)]
            self.hostile.append(subprocess.Popen(command))
            if limit:
                self.ask({"request": "tenant", "pid": self.hostile[-1].pid, "name": f"hostile {i}", "gpu_memory_limit": limit})

    def answers(self):
        try:
            return bool(self.status())
        except (OSError, ValueError):
            return False

    def status(self):
        return self.ask({"request": "status"})

    def ask(self, request):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
            admin.settimeout(PATIENCE)
            admin.connect(str(self.runtime / "admin/admin.sock"))
            admin.sendall(json.dumps(request).encode() + b"\n")
            text = b""
            while not text.endswith(b"\n"):
                part = admin.recv(1 << 16)
                if not part:
                    break
                text += part
        return json.loads(text)

    def memory(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10
        return 0

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def tail(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()[-4000:]

    def close(self):
        for process in self.hostile:
            process.kill()
            process.wait()
        self.process.terminate()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "did not end"
        self.log.close()
        self.folder.cleanup()
        return status


def flood_with_silence(path, count, out):
    """As many connections as it can make at once, that say nothing until this process is killed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    flood = []
    for _ in range(count):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        flood.append(connection)
        connection.setblocking(False)
        try:
            connection.connect(path)
        except BlockingIOError:
            time.sleep(0.001)  # those that wait to be accepted are as many as may be
        except OSError:
            break
    out.send(len(flood))
    while True:
        time.sleep(PATIENCE)


class Layouts(unittest.TestCase):
    def test_the_table_is_that_of_the_golden_messages(self):
        self.assertGreater(len(protocol.FROM_CLIENT), 20)
        for name, layout in protocol.STRUCTS.items():
            self.assertLessEqual(layout.size, len(protocol.GOLDEN[name]) - protocol.HEADER.size, name)
            if name not in ("Registered",):
                self.assertEqual(layout.size, len(protocol.GOLDEN[name]) - protocol.HEADER.size, name)
        _, fields = protocol.decode(protocol.GOLDEN["Register"])
        self.assertEqual(fields["gpu_name"].rstrip(b"\0"), b"a card")
        self.assertEqual(fields["program"].rstrip(b"\0"), b"a program")
        self.assertEqual((fields["version_min"], fields["memory_allocated"], fields["memory_resident"]), (1, 0x5040, 0x4030))
        for name in protocol.STRUCTS.keys() - {"Registered"}:
            _, fields = protocol.decode(protocol.GOLDEN[name])
            version = protocol.HEADER.unpack_from(protocol.GOLDEN[name])[1]
            self.assertEqual(protocol.encode(name, version=version, **fields), protocol.GOLDEN[name], name)


class Hostile(unittest.TestCase):
    def setUp(self):
        self.node = Node()
        self.addCleanup(self.node.close)

    def run_honest(self, gpus, turns, limit, count=2, size=12 * GIB):
        clients = [Honest(self.node.socket, gpus[i % len(gpus)], size, turns) for i in range(count)]
        begin = time.monotonic()
        for each in clients:
            each.start()
        results = [each.result(begin + limit - time.monotonic()) for each in clients]
        told = f"seed {SEED}; {results} of {turns} turns in {time.monotonic() - begin:.1f} s\n{self.node.tail()}"
        for done, _, error in results:
            self.assertIsNone(error, told)
            self.assertEqual(done, turns, told)
        return max(seconds for _, seconds, _ in results)

    def expect_unharmed(self, descriptors, memory):
        self.assertIsNone(self.node.process.poll(), f"seed {SEED}\n{self.node.tail()}")
        report = self.node.status()
        self.assertTrue(report["ok"])
        # Each hostile process has up to 512 connections of two descriptors.
        self.assertLess(self.node.descriptors(), descriptors + 2 * 512 * len(self.node.hostile))
        self.assertLess(self.node.memory(), memory + (128 << 20), "what they left behind")
        for process in self.node.hostile:
            process.kill()
            process.wait()
        self.node.hostile.clear()
        deadline = time.monotonic() + PATIENCE
        while self.node.status()["clients"] and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.node.status()["clients"], [], "the dead are forgotten")
        self.assertEqual(self.node.close(), 0)

    def test_honest_clients_of_another_gpu_finish_as_alone(self):
        alone = self.run_honest([2], 20, PATIENCE)
        descriptors, memory = self.node.descriptors(), self.node.memory()
        self.node.attack(4, "1,3,4,5")
        time.sleep(PROGRAMS.seconds)
        among = self.run_honest([2], 20, PATIENCE)
        # The attackers take the processor as well; a scheduler that serves them first would never come to an end.
        self.assertLess(among, 10 * alone + 5, f"seed {SEED}: {alone:.2f} s alone")
        self.expect_unharmed(descriptors, memory)

    def test_honest_clients_of_the_same_gpu_finish_as_alone(self):
        alone = self.run_honest([1], 20, PATIENCE)
        descriptors, memory = self.node.descriptors(), self.node.memory()
        self.node.attack(4, "1", limit=GIB // 16)
        time.sleep(PROGRAMS.seconds)
        among = self.run_honest([1], 20, PATIENCE)
        self.assertLess(among, 10 * alone + 10, f"seed {SEED}: {alone:.2f} s alone")
        self.expect_unharmed(descriptors, memory)

    def test_clients_that_come_while_others_leave_are_not_taken_for_them(self):
        for _ in range(10):
            self.run_honest([1, 2, 3, 4], 3, PATIENCE, 8, GIB)

    def test_pods_that_start_at_once_half_of_them_hostile(self):
        """As alone: each of a GPU's honest ones has its turns, whoever else came in the same second."""
        count, gpus = max(2, PROGRAMS.pods // 2), [1, 2, 3, 4]
        alone = self.run_honest(gpus, 3, PATIENCE, count, GIB)
        descriptors, memory = self.node.descriptors(), self.node.memory()
        self.node.attack(count, "1,2,3,4", limit=GIB // 64, pause=0.002 * count)
        among = self.run_honest(gpus, 3, 10 * PATIENCE, count, GIB)
        print(f"{2 * count} pods: {count} honest ones took {alone:.2f} s alone, {among:.2f} s among as many hostile ones", file=sys.stderr)
        self.expect_unharmed(descriptors, memory)

    def test_a_flood_of_silent_connections(self):
        alone = self.run_honest([2], 20, PATIENCE)
        descriptors = self.node.descriptors()
        ours, theirs = multiprocessing.Pipe()
        flood = multiprocessing.get_context("fork").Process(target=flood_with_silence, args=(self.node.socket, 3000, theirs), daemon=True)
        flood.start()
        self.addCleanup(flood.kill)
        self.assertTrue(ours.poll(PATIENCE))
        made = ours.recv()
        self.assertGreater(made, 100)
        among = self.run_honest([2], 20, PATIENCE)
        self.assertLess(among, 10 * alone + 5, f"{alone:.2f} s alone; {made} connections")
        deadline = time.monotonic() + PATIENCE
        while self.node.descriptors() > descriptors + 16 and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertLessEqual(self.node.descriptors(), descriptors + 16, "those that said nothing are closed")


class Restarts(unittest.TestCase):
    def play(self, *options):
        run = subprocess.run([sys.executable, HERE / "restarts.py", "--scheduler", PROGRAMS.scheduler, "--kills", "5", "--clients", "24",
                              "--tenants", "3", "--seed", str(SEED), *options], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, f"{run.stdout}\n{run.stderr}")

    def test_killed_at_random_all_come_back_and_no_limit_is_passed(self):
        self.play()

    def test_those_that_run_come_back_though_others_stand_still(self):
        self.play("--stopped", "3")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--seconds", type=float, default=2.0, help="of attack before the honest ones begin")
    parser.add_argument("--pods", type=int, default=16, help="that start at once, half of them hostile")
    known, rest = parser.parse_known_args()
    PROGRAMS.scheduler, PROGRAMS.seconds, PROGRAMS.pods = known.scheduler, known.seconds, known.pods
    unittest.main(argv=[sys.argv[0], *rest])
