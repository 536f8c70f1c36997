#!/usr/bin/env python3
"""Triton without torch.compile: kernels of the program's own, compiled and loaded as modules in mid-run, with another constant every few units."""
import torch

import work
from torch_work import MULTIPLIER, TorchProgram

try:
    import triton
    import triton.language as tl
except ImportError as error:
    work.skip(f"no Triton: {error}")


@triton.jit
def stir(data, words, round_, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < words
    value = tl.load(data + at, mask=inside) + round_
    tl.store(data + at, (value ^ (value >> SHIFT)) * 31 + at, mask=inside)


@triton.jit
def soft(to, source, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * width + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < width
    row = tl.load(source + at, mask=inside, other=-float("inf"))
    row = tl.exp(row - tl.max(row, axis=0))
    tl.store(to + at, row / tl.sum(row, axis=0), mask=inside)


class Triton(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        if not self.on_gpu:
            work.skip("Triton needs a GPU")
        self.words = torch.arange(16 << 20, dtype=torch.int64, device=self.device) * MULTIPLIER
        self.rows = torch.sin(torch.arange(4096 * 1000, dtype=torch.float32, device=self.device) + args.seed).reshape(4096, 1000)
        self.result = torch.empty_like(self.rows)

    def unit(self, i):
        count = self.words.numel()
        stir[(triton.cdiv(count, 1024),)](self.words, count, i, SHIFT=5 + i // 4 % 8, BLOCK=1024)
        soft[(self.rows.shape[0],)](self.result, self.rows, self.rows.shape[1], BLOCK=1024)
        self.rows = self.rows + self.result
        self.last = self.result.sum()
        self.ballast.touch(i)

    def state(self):
        return [self.words, self.rows]


if __name__ == "__main__":
    work.run(Triton(work.parse(__doc__)))
