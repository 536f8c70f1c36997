"""What the programs of this folder that use the driver interface share: calls by ctypes, kernels, memory, checksums. They need no toolkit and no
module of Python's, so they run on the stand-in GPU too."""
import ctypes
import pathlib
import re

import work

KERNELS = pathlib.Path(__file__).resolve().parent.parent / "kernels_ptx.h"
STREAM_NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2
i32, u32, u64, size, pointer = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
by = ctypes.byref


class Driver:
    """The calls of one library object; an error ends the program with the call's name."""

    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def checked(*arguments):
            status = function(*arguments)
            if status != 0:
                raise RuntimeError(f"{name} returned {status}")

        return checked


def load():
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))  # lets other Python threads run during a call
    except OSError as error:
        return work.skip(f"no CUDA driver: {error}")


class Location(ctypes.Structure):
    _fields_ = [("kind", i32), ("id", i32)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [("kind", i32), ("handle_types", i32), ("location", Location), ("meta_data", pointer), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", i32)]


def on_gpu(handle_types=0):
    return AllocationProperties(1, handle_types, Location(1, 0), None)


FULL_ACCESS = Access(Location(1, 0), 3)


class Block:
    """Memory of 64-bit words that begins as sim_fill makes it."""

    def __init__(self, address, words):
        self.address = u64(address)
        self.words = words


KERNEL_NAMES = ("sim_fill", "sim_mix", "sim_add", "sim_checksum")


def kernels(driver):
    """Of the current context."""
    ptx = re.search(r'R"ptx\((.*)\)ptx"', KERNELS.read_text(), re.DOTALL).group(1).encode()
    module = pointer()
    driver.cuModuleLoadData(by(module), ctypes.c_char_p(ptx))
    functions = {name: pointer() for name in KERNEL_NAMES}
    for name, function in functions.items():
        driver.cuModuleGetFunction(by(function), module, name.encode())
    return functions


class DriverProgram:
    """A primary context, kernels and a stream. A program adds unit(); its blocks are what the checksum is of."""

    def __init__(self, args, driver=None):
        self.args = args
        self.driver = driver or load()
        context, stream, host, word = pointer(), pointer(), pointer(), u64()
        self.driver.cuInit(0)
        self.driver.cuDevicePrimaryCtxRetain(by(context), 0)
        self.driver.cuCtxSetCurrent(context)
        self.context = context
        self.functions = kernels(self.driver)
        self.driver.cuStreamCreate(by(stream), STREAM_NON_BLOCKING)
        self.stream = stream
        self.driver.cuMemHostAlloc(by(host), size(64), 0)
        self.host = ctypes.cast(host, ctypes.POINTER(u64))
        self.driver.cuMemAlloc_v2(by(word), size(4096))
        self.driver.cuMemsetD8_v2(word, ctypes.c_ubyte(0), size(4096))
        self.word = word
        self.blocks = []
        self.other_sum = 0  # what the program saw on the host

    def new_stream(self):
        stream = pointer()
        self.driver.cuStreamCreate(by(stream), STREAM_NON_BLOCKING)
        return stream

    def new_event(self):
        event = pointer()
        self.driver.cuEventCreate(by(event), EVENT_DISABLE_TIMING)
        return event

    def plain(self, size_bytes):
        address = u64()
        self.driver.cuMemAlloc_v2(by(address), size(size_bytes))
        return Block(address.value, size_bytes // 8)

    def launch(self, name, words, *arguments, stream=None, way=None):
        held = (pointer * len(arguments))(*(ctypes.cast(by(a), pointer) for a in arguments))
        groups = max(1, min(2048, words // 256))
        (way or self.driver).cuLaunchKernel(self.functions[name], groups, 1, 1, 256, 1, 1, 0, stream or self.stream, held, None)

    def start(self, block, seed, stream=None):
        self.launch("sim_fill", block.words, block.address, u64(block.words), u64(seed & work.MASK), stream=stream)

    def mix(self, block, round_, stream=None):
        self.launch("sim_mix", block.words, block.address, u64(block.words), u64(round_ & work.MASK), stream=stream)

    def add(self, block, other, stream=None):
        """block += other, as far as both reach."""
        words = min(block.words, other.words)
        self.launch("sim_add", words, block.address, other.address, u64(words), stream=stream)

    def settle(self):
        self.driver.cuCtxSynchronize()

    def held(self):
        return sum(block.words * 8 for block in self.blocks)

    def sum_of(self, block):
        self.driver.cuMemsetD8Async(self.word, ctypes.c_ubyte(0), size(8), self.stream)
        self.launch("sim_checksum", block.words, block.address, u64(block.words), self.word)
        self.driver.cuMemcpyDtoHAsync_v2(self.host, self.word, size(8), self.stream)
        self.driver.cuStreamSynchronize(self.stream)
        return self.host[0]

    def checksum(self):
        self.settle()
        total = 0
        for block in self.blocks:
            total = (total * 31 + self.sum_of(block)) & work.MASK
        return f"{total:016x}-{self.other_sum:016x}"
