#!/usr/bin/env python3
"""Green contexts: two parts of the GPU (or, where it cannot be split, of all of it), each with a stream, memory of its own and work in it; one of
them ends and begins anew every eighth unit."""
import ctypes

import work
from driver_work import STREAM_NON_BLOCKING, DriverProgram, by, pointer, size, u32

MULTIPROCESSORS = 1
DEFAULT_STREAM = 1
RESOURCE_BYTES = 256


class Part:
    def __init__(self, program, description):
        self.handle, self.context, self.stream = pointer(), pointer(), pointer()
        program.driver.cuGreenCtxCreate(by(self.handle), description, 0, DEFAULT_STREAM)
        program.driver.cuCtxFromGreenCtx(by(self.context), self.handle)
        program.driver.cuGreenCtxStreamCreate(by(self.stream), self.handle, STREAM_NON_BLOCKING, 0)

    def end(self, program):
        program.driver.cuStreamSynchronize(self.stream)
        program.driver.cuStreamDestroy_v2(self.stream)
        program.driver.cuGreenCtxDestroy(self.handle)


def descriptions(driver):
    """Of two parts; null means all multiprocessors."""
    both = [pointer(), pointer()]
    whole = ctypes.create_string_buffer(RESOURCE_BYTES)
    part = ctypes.create_string_buffer(RESOURCE_BYTES)
    rest = ctypes.create_string_buffer(RESOURCE_BYTES)
    groups = u32(1)
    try:
        driver.cuDeviceGetDevResource(0, whole, MULTIPROCESSORS)
        driver.cuDevSmResourceSplitByCount(part, by(groups), whole, rest, 0, 16)
        driver.cuDevResourceGenerateDesc(by(both[0]), part, 1)
        driver.cuDevResourceGenerateDesc(by(both[1]), rest, 1)
    except (RuntimeError, AttributeError):
        return [pointer(), pointer()]
    return both


class Green(DriverProgram):
    def __init__(self, args):
        super().__init__(args)
        self.descriptions = descriptions(self.driver)
        try:
            self.parts = [Part(self, each) for each in self.descriptions]
        except (RuntimeError, AttributeError) as error:
            work.skip(f"no green contexts here: {error}")
        for i, piece in enumerate(work.pieces_of(args.held, smallest=4 << 20)):
            # Every other block is allocated with the first part current; that part never ends.
            self.driver.cuCtxSetCurrent(self.parts[0].context if i % 2 else self.context)
            self.blocks.append(self.plain(piece))
            self.start(self.blocks[-1], args.seed + i)
        self.driver.cuCtxSetCurrent(self.context)
        self.settle()

    def unit(self, i):
        if i % 8 == 7:
            self.parts[1].end(self)
            self.parts[1] = Part(self, self.descriptions[1])
        for k, block in enumerate(self.blocks):
            part = self.parts[k % 2]
            if (i + k) % 3 == 0:
                self.driver.cuCtxSetCurrent(part.context)
            self.mix(block, i * 64 + k, part.stream)
            self.driver.cuCtxSetCurrent(self.context)
        self.driver.cuMemcpyDtoHAsync_v2(self.host, self.blocks[0].address, size(8), self.parts[0].stream)
        self.driver.cuStreamSynchronize(self.parts[0].stream)
        self.other_sum = (self.other_sum * 31 + self.host[0]) & work.MASK


if __name__ == "__main__":
    work.run(Green(work.parse(__doc__)))
