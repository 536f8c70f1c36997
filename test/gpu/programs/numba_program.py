#!/usr/bin/env python3
"""Numba: kernels compiled from Python, arrays on the GPU, and stream callbacks, which need the interpreter's lock."""
import work

try:
    import numpy
    from numba import cuda
    if not cuda.is_available():
        work.skip("Numba sees no GPU")
except ImportError as error:
    work.skip(f"no Numba for CUDA: {error}")

MULTIPLIER = 6364136223846793005


@cuda.jit
def start(data, seed):
    for i in range(cuda.grid(1), data.size, cuda.gridsize(1)):
        data[i] = numpy.uint64(i) * numpy.uint64(MULTIPLIER) + seed


@cuda.jit
def stir(data, round_):
    for i in range(cuda.grid(1), data.size, cuda.gridsize(1)):
        z = data[i] + round_
        data[i] = (z ^ (z >> numpy.uint64(29))) * numpy.uint64(MULTIPLIER)


@cuda.jit
def add_up(data, sums):
    total = numpy.uint64(0)
    for i in range(cuda.grid(1), data.size, cuda.gridsize(1)):
        z = (data[i] ^ numpy.uint64(i)) * numpy.uint64(MULTIPLIER)
        total += z ^ (z >> numpy.uint64(31))
    cuda.atomic.add(sums, 0, total)


class Numba:
    def __init__(self, args):
        self.stream = cuda.stream()
        self.pieces = []
        self.heard = 0
        try:
            for i, size in enumerate(work.pieces_of(args.held, smallest=8 << 20)):
                piece = cuda.device_array(size // 8, dtype=numpy.uint64)
                start[512, 256](piece, numpy.uint64(args.seed * 1000 + i))
                self.pieces.append(piece)
            cuda.synchronize()
        except Exception as error:  # a compiler that is missing shows in many ways
            work.skip(f"Numba cannot compile for this GPU: {type(error).__name__}: {error}"[:300])

    def hear(self, stream, status, i):
        self.heard = (self.heard * 31 + i) & work.MASK

    def unit(self, i):
        for piece in self.pieces:
            stir[512, 256, self.stream](piece, numpy.uint64(i + 1))
        self.stream.add_callback(self.hear, i)

    def settle(self):
        self.stream.synchronize()

    def held(self):
        return sum(piece.size * 8 for piece in self.pieces)

    def checksum(self):
        total = self.heard
        for piece in self.pieces:
            sums = cuda.to_device(numpy.zeros(1, dtype=numpy.uint64))
            add_up[512, 256](piece, sums)
            total = (total * 31 + int(sums.copy_to_host()[0])) & work.MASK
        return f"{total:016x}"


if __name__ == "__main__":
    work.run(Numba(work.parse(__doc__)))
