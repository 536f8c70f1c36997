#!/usr/bin/env python3
"""Contexts in the way of PyCUDA's: one of the program's own with all its memory, attached to and detached from around every unit, and one more
every fourth unit, which ends by the last cuCtxDetach with the memory that was left in it."""
import ctypes

import work
from driver_work import DriverProgram, by, kernels, pointer, size


class Lane:
    """A context of its own, current from here on, with a stream and the kernels."""

    def __init__(self, program):
        self.context = pointer()
        program.driver.cuCtxCreate_v2(by(self.context), 0, 0)
        self.functions = kernels(program.driver)
        self.stream = program.new_stream()


class Attaching(DriverProgram):
    def __init__(self, args):
        super().__init__(args)
        self.first = Lane(self)
        self.enter(self.first)
        self.word = self.plain(4096).address
        self.driver.cuMemsetD8_v2(self.word, ctypes.c_ubyte(0), size(4096))
        for i, piece in enumerate(work.pieces_of(args.held, smallest=4 << 20)):
            self.blocks.append(self.plain(piece))
            self.start(self.blocks[-1], args.seed + i)
        self.settle()

    def enter(self, lane):
        self.driver.cuCtxSetCurrent(lane.context)
        self.functions, self.stream = lane.functions, lane.stream

    def visit(self, i):
        """Another context takes some of the first one's bytes, changes them, and gives them back."""
        block = self.blocks[i % len(self.blocks)]
        words = min(block.words, 1 << 19)
        self.settle()
        other = Lane(self)
        self.enter(other)
        guest = self.plain(words * 8)
        self.driver.cuMemcpyDtoD_v2(guest.address, block.address, size(words * 8))
        self.settle()  # the copy is in the default stream's order, which our streams do not wait for
        self.mix(guest, i)
        self.settle()
        self.driver.cuMemcpyDtoH_v2(self.host, guest.address, size(64))
        self.other_sum = (self.other_sum * 31 + sum(self.host[k] for k in range(8))) & work.MASK
        self.driver.cuMemcpyDtoD_v2(block.address, guest.address, size(words * 8))
        self.settle()
        self.driver.cuCtxDetach(other.context)
        self.enter(self.first)

    def unit(self, i):
        again = pointer()
        self.driver.cuCtxAttach(by(again), 0)
        if again.value != self.first.context.value:
            raise RuntimeError("cuCtxAttach gave another context than the current one")
        for k, block in enumerate(self.blocks):
            self.mix(block, i * 64 + k)
        self.driver.cuCtxDetach(again)
        if i % 4 == 1:
            self.visit(i)
        version = ctypes.c_uint()
        self.driver.cuCtxGetApiVersion(self.first.context, by(version))
        self.driver.cuMemcpyDtoHAsync_v2(self.host, self.blocks[-1].address, size(8), self.stream)
        self.driver.cuStreamSynchronize(self.stream)
        self.other_sum = (self.other_sum * 31 + self.host[0]) & work.MASK

    def close(self):
        self.driver.cuCtxDetach(self.first.context)


if __name__ == "__main__":
    work.run(Attaching(work.parse(__doc__)))
