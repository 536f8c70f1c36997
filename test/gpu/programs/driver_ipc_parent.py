#!/usr/bin/env python3
"""A parent without a context that makes memory and hands it to two children as descriptors, as launchers of inference servers do. The children
work on it in turns, and each on memory of its own."""
import os
import subprocess
import sys

import work
from driver_work import FULL_ACCESS, Block, DriverProgram, by, i32, load, on_gpu, pointer, size, u64

FILE_DESCRIPTOR = 1
SHARED_BYTES = 16 << 20


class Child(DriverProgram):
    """Maps what it is given, and does what lines on its standard input say."""

    def __init__(self, args, descriptor):
        super().__init__(args)
        handle, address = u64(), u64()
        self.driver.cuMemImportFromShareableHandle(by(handle), pointer(descriptor), FILE_DESCRIPTOR)
        self.driver.cuMemAddressReserve(by(address), size(SHARED_BYTES), size(0), u64(0), u64(0))
        self.driver.cuMemMap(address, size(SHARED_BYTES), size(0), handle, u64(0))
        self.driver.cuMemSetAccess(address, size(SHARED_BYTES), by(FULL_ACCESS), size(1))
        self.shared = Block(address.value, SHARED_BYTES // 8)
        for i, piece in enumerate(work.pieces_of(args.held, smallest=4 << 20)):
            self.blocks.append(self.plain(piece))
            self.start(self.blocks[-1], args.seed + i)
        self.settle()

    def serve(self):
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            i = int(number or 0)
            if word == "begin":
                self.start(self.shared, self.args.seed)
            elif word == "unit":
                self.add(self.shared, self.blocks[i % len(self.blocks)])
                self.mix(self.shared, i)
                self.add(self.blocks[(i + 1) % len(self.blocks)], self.shared)
            elif word == "checksum":
                self.blocks.append(self.shared)
                print(self.checksum(), flush=True)
                continue
            self.settle()
            print("done", flush=True)


class Parent:
    def __init__(self, args):
        self.args = args
        driver = load()
        driver.cuInit(0)
        handle, descriptor = u64(), i32()
        driver.cuMemCreate(by(handle), size(SHARED_BYTES), by(on_gpu(FILE_DESCRIPTOR)), u64(0))
        driver.cuMemExportToShareableHandle(by(descriptor), handle, FILE_DESCRIPTOR, u64(0))
        os.set_inheritable(descriptor.value, True)
        half = args.held // 2 // 4096 * 4096
        self.children = []
        for k in range(2):
            words = [sys.executable, os.path.abspath(__file__), "--seed", str(args.seed + 100 * k), "--held", str(half)]
            self.children.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[descriptor.value],
                                                  env={**os.environ, "TEST_DESCRIPTOR": str(descriptor.value)}))
        self.order(0, "begin")
        self.order(1, "unit 0")

    def order(self, k, line):
        child = self.children[k]
        child.stdin.write(line + "\n")
        child.stdin.flush()
        answer = child.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"child {k} ended with {child.wait()}")
        return answer

    def pids(self):
        return [child.pid for child in self.children]

    def unit(self, i):
        for k in range(2):
            self.order(k, f"unit {i}")

    def settle(self):
        pass  # each order waits for the GPU

    def held(self):
        return self.args.held + SHARED_BYTES

    def checksum(self):
        return "+".join(self.order(k, "checksum") for k in range(2))

    def close(self):
        for child in self.children:
            child.stdin.close()
            if child.wait(60) != 0:
                raise RuntimeError(f"a child ended with {child.returncode}")


if __name__ == "__main__":
    given = os.environ.get("TEST_DESCRIPTOR")
    if given is None:
        work.run(Parent(work.parse(__doc__)))
    else:
        Child(work.parse(__doc__), int(given)).serve()
