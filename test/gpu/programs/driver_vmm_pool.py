#!/usr/bin/env python3
"""A pool in the way of ggml's: one large reservation of addresses that physical memory is mapped into as it grows, allocations handed out and
taken back as from a stack, and the weights in managed memory, as where a model is larger than the GPU."""
import work
from driver_work import FULL_ACCESS, Block, DriverProgram, by, on_gpu, size, u64

ATTACH_GLOBAL = 1
RESERVED_BYTES = 32 << 30


class Pool:
    def __init__(self, program):
        self.program = program
        self.base, granularity = u64(), size()
        driver = program.driver
        driver.cuMemGetAllocationGranularity(by(granularity), by(on_gpu()), 0)
        driver.cuMemAddressReserve(by(self.base), size(RESERVED_BYTES), size(0), u64(0), u64(0))
        self.granularity = granularity.value
        self.mapped = self.used = 0

    def take(self, size_bytes):
        need = self.used + size_bytes - self.mapped
        if need > 0:
            grown = -(-need // self.granularity) * self.granularity
            handle = u64()
            driver = self.program.driver
            driver.cuMemCreate(by(handle), size(grown), by(on_gpu()), u64(0))
            driver.cuMemMap(u64(self.base.value + self.mapped), size(grown), size(0), handle, u64(0))
            driver.cuMemRelease(handle)  # the mapping keeps it
            driver.cuMemSetAccess(u64(self.base.value + self.mapped), size(grown), by(FULL_ACCESS), size(1))
            self.mapped += grown
        block = Block(self.base.value + self.used, size_bytes // 8)
        self.used += size_bytes
        return block

    def give_back(self, block):
        self.used -= block.words * 8


class VmmPool(DriverProgram):
    def __init__(self, args):
        super().__init__(args)
        weights = u64()
        weight_bytes = args.held // 8 // 4096 * 4096
        self.driver.cuMemAllocManaged(by(weights), size(weight_bytes), ATTACH_GLOBAL)
        self.weights = Block(weights.value, weight_bytes // 8)
        self.start(self.weights, args.seed)
        self.pool = Pool(self)
        self.cache = [self.pool.take(piece) for piece in work.pieces_of(args.held * 3 // 4, smallest=4 << 20)]
        for i, block in enumerate(self.cache):
            self.start(block, args.seed + i + 1)
        self.scratch_bytes = args.held // 8 // 4096 * 4096
        self.blocks = [self.weights, *self.cache]

    def unit(self, i):
        # Activations: three on the stack, of which the last has another size in each unit.
        sizes = [self.scratch_bytes // 2, self.scratch_bytes // 4, self.scratch_bytes // 32 * (1 + i % 7)]
        stack = [self.pool.take(each // 512 * 512) for each in sizes]
        for k, block in enumerate(stack):
            self.start(block, i * 8 + k)
            self.add(block, self.weights)
        cached = self.cache[i % len(self.cache)]
        self.add(cached, stack[0])
        self.mix(cached, i)
        self.add(self.weights, stack[2])
        for block in reversed(stack):
            self.pool.give_back(block)

    def held(self):
        return self.pool.mapped + self.weights.words * 8


if __name__ == "__main__":
    work.run(VmmPool(work.parse(__doc__)))
