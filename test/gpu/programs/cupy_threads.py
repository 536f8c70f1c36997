#!/usr/bin/env python3
"""NVIDIA's libraries, each from several threads at once, every thread with a stream of its own: cuBLAS, cuFFT, cuSOLVER, cuSPARSE, cuRAND, and
NVRTC, which compiles a kernel of another name every few units. All through CuPy; a library that is missing is left out, and named."""
import threading

import work

try:
    import cupy
except ImportError as error:
    work.skip(f"no CuPy: {error}")

THREADS_OF_EACH = 2
OWN_BYTES = 1 << 30
MULTIPLIER = 6364136223846793005


class Lane:
    """One thread's work: unit(i) puts it on the current stream."""

    def __init__(self, seed):
        self.seed = seed
        self.sums = cupy.zeros(1, dtype=cupy.float64)

    def add(self, values):
        self.sums += cupy.abs(values).sum(dtype=cupy.float64)


class Products(Lane):  # cuBLAS and cuBLASLt
    def __init__(self, seed):
        super().__init__(seed)
        self.matrix = cupy.sin(cupy.arange(1024 * 1024, dtype=cupy.float32) * 0.7 + seed).reshape(1024, 1024) / 33

    def unit(self, i):
        self.matrix = cupy.tanh(self.matrix @ self.matrix + cupy.float32(0.01))
        self.add(self.matrix)


class Transforms(Lane):  # cuFFT
    def __init__(self, seed):
        super().__init__(seed)
        self.signal = cupy.cos(cupy.arange(64 * 8192, dtype=cupy.float32) * 0.3 + seed).reshape(64, 8192)

    def unit(self, i):
        spectrum = cupy.fft.rfft(self.signal)
        self.signal = cupy.fft.irfft(spectrum, n=8192).astype(cupy.float32) * cupy.float32(0.999)
        self.add(spectrum)


class Solutions(Lane):  # cuSOLVER
    def unit(self, i):
        a = cupy.sin(cupy.arange(256 * 256, dtype=cupy.float64) * (0.1 + self.seed + i)).reshape(256, 256)
        positive = a @ a.T + cupy.eye(256) * 256
        self.add(cupy.linalg.cholesky(positive))
        self.add(cupy.linalg.solve(positive, a))


class Sparse(Lane):  # cuSPARSE
    def __init__(self, seed):
        super().__init__(seed)
        import cupyx.scipy.sparse
        rows = 1 << 16
        index = cupy.arange(rows * 4)
        values = cupy.cos(index * 0.37 + seed).astype(cupy.float32)
        self.matrix = cupyx.scipy.sparse.csr_matrix((values, (index // 4, (index * 7919) % rows)), shape=(rows, rows))
        self.vector = cupy.ones(rows, dtype=cupy.float32)

    def unit(self, i):
        self.vector = cupy.tanh(self.matrix @ self.vector)
        self.add(self.vector)


class Numbers(Lane):  # cuRAND
    def __init__(self, seed):
        super().__init__(seed)
        self.random = cupy.random.RandomState(seed)

    def unit(self, i):
        self.add(self.random.standard_normal(1 << 20))
        self.add(self.random.random_sample(1 << 20))


class Compiled(Lane):  # NVRTC and module loading
    def __init__(self, seed):
        super().__init__(seed)
        self.data = cupy.arange(1 << 20, dtype=cupy.float64)
        self.kernel = None

    def unit(self, i):
        if i % 4 == 0:
            name = f"stir_{self.seed}_{i}"
            source = f'extern "C" __global__ void {name}(double* x) {{ long i = blockIdx.x * blockDim.x + threadIdx.x; x[i] = x[i] * 0.5 + {i}; }}'
            self.kernel = cupy.RawKernel(source, name)
        self.kernel(((1 << 20) // 256,), (256,), (self.data,))
        self.add(self.data)


class Threads:
    def __init__(self, args):
        self.args = args
        self.lanes, self.streams, self.without = [], [], []
        for kind in (Products, Transforms, Solutions, Sparse, Numbers, Compiled):
            for k in range(THREADS_OF_EACH):
                stream = cupy.cuda.Stream(non_blocking=True)
                try:
                    with stream:
                        lane = kind(args.seed * 100 + k)
                        lane.unit(0)
                    stream.synchronize()
                except (ImportError, OSError, RuntimeError) as error:
                    self.without.append(f"{kind.__name__}: {type(error).__name__}: {str(error)[:100]}")
                    continue
                self.lanes.append(lane)
                self.streams.append(stream)
        if not self.lanes:
            work.skip(f"none of the libraries is there: {self.without}")
        work.say(event="libraries", without=self.without)
        self.pieces = []

    def fill(self):
        for size in work.pieces_of(max(0, self.args.held - OWN_BYTES)):
            self.pieces.append(cupy.arange(size // 8, dtype=cupy.uint64))

    def unit(self, i):
        failed = []

        def go(lane, stream):
            try:
                with stream:
                    lane.unit(i)
            except Exception as error:  # told by the thread that waits
                failed.append(error)

        threads = [threading.Thread(target=go, args=pair) for pair in zip(self.lanes, self.streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        for piece in self.pieces:
            piece *= cupy.uint64(MULTIPLIER)
            piece += cupy.uint64(i)

    def settle(self):
        cupy.cuda.Device().synchronize()

    def held(self):
        return cupy.get_default_memory_pool().total_bytes()

    def checksum(self):
        self.settle()
        total = 0
        for piece in [*(lane.sums for lane in self.lanes), *self.pieces]:
            words = piece.view(cupy.uint64)
            salts = cupy.arange(words.size, dtype=cupy.uint64) * cupy.uint64(MULTIPLIER) | cupy.uint64(1)
            total = (total * 31 + int((words * salts).sum(dtype=cupy.uint64))) & work.MASK
        return f"{total:016x}"

    def value(self):
        return float(sum(float(lane.sums[0]) for lane in self.lanes))


if __name__ == "__main__":
    work.run(Threads(work.parse(__doc__)))
