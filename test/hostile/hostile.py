#!/usr/bin/env python3
"""One client that lies to a scheduler, at random and reproducibly: --seed."""
import argparse
import os
import random
import socket
import struct
import time

import protocol

INTERESTING = [0, 1, 2, 0xFF, 1 << 20, (1 << 31) - 1, 1 << 32, 1 << 40, (1 << 49), 1 << 50, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


class Hostile:
    def __init__(self, path, seed, gpus):
        self.path, self.random, self.gpus = path, random.Random(seed), gpus
        self.connections = []
        self.pending = 0.0

    def open(self, registered=True):
        if len(self.connections) > 40:
            self.connections.pop(self.random.randrange(len(self.connections))).close()
        try:
            connection = protocol.connect(self.path, timeout=0.2)
            connection.setblocking(False)
            if registered:
                connection.send(protocol.register(gpu=self.random.choice(self.gpus), **self.lies_of_registration()))
            self.connections.append(connection)
        except OSError:
            time.sleep(0.01)

    def lies_of_registration(self):
        lies = {}
        if self.random.random() < 0.5:
            for name in ("has_lock", "wants_lock"):
                lies[name] = self.random.randrange(2)
            for name in ("client_id", "lease", "node_limit", "memory_limit", "memory_charged"):
                if self.random.random() < 0.3:
                    lies[name] = self.amount()
        return lies

    def amount(self):
        return self.random.choice(INTERESTING) if self.random.random() < 0.7 else self.random.getrandbits(64)

    def message(self):
        """A golden message with some of its eight-byte words, or of its bytes, replaced."""
        packet = bytearray(protocol.GOLDEN[self.random.choice(protocol.FROM_CLIENT)])
        for _ in range(self.random.randrange(4)):
            if self.random.random() < 0.8 and len(packet) >= 16:
                at = protocol.HEADER.size + 8 * self.random.randrange((len(packet) - protocol.HEADER.size) // 8)
                struct.pack_into("<Q", packet, at, self.amount())
            else:
                packet[self.random.randrange(len(packet))] = self.random.randrange(256)
        if self.random.random() < 0.05:
            packet = packet[: self.random.randrange(len(packet))]
        return bytes(packet)

    def send(self, connection, packet, descriptors=()):
        try:
            if descriptors:
                socket.send_fds(connection, [packet], descriptors)
            else:
                connection.send(packet)
            return True
        except BlockingIOError:
            return True
        except OSError:
            if connection in self.connections:
                self.connections.remove(connection)
            connection.close()
            return False

    # ---- attacks ----
    def silence(self):
        self.open(registered=False)

    def noise(self):
        if self.connections:
            for _ in range(20):
                if not self.send(self.random.choice(self.connections), self.message()):
                    break

    def garbage(self):
        if self.connections:
            self.send(self.random.choice(self.connections), self.random.randbytes(self.random.randrange(1, 600)))

    def flood(self):
        """As fast as it goes, and nothing is read."""
        if not self.connections:
            return
        connection = self.random.choice(self.connections)
        kind = self.random.choice(["Import", "ArenaRequest", "AskHeadroom", "ReqLock", "MemUpdate"])
        for i in range(2000):
            fields = {"request": i + 1}
            if kind == "Import":
                fields["exporter"] = self.random.randrange(64)
            if kind == "ArenaRequest":
                fields["total"] = (2 << 20) * (i + 1)
            if kind == "AskHeadroom":
                fields["bytes"] = 1 << self.random.randrange(50)
            if kind == "MemUpdate":
                fields |= {"memory_allocated": 1 << 49, "memory_resident": 1 << 49, "memory_unswappable": 1 << 49, "wanted": 1 << 49}
            if not self.send(connection, protocol.encode(kind, **fields)):
                break

    def descriptors(self):
        """More than a message may carry, where it may carry none."""
        if not self.connections:
            return
        fd = os.open("/dev/null", os.O_RDONLY)
        self.send(self.random.choice(self.connections), self.message(), [fd] * self.random.randrange(1, 30))
        os.close(fd)

    def segments(self):
        if not self.connections:
            return
        connection = self.random.choice(self.connections)
        self.send(connection, protocol.encode("ArenaRequest", request=1, total=1 << 30, urgent=1, owner=self.random.randrange(2)))
        for segment in range(1, 20):
            self.send(connection, protocol.encode("ArenaHeld", segment=segment, bytes=2 << 20))
            self.send(connection, protocol.encode("ArenaReturned", segment=segment))

    def read(self):
        for connection in list(self.connections):
            try:
                for _ in range(10):
                    if not connection.recv(1024):
                        raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                self.connections.remove(connection)
                connection.close()

    def leave(self):
        while self.connections and self.random.random() < 0.9:
            self.connections.pop().close()

    def run(self, until):
        attacks = [self.open] * 6 + [self.silence] * 3 + [self.noise] * 8 + [self.garbage, self.flood, self.flood, self.descriptors] + [
            self.segments, self.read, self.read, self.leave]
        while time.monotonic() < until:
            self.random.choice(attacks)()
            time.sleep(self.pending)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--gpus", default="1", help="numbers of the GPUs that it names, such as 1,2,3")
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between two attacks")
    arguments = parser.parse_args()
    hostile = Hostile(arguments.socket, arguments.seed, [int(gpu) for gpu in arguments.gpus.split(",")])
    hostile.pending = arguments.pause
    hostile.run(time.monotonic() + arguments.seconds)


if __name__ == "__main__":
    main()
