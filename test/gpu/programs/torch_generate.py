#!/usr/bin/env python3
"""Autoregressive inference: a small GPT-like model makes token after token, its key-value cache growing block by block, then starts anew."""
import torch
from torch import nn

import work
from torch_work import TorchProgram

GROWTH = 64  # tokens


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, cache, position):
        batch, dim = x.shape
        q, k, v = (t.view(batch, self.heads, 1, -1) for t in self.qkv(self.norm1(x)).split(dim, dim=1))
        cache[0][:, :, position:position + 1] = k
        cache[1][:, :, position:position + 1] = v
        keys, values = (half[:, :, :position + 1] for half in cache)
        attended = ((q @ keys.transpose(2, 3)) * (dim // self.heads) ** -0.5).softmax(-1) @ values
        x = x + self.out(attended.reshape(batch, dim))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Generator(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        self.dim, self.heads, self.layers, self.batch, self.length = (1024, 16, 12, 32, 1024) if self.on_gpu else (64, 4, 2, 2, 128)
        kind = torch.bfloat16 if self.on_gpu else torch.float32
        self.model = nn.ModuleList(Layer(self.dim, self.heads) for _ in range(self.layers)).to(self.device, kind)
        self.embedding = torch.randn(4096, self.dim, generator=torch.Generator().manual_seed(args.seed)).to(self.device, kind)
        self.kind = kind
        self.made = torch.zeros((), dtype=torch.int64, device=self.device)
        self.begin(0)

    def begin(self, i):
        self.position = 0
        self.caches = [[self.new_half(GROWTH), self.new_half(GROWTH)] for _ in range(self.layers)]
        self.tokens = (torch.arange(self.batch, device=self.device) * 37 + i + self.args.seed) % 4096

    def new_half(self, length):
        return torch.zeros(self.batch, self.heads, length, self.dim // self.heads, dtype=self.kind, device=self.device)

    def cache_bytes(self):
        return 2 * self.layers * self.batch * self.length * self.dim * self.embedding.element_size()

    def fill(self):
        """Leaves room for the cache at its largest and for the layer that is being copied."""
        self.args.held -= min(self.args.held, self.cache_bytes() + 256 * 2**20)
        super().fill()

    def grow(self):
        for cache in self.caches:
            for side, old in enumerate(cache):
                cache[side] = self.new_half(old.shape[2] + GROWTH)
                cache[side][:, :, :old.shape[2]] = old
                del old
        if self.on_gpu:
            torch.cuda.empty_cache()  # else blocks of every length stay

    @torch.no_grad()
    def token(self, i):
        if self.position == self.length:
            self.begin(i)
        elif self.position == self.caches[0][0].shape[2]:
            self.grow()
        x = self.embedding[self.tokens]
        for layer, cache in zip(self.model, self.caches):
            x = layer(x, cache, self.position)
        self.tokens = (x @ self.embedding.t()).argmax(1)
        self.made = self.made * 31 + self.tokens.sum()
        self.position += 1

    def unit(self, i):
        for _ in range(16):
            self.token(i)
        self.ballast.touch(i)

    def state(self):
        return [self.made, self.tokens, *(half for cache in self.caches for half in cache)]

    def value(self):
        return float(self.tokens.float().mean())


if __name__ == "__main__":
    work.run(Generator(work.parse(__doc__)))
