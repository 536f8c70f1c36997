#!/usr/bin/env python3
"""A node with honest and hostile clients: the honest ones finish as alone, the scheduler stays.

  hostile_test.py --scheduler PROGRAM [--seconds N] [unittest arguments]
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
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
PROGRAMS = argparse.Namespace(scheduler=None, seconds=3.0)
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
        self.grant = None
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
            raise OSError(f"{name} after {self.turns} turns")
        if name == "LockOk" and fields["budget"] >= self.size and self.grant != fields["grant"]:
            self.grant = fields["grant"]
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
            self.say("LockReleased", reason=reason, drain_ns=1000, used_ns=5_000_000, **grant, **self.memory())
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
        while not (self.runtime / "admin/admin.sock").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.tail())
            time.sleep(0.01)

    def attack(self, count, gpus, pause=0.002):
        for i in range(count):
            command = [sys.executable, HERE / "hostile.py", "--socket", self.socket, "--seed", str(SEED + i), "--seconds", str(PATIENCE),
                       "--gpus", gpus, "--pause", str(pause)]
            self.hostile.append(subprocess.Popen(command))

    def status(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
            admin.settimeout(PATIENCE)
            admin.connect(str(self.runtime / "admin/admin.sock"))
            admin.sendall(b'{"request":"status"}\n')
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
        for name in protocol.STRUCTS:
            _, fields = protocol.decode(protocol.GOLDEN[name])
            version = protocol.HEADER.unpack_from(protocol.GOLDEN[name])[1]
            self.assertEqual(protocol.encode(name, version=version, **fields), protocol.GOLDEN[name], name)


class Hostile(unittest.TestCase):
    def setUp(self):
        self.node = Node()
        self.addCleanup(self.node.close)

    def run_honest(self, gpu, turns, limit):
        pair = [Honest(self.node.socket, gpu, 12 * GIB, turns) for _ in range(2)]
        begin = time.monotonic()
        for each in pair:
            each.start()
        results = [each.result(begin + limit - time.monotonic()) for each in pair]
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
        alone = self.run_honest(2, 20, PATIENCE)
        descriptors, memory = self.node.descriptors(), self.node.memory()
        self.node.attack(4, "1,3,4,5")
        time.sleep(PROGRAMS.seconds)
        among = self.run_honest(2, 20, PATIENCE)
        # The attackers take the processor as well; a scheduler that serves them first would never come to an end.
        self.assertLess(among, 10 * alone + 5, f"seed {SEED}: {alone:.2f} s alone")
        self.expect_unharmed(descriptors, memory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--seconds", type=float, default=2.0, help="of attack before the honest ones begin")
    known, rest = parser.parse_known_args()
    PROGRAMS.scheduler, PROGRAMS.seconds = known.scheduler, known.seconds
    unittest.main(argv=[sys.argv[0], *rest])
