#!/usr/bin/env python3
"""CuPy: its memory pool, element-wise kernels and a raw kernel by NVRTC, cuBLAS, cuFFT, cuSOLVER, and callbacks on streams that call Python."""
import work

try:
    import cupy
except ImportError as error:
    work.skip(f"no CuPy: {error}")

MULTIPLIER = 6364136223846793005
OWN_BYTES = 512 << 20  # about what the work needs; the same in every run, else their checksums could not be compared
SOURCE = r"""
extern "C" __global__ void stir(unsigned long long* data, unsigned long long words, unsigned long long round) {
  for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words; i += (unsigned long long)gridDim.x * blockDim.x) {
    unsigned long long z = data[i] + (round + 1) * 0x9e3779b97f4a7c15ull;
    data[i] = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9ull;
  }
}
"""


class Cupy:
    def __init__(self, args):
        self.args = args
        self.stir = cupy.RawKernel(SOURCE, "stir")
        self.matrix = cupy.sin(cupy.arange(1536 * 1536, dtype=cupy.float32) * 0.7 + args.seed).reshape(1536, 1536) / 40
        self.signal = cupy.cos(cupy.arange(64 * 8192, dtype=cupy.float32) * 0.3 + args.seed).reshape(64, 8192)
        self.sums = cupy.zeros(4, dtype=cupy.float64)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.heard = 0
        self.pieces = []

    def hear(self, i):
        """Called in the driver's thread."""
        self.heard = (self.heard * 31 + i) & work.MASK

    def fill(self):
        for size in work.pieces_of(max(0, self.args.held - OWN_BYTES)):
            self.pieces.append(cupy.arange(size // 8, dtype=cupy.uint64))
            self.pieces[-1] *= cupy.uint64(MULTIPLIER)

    def unit(self, i):
        self.matrix = cupy.tanh(self.matrix @ self.matrix + 0.01)
        spectrum = cupy.fft.rfft(self.signal)
        self.sums[0] += cupy.abs(spectrum).sum(dtype=cupy.float64)
        self.signal = cupy.fft.irfft(spectrum, n=8192).astype(cupy.float32) * cupy.float32(0.999)
        if i % 4 == 0:
            small = self.matrix[:256, :256].astype(cupy.float64)
            positive = small @ small.T + cupy.eye(256) * 256
            self.sums[1] += cupy.linalg.cholesky(positive).trace()
            self.sums[2] += cupy.linalg.eigvalsh(positive).sum()
        self.sums[3] += cupy.sort(self.signal.ravel())[::1000].sum(dtype=cupy.float64)
        for piece in self.pieces:
            self.stir((1024,), (256,), (piece, cupy.uint64(piece.size), cupy.uint64(i)))
        ready = cupy.cuda.get_current_stream().record()
        self.stream.wait_event(ready)
        self.stream.launch_host_func(self.hear, i)
        self.stream.add_callback(lambda stream, status, argument: self.hear(argument), i + 1)

    def settle(self):
        cupy.cuda.get_current_stream().synchronize()
        self.stream.synchronize()

    def held(self):
        return cupy.get_default_memory_pool().total_bytes()

    def checksum(self):
        total = self.heard
        for tensor in (self.matrix, self.signal, self.sums, *self.pieces):
            words = cupy.ascontiguousarray(tensor).ravel().view(cupy.uint64)
            for begin in range(0, words.size, 4 << 20):
                chunk = words[begin:begin + (4 << 20)]
                salts = cupy.arange(chunk.size, dtype=cupy.uint64) * cupy.uint64(MULTIPLIER) | cupy.uint64(1)
                mixed = (chunk + cupy.uint64(begin)) * salts
                total = (total * 31 + int((mixed ^ (mixed >> cupy.uint64(29))).sum(dtype=cupy.uint64))) & work.MASK
        return f"{total:016x}"

    def value(self):
        return float(self.sums.sum())


if __name__ == "__main__":
    work.run(Cupy(work.parse(__doc__)))
