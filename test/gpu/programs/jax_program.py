#!/usr/bin/env python3
"""JAX: training steps compiled by XLA. --preallocate 1: XLA takes its whole pool at the start, --held of it; 0: its pool grows on demand.
--allocator: XLA's own pool (default), the driver's stream-ordered one (cuda_async), or none at all (platform).
TensorFlow's allocator is the same one of XLA's family, so this stands for its two ways as well."""
import argparse
import ctypes
import importlib.metadata
import os
import sys

import work


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preallocate", type=int, default=1)
    parser.add_argument("--allocator", default="default", choices=("default", "cuda_async", "platform"))
    known, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    args = work.parse(__doc__)
    args.preallocate = known.preallocate
    args.allocator = known.allocator
    return args


def share_variable():
    """Newer versions refuse to see both names, and the oldest know only the second."""
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        work.skip("no JAX")
    return "XLA_CLIENT_MEM_FRACTION" if tuple(map(int, version.split(".")[:2])) >= (0, 5) else "XLA_PYTHON_CLIENT_MEM_FRACTION"


def device_total():
    """The GPU's size as this program sees it: XLA sets aside a share of that."""
    driver = ctypes.CDLL("libcuda.so.1")
    total = ctypes.c_size_t()
    if driver.cuInit(0) != 0 or driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0) != 0:
        work.skip("the CUDA driver does not start")
    return total.value


ARGS = parse()
if ARGS.device == "cuda":
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if ARGS.preallocate else "false"
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = ARGS.allocator
    os.environ[share_variable()] = f"{min(0.95, (ARGS.held + (256 << 20)) / device_total()):.5f}"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"

try:
    import jax
    import jax.numpy as jnp
    import numpy
except ImportError as error:
    work.skip(f"no JAX: {error}")

WIDTH, DEPTH, BATCH = 1536, 6, 512


@jax.jit
def step(weights, moments, key):
    rows = jax.random.normal(key, (BATCH, WIDTH))

    def loss_of(layers):
        x = rows
        for layer in layers:
            x = jax.nn.gelu(x @ layer) + x * 0.5
        return jnp.mean((x - jnp.roll(rows, 1, 1)) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    moments = jax.tree.map(lambda m, g: m * 0.9 + g, moments, gradients)
    return jax.tree.map(lambda w, m: w - 1e-3 * m, weights, moments), moments, loss


def stir_one(piece, i):
    z = piece + (i + 1) * jnp.uint32(0x9E3779B9)
    return (z ^ (z >> 15)) * jnp.uint32(0x85EBCA6B)


stir = jax.jit(stir_one, donate_argnums=0)  # in place: else there would be two of each


@jax.jit
def digest(words):
    places = jnp.arange(words.size, dtype=jnp.uint32)
    mixed = (words + places) * (places * jnp.uint32(0x85EBCA6B) | jnp.uint32(1))
    return jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32), jnp.sum((mixed >> 7) * jnp.uint32(0xC2B2AE35), dtype=jnp.uint32)


class Jax:
    def __init__(self, args):
        self.args = args
        if args.device == "cuda" and jax.devices()[0].platform not in ("gpu", "cuda"):
            work.skip("JAX sees no GPU")
        self.key = jax.random.PRNGKey(args.seed)
        keys = jax.random.split(self.key, DEPTH)
        self.weights = [jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH ** 0.5 for k in keys]
        self.moments = [jnp.zeros_like(w) for w in self.weights]
        self.loss = jnp.zeros(())
        self.pieces = []

    def fill(self):
        """Most of the pool; XLA needs the rest for the steps' own buffers."""
        room = int(self.args.held * 0.8) - (256 << 20) if self.args.device == "cuda" else 1 << 20
        for size in work.pieces_of(room, smallest=32 << 20):  # few shapes: each is compiled anew
            self.pieces.append(jnp.arange(size // 4, dtype=jnp.uint32))

    def unit(self, i):
        for k in range(3):
            self.weights, self.moments, self.loss = step(self.weights, self.moments, jax.random.fold_in(self.key, i * 3 + k))
        self.pieces = [stir(piece, jnp.uint32(i)) for piece in self.pieces]

    def settle(self):
        jax.block_until_ready((self.weights, self.loss, self.pieces))

    def held(self):
        figures = jax.devices()[0].memory_stats() or {}
        return figures.get("pool_bytes") or figures.get("bytes_reserved") or figures.get("peak_bytes_in_use") or 0

    def checksum(self):
        words = [jax.lax.bitcast_convert_type(w, jnp.uint32).ravel() for w in (*self.weights, *self.moments)]
        total = 0
        for array in (*words, *self.pieces):
            for half in digest(array):
                total = (total * 31 + int(numpy.asarray(half))) & work.MASK
        return f"{total:016x}"

    def value(self):
        return float(self.loss)


if __name__ == "__main__":
    work.run(Jax(ARGS))
