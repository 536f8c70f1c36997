#!/usr/bin/env python3
"""The way vLLM uses a GPU, for machines without vLLM: it looks at how much memory is free after a trial run, takes a fixed share of it for a
key-value cache of small blocks, captures decoding as CUDA graphs for several batch sizes, and serves from a free list of blocks."""
import torch

import work
from torch_work import TorchProgram

BLOCK_TOKENS = 16
BATCHES = (1, 4, 16)


class Server(TorchProgram):
    def __init__(self, args):
        super().__init__(args, deterministic=False)  # writing to distinct rows is reproducible anyway, and has a quicker way
        self.dim = 1024 if self.on_gpu else 64
        self.kind = torch.bfloat16 if self.on_gpu else torch.float32
        random = torch.Generator(self.device).manual_seed(args.seed)
        self.weights = [torch.randn(self.dim, self.dim, generator=random, device=self.device).to(self.kind) / self.dim ** 0.5 for _ in range(8)]
        self.cache = None
        self.graphs = {}
        self.total = torch.zeros((), dtype=torch.float64, device=self.device)

    def decode(self, x, blocks):
        """One token for each row of x, which reads and writes its blocks of the cache."""
        for weight in self.weights:
            kept = self.cache[blocks]
            x = torch.tanh(x @ weight + kept.mean(1) * 0.25)
            self.cache[blocks] = (kept * 0.5 + x.unsqueeze(1) * 0.5).to(self.kind)
        return x

    def fill(self):
        if self.on_gpu:
            free, _ = torch.cuda.mem_get_info()
            wanted = min(self.args.held, int(free * 0.9)) - (256 << 20)
        else:
            wanted = 1 << 22
        blocks = wanted // (BLOCK_TOKENS * self.dim * self.weights[0].element_size())
        self.cache = torch.zeros(blocks, BLOCK_TOKENS, self.dim, dtype=self.kind, device=self.device)
        self.capture()

    def capture(self):
        for batch in BATCHES:
            x = torch.zeros(batch, self.dim, dtype=self.kind, device=self.device)
            blocks = torch.zeros(batch, dtype=torch.int64, device=self.device)
            graph, out = None, None
            if self.on_gpu:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    self.decode(x, blocks)
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = self.decode(x, blocks)
            self.graphs[batch] = (graph, x, blocks, out)
        self.cache.zero_()
        rows = self.cache.view(-1, self.dim)
        for begin in range(0, rows.shape[0], 1 << 16):
            rows[begin:begin + (1 << 16)] = torch.arange(self.dim, device=self.device).to(self.kind) / self.dim + begin % 7

    def unit(self, i):
        if not self.graphs:  # the trial run, before the cache is there
            x = torch.ones(16, self.dim, dtype=self.kind, device=self.device)
            for weight in self.weights:
                x = torch.tanh(x @ weight)
            return
        for step in range(12):
            batch = BATCHES[(i + step) % len(BATCHES)]
            graph, x, blocks, out = self.graphs[batch]
            # Distinct blocks, all over the cache.
            blocks.copy_((torch.arange(batch, device=self.device) * 7919 + i * 104729 + step * 15485863) % self.cache.shape[0])
            x.fill_(((i + step) % 13) / 13)
            if graph:
                graph.replay()
            else:
                out = self.decode(x, blocks)
            self.total += out.double().sum()
        self.cache.mul_(3.0).sin_()  # stays bounded, and every element depends on all before

    def state(self):
        return [self.total, self.cache]

    def value(self):
        return float(self.total)


if __name__ == "__main__":
    work.run(Server(work.parse(__doc__)))
