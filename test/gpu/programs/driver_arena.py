#!/usr/bin/env python3
"""An arena in the way of RMM's: a pool of the driver's that keeps what is freed, superblocks from it in the order of several streams, of which
pieces are handed out; events order what one stream frees and another takes."""
import ctypes

import work
from driver_work import Block, DriverProgram, Location, by, i32, pointer, size, u64

RELEASE_THRESHOLD = 4
PINNED = 1


class PoolProperties(ctypes.Structure):
    _fields_ = [("kind", i32), ("handle_types", i32), ("location", Location), ("security", pointer), ("most", size),
                ("reserved", ctypes.c_ubyte * 56)]


class Arena(DriverProgram):
    def __init__(self, args):
        super().__init__(args)
        self.pool = pointer()
        self.driver.cuMemPoolCreate(by(self.pool), by(PoolProperties(PINNED, 0, Location(1, 0))))
        self.driver.cuMemPoolSetAttribute(self.pool, RELEASE_THRESHOLD, by(u64(work.MASK)))
        self.streams = [self.new_stream() for _ in range(3)]
        self.event = self.new_event()
        self.superblock_bytes = max(4 << 20, args.held // 16 // 4096 * 4096)
        count = max(3, args.held // self.superblock_bytes)
        for i in range(count):
            self.blocks.append(self.superblock(self.streams[i % 3]))
            self.start(self.blocks[-1], args.seed + i, self.streams[i % 3])

    def superblock(self, stream):
        address = u64()
        self.driver.cuMemAllocFromPoolAsync(by(address), size(self.superblock_bytes), self.pool, stream)
        return Block(address.value, self.superblock_bytes // 8)

    def pieces(self, block):
        """Of half, a quarter, ... of a superblock."""
        words = block.words
        address = block.address.value
        while words >= 4096:
            words //= 2
            yield Block(address, words)
            address += words * 8

    def unit(self, i):
        here = self.streams[i % 3]
        other = self.streams[(i + 1) % 3]
        for each in self.streams:  # all that came before
            self.driver.cuEventRecord(self.event, each)
            self.driver.cuStreamWaitEvent(here, self.event, 0)
        fresh = self.superblock(here)
        self.start(fresh, self.args.seed * 1000 + i, here)
        kept = self.blocks[i % len(self.blocks)]
        for k, piece in enumerate(self.pieces(fresh)):
            self.add(kept, piece, here)
            if k == 4:
                break
        self.mix(kept, i, here)
        # Another stream frees what was there, once this one is done with it; the fresh one takes its place.
        old_place = (i + 2) % len(self.blocks)
        old = self.blocks[old_place]
        self.add(fresh, old, here)
        self.driver.cuEventRecord(self.event, here)
        self.driver.cuStreamWaitEvent(other, self.event, 0)
        self.driver.cuMemFreeAsync(old.address, other)
        self.blocks[old_place] = fresh


if __name__ == "__main__":
    work.run(Arena(work.parse(__doc__)))
