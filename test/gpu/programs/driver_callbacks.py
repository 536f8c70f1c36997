#!/usr/bin/env python3
"""Host callbacks that need the interpreter's lock, in the way of Numba: cuLaunchHostFunc and cuStreamAddCallback call Python functions from the
driver's thread, between kernels and copies whose data they change. Half of the submissions keep the interpreter's lock while they are in the
driver (ctypes.PyDLL), so that a submission that waits for its turn keeps callbacks of earlier work from ending.

Through the driver interface by ctypes alone, so it runs on the stand-in GPU too.
"""
import ctypes

import work
from driver_work import Driver, DriverProgram, pointer, u64

HOST_FUNCTION = ctypes.CFUNCTYPE(None, pointer)
STREAM_CALLBACK = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int, pointer)


class Callbacks(DriverProgram):
    def __init__(self, args):
        super().__init__(args)
        self.locked = Driver(ctypes.PyDLL("libcuda.so.1"))  # keeps the interpreter's lock
        self.called = 0
        self.host_sum = args.seed
        self.on_host_function = HOST_FUNCTION(self.host_function)
        self.on_callback = STREAM_CALLBACK(lambda stream, status, data: self.host_function(data))
        for i, piece in enumerate(work.pieces_of(args.held)):
            self.blocks.append(self.plain(piece))
            self.start(self.blocks[-1], args.seed + (i << 32))

    def host_function(self, _):
        """In the driver's thread: what the GPU copied out decides what it gets back."""
        self.host_sum = (self.host_sum * 31 + self.host[0] + 1) & work.MASK
        self.host[0] = self.host_sum
        self.called += 1

    def unit(self, i):
        for k, block in enumerate(self.blocks):
            way = self.locked if (i + k) % 2 else self.driver
            self.launch("sim_mix", block.words, block.address, u64(block.words), u64(i * 64 + k), way=way)
            way.cuMemcpyDtoHAsync_v2(self.host, block.address, ctypes.c_size_t(8), self.stream)
            if k % 2:
                way.cuLaunchHostFunc(self.stream, self.on_host_function, None)
            else:
                way.cuStreamAddCallback(self.stream, self.on_callback, None, 0)
            way.cuMemcpyHtoDAsync_v2(self.word, self.host, ctypes.c_size_t(8), self.stream)
            self.launch("sim_add", 1, block.address, self.word, u64(1), way=way)

    def settle(self):
        self.driver.cuStreamSynchronize(self.stream)

    def checksum(self):
        heard = f"{self.host_sum:016x}-{self.called}"  # the checksums use the same place
        return f"{super().checksum()}-{heard}"


if __name__ == "__main__":
    work.run(Callbacks(work.parse(__doc__)))
