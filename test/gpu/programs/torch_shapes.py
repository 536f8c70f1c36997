#!/usr/bin/env python3
"""PyTorch with tensors of ever other sizes that live for a while: what an allocator has to do. run.py starts it with the caching allocator,
with backend:cudaMallocAsync and with expandable_segments:True."""
import random

import torch

import work
from torch_work import Perceptron, TorchProgram, states

ALIVE_MAX = 24


class Shapes(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        self.width, depth = (1024, 6) if self.on_gpu else (64, 2)
        self.model = Perceptron(self.width, depth).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.random = random.Random(args.seed)
        self.on_device = torch.Generator(self.device).manual_seed(args.seed)
        self.alive = []
        self.sum = torch.zeros((), dtype=torch.int64, device=self.device)

    def train(self):
        rows = torch.randn(self.random.randint(16, 1500), self.width, generator=self.on_device, device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(rows) - rows.roll(1, 1)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.last = loss.detach()

    def churn(self, i):
        """One tensor comes, an old one goes; what the old one held goes into the sum."""
        largest = 26 if self.on_gpu else 12
        size = int(2 ** self.random.uniform(6, largest)) // 8 * 8
        self.alive.append(torch.full((size // 8,), i, dtype=torch.int64, device=self.device).cumsum(0))
        for tensor in self.alive:
            tensor.add_(1)
        if len(self.alive) > ALIVE_MAX:
            self.sum += self.alive.pop(self.random.randrange(ALIVE_MAX)).sum()

    def unit(self, i):
        self.train()
        for _ in range(4):
            self.churn(i)
        if self.on_gpu and i % 25 == 24:
            torch.cuda.empty_cache()
        self.ballast.touch(i)

    def state(self):
        return [*states(self.model, self.optimizer), self.sum, *self.alive]


if __name__ == "__main__":
    work.run(Shapes(work.parse(__doc__)))
