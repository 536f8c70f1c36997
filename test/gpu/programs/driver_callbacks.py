#!/usr/bin/env python3
"""Host callbacks that need the interpreter's lock, in the way of Numba: cuLaunchHostFunc and cuStreamAddCallback call Python functions from the
driver's thread, between kernels and copies whose data they change. Half of the submissions keep the interpreter's lock while they are in the
driver (ctypes.PyDLL), so that a submission that waits for its turn keeps callbacks of earlier work from ending.

Through the driver interface by ctypes alone, so it runs on the stand-in GPU too.
"""
import ctypes
import pathlib
import re

import work

KERNELS = pathlib.Path(__file__).resolve().parent.parent / "kernels_ptx.h"
STREAM_NON_BLOCKING = 1
u64, pointer = ctypes.c_uint64, ctypes.c_void_p
HOST_FUNCTION = ctypes.CFUNCTYPE(None, pointer)
STREAM_CALLBACK = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int, pointer)


class Driver:
    """The calls of one library object; an error ends the program with the call's name."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def checked(*arguments):
            status = function(*arguments)
            if status != 0:
                raise RuntimeError(f"{name} returned {status}")

        return checked


class Callbacks:
    def __init__(self, args):
        self.seed = args.seed
        try:
            self.free = Driver(ctypes.CDLL("libcuda.so.1"))     # lets other Python threads run during the call
            self.locked = Driver(ctypes.PyDLL("libcuda.so.1"))  # keeps the interpreter's lock
        except OSError as error:
            work.skip(f"no CUDA driver: {error}")
        context, module, stream, host = pointer(), pointer(), pointer(), pointer()
        self.free.cuInit(0)
        self.free.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.free.cuCtxSetCurrent(context)
        ptx = re.search(r'R"ptx\((.*)\)ptx"', KERNELS.read_text(), re.DOTALL).group(1).encode()
        self.free.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(ptx))
        self.functions = {}
        for name in ("sim_fill", "sim_mix", "sim_add", "sim_checksum"):
            function = pointer()
            self.free.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            self.functions[name] = function
        self.free.cuStreamCreate(ctypes.byref(stream), STREAM_NON_BLOCKING)
        self.stream = stream
        self.free.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(64), 0)
        self.host = ctypes.cast(host, ctypes.POINTER(u64))
        self.called = 0
        self.host_sum = args.seed
        self.on_host_function = HOST_FUNCTION(self.host_function)
        self.on_callback = STREAM_CALLBACK(lambda stream, status, data: self.host_function(data))
        self.blocks = []
        for i, size in enumerate(work.pieces_of(args.held)):
            address = u64()
            self.free.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
            self.blocks.append((address, size // 8))
            self.launch(self.free, "sim_fill", size // 8, address, u64(size // 8), u64(args.seed + (i << 32)))
        self.word = u64()
        self.free.cuMemAlloc_v2(ctypes.byref(self.word), ctypes.c_size_t(4096))
        self.free.cuMemsetD8_v2(self.word, ctypes.c_ubyte(0), ctypes.c_size_t(4096))

    def launch(self, way, name, words, *arguments):
        held = (pointer * len(arguments))(*(ctypes.cast(ctypes.byref(a), pointer) for a in arguments))
        blocks = max(1, min(2048, words // 256))
        way.cuLaunchKernel(self.functions[name], blocks, 1, 1, 256, 1, 1, 0, self.stream, held, None)

    def host_function(self, _):
        """In the driver's thread: what the GPU copied out decides what it gets back."""
        self.host_sum = (self.host_sum * 31 + self.host[0] + 1) & work.MASK
        self.host[0] = self.host_sum
        self.called += 1

    def unit(self, i):
        for k, (address, words) in enumerate(self.blocks):
            way = self.locked if (i + k) % 2 else self.free
            self.launch(way, "sim_mix", words, address, u64(words), u64(i * 64 + k))
            way.cuMemcpyDtoHAsync_v2(self.host, address, ctypes.c_size_t(8), self.stream)
            if k % 2:
                way.cuLaunchHostFunc(self.stream, self.on_host_function, None)
            else:
                way.cuStreamAddCallback(self.stream, self.on_callback, None, 0)
            way.cuMemcpyHtoDAsync_v2(self.word, self.host, ctypes.c_size_t(8), self.stream)
            self.launch(way, "sim_add", 1, address, self.word, u64(1))

    def settle(self):
        self.free.cuStreamSynchronize(self.stream)

    def held(self):
        return sum(words * 8 for _, words in self.blocks)

    def checksum(self):
        total = 0
        for address, words in self.blocks:
            self.free.cuMemsetD8Async(self.word, ctypes.c_ubyte(0), ctypes.c_size_t(8), self.stream)
            self.launch(self.free, "sim_checksum", words, address, u64(words), self.word)
            self.free.cuMemcpyDtoHAsync_v2(self.host, self.word, ctypes.c_size_t(8), self.stream)
            self.settle()
            total = (total * 31 + self.host[0]) & work.MASK
        return f"{total:016x}-{self.host_sum:016x}-{self.called}"


if __name__ == "__main__":
    work.run(Callbacks(work.parse(__doc__)))
