#!/usr/bin/env python3
"""A model that is loaded as inference servers do: a file that is mapped into memory, read through two pinned buffers, copied to the GPU while the
next piece is read. Each unit loads a part anew."""
import ctypes
import mmap
import tempfile

import work
from driver_work import DriverProgram, by, pointer, size, u64

STAGING_BYTES = 16 << 20
FILE_BYTES_MAX = 2 << 30


class Mapped(DriverProgram):
    def __init__(self, args):
        super().__init__(args)
        self.file = tempfile.TemporaryFile()
        piece = bytes((k * 37 + args.seed) & 255 for k in range(1 << 16)) * 16  # 1 MiB
        count = max(1, min(args.held // 2, FILE_BYTES_MAX) // len(piece))
        for i in range(count):
            self.file.write(i.to_bytes(8, "little") + piece[8:])
        self.file.flush()
        self.model = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_COPY)  # private, as those who map models do
        self.view = ctypes.addressof(ctypes.c_char.from_buffer(self.model))
        self.staging, self.events, self.used = [], [], [False, False]
        for _ in range(2):
            buffer = pointer()
            self.driver.cuMemHostAlloc(by(buffer), size(STAGING_BYTES), 0)
            self.staging.append(buffer)
            self.events.append(self.new_event())
        weights = self.plain(count * len(piece))
        self.blocks = [weights, *(self.plain(each) for each in work.pieces_of(args.held - weights.words * 8, smallest=4 << 20))]
        for i, block in enumerate(self.blocks[1:]):
            self.start(block, args.seed + i)
        self.load(0, weights.words * 8)

    def load(self, begin, end):
        for turn, at in enumerate(range(begin, end, STAGING_BYTES)):
            which = turn % 2
            part = min(STAGING_BYTES, end - at)
            if self.used[which]:
                self.driver.cuEventSynchronize(self.events[which])
            ctypes.memmove(self.staging[which], self.view + at, part)
            self.driver.cuMemcpyHtoDAsync_v2(u64(self.blocks[0].address.value + at), self.staging[which], size(part), self.stream)
            self.driver.cuEventRecord(self.events[which], self.stream)
            self.used[which] = True

    def unit(self, i):
        total = self.blocks[0].words * 8
        part = min(total, 4 * STAGING_BYTES)
        begin = (i * part) % total
        self.load(begin, min(total, begin + part))
        for k, block in enumerate(self.blocks[1:]):
            self.add(block, self.blocks[0])
            self.mix(block, i * 64 + k)
        self.mix(self.blocks[0], i)


if __name__ == "__main__":
    work.run(Mapped(work.parse(__doc__)))
