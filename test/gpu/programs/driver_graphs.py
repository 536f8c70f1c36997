#!/usr/bin/env python3
"""Graphs built by hand: nodes that copy, fill and run kernels are made before the program's first turn, on memory that nobody has written, and
changed in each unit to other addresses, wherever those are by then. Every tenth unit a graph is built anew."""
import ctypes

import work
from driver_work import Block, DriverProgram, by, i32, pointer, size, u32, u64

DEVICE_MEMORY = 2
PIECE_BYTES = 1 << 20


class Copy3D(ctypes.Structure):
    _fields_ = [("src_x", size), ("src_y", size), ("src_z", size), ("src_lod", size), ("src_type", i32), ("src_host", pointer),
                ("src_device", u64), ("src_array", pointer), ("reserved0", pointer), ("src_pitch", size), ("src_height", size),
                ("dst_x", size), ("dst_y", size), ("dst_z", size), ("dst_lod", size), ("dst_type", i32), ("dst_host", pointer),
                ("dst_device", u64), ("dst_array", pointer), ("reserved1", pointer), ("dst_pitch", size), ("dst_height", size),
                ("width", size), ("height", size), ("depth", size)]


class Fill(ctypes.Structure):
    _fields_ = [("target", u64), ("pitch", size), ("value", u32), ("element", u32), ("width", size), ("height", size)]


class Kernel(ctypes.Structure):
    _fields_ = [("function", pointer), ("grid", u32 * 3), ("block", u32 * 3), ("shared", u32), ("arguments", ctypes.POINTER(pointer)),
                ("extra", ctypes.POINTER(pointer))]


def copy_of(target, source):
    return Copy3D(src_type=DEVICE_MEMORY, src_device=source, src_pitch=PIECE_BYTES, src_height=1, dst_type=DEVICE_MEMORY, dst_device=target,
                  dst_pitch=PIECE_BYTES, dst_height=1, width=PIECE_BYTES, height=1, depth=1)


def fill_of(target, value):
    return Fill(target, 0, value, 4, 1024, 1)


class Graphs(DriverProgram):
    def __init__(self, args):
        super().__init__(args)
        sizes = [piece for piece in work.pieces_of(args.held, smallest=4 << 20) if piece >= 2 * PIECE_BYTES]
        self.blocks = [self.plain(piece) for piece in sizes]
        self.kept = []  # what the kernel's node points to
        self.graph = self.executable = None
        self.nodes = [pointer(), pointer(), pointer()]
        self.build(0)
        for i, block in enumerate(self.blocks):
            self.start(block, args.seed + (i << 32))

    def kernel_of(self, block, i):
        values = (u64(block.address.value), u64(block.words), u64(i))
        arguments = (pointer * 3)(*(ctypes.cast(by(v), pointer) for v in values))
        self.kept = [values, arguments]
        groups = max(1, min(2048, block.words // 256))
        return Kernel(self.functions["sim_mix"], (u32 * 3)(groups, 1, 1), (u32 * 3)(256, 1, 1), 0, arguments, None)

    def parts(self, i):
        count = len(self.blocks)
        target, source, mixed = (self.blocks[(i + k) % count] for k in (0, 1, 2))
        half = target.words * 8 // 2 // 512 * 512
        return (copy_of(target.address.value + half, source.address.value), fill_of(source.address.value + 4096 * (i % 16), i),
                self.kernel_of(Block(mixed.address.value, mixed.words), i))

    def build(self, i):
        if self.graph is not None:
            self.driver.cuStreamSynchronize(self.stream)
            self.driver.cuGraphExecDestroy(self.executable)
            self.driver.cuGraphDestroy(self.graph)
        self.graph, self.executable = pointer(), pointer()
        copy, fill, kernel = self.parts(i)
        copies, fills, kernels = self.nodes
        self.driver.cuGraphCreate(by(self.graph), 0)
        self.driver.cuGraphAddMemcpyNode(by(copies), self.graph, None, size(0), by(copy), self.context)
        self.driver.cuGraphAddMemsetNode(by(fills), self.graph, by(copies), size(1), by(fill), self.context)
        self.driver.cuGraphAddKernelNode(by(kernels), self.graph, by(fills), size(1), by(kernel))
        self.driver.cuGraphInstantiateWithFlags(by(self.executable), self.graph, u64(0))

    def unit(self, i):
        if i % 10 == 9:
            self.build(i)
        else:
            copy, fill, kernel = self.parts(i)
            self.driver.cuGraphExecMemcpyNodeSetParams(self.executable, self.nodes[0], by(copy), self.context)
            self.driver.cuGraphExecMemsetNodeSetParams(self.executable, self.nodes[1], by(fill), self.context)
            self.driver.cuGraphExecKernelNodeSetParams(self.executable, self.nodes[2], by(kernel))
        self.driver.cuGraphLaunch(self.executable, self.stream)


if __name__ == "__main__":
    work.run(Graphs(work.parse(__doc__)))
