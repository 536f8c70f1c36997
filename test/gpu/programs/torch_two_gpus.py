#!/usr/bin/env python3
"""One PyTorch process on two GPUs, with plain copies between them: a pipeline whose two halves are on different GPUs, a model whose layers are
placed on the GPUs in turn, and two threads of which each changes its GPU with every piece of work."""
import concurrent.futures
import contextlib

import torch
from torch import nn

import work
from torch_work import Ballast, Perceptron, TorchProgram, states

MICRO_BATCHES = 4


class Placed(nn.Module):
    """Layer k is on GPU k % 2, as a placement by layers may come out: each layer's input is copied to its GPU."""

    def __init__(self, width, depth, devices):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width).to(devices[k % len(devices)]) for k in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.device, non_blocking=True)))
        return x


class TwoGpus(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        self.devices = [torch.device("cuda", 0), torch.device("cuda", 1)] if self.on_gpu else [self.device, self.device]
        self.width, depth, self.batch = (2048, 4, 512) if self.on_gpu else (32, 2, 8)
        self.halves = [Perceptron(self.width, depth).to(device) for device in self.devices]
        self.placed = Placed(self.width, 2 * depth, self.devices)
        self.modules = nn.ModuleList([*self.halves, self.placed])
        self.optimizer = torch.optim.SGD(self.modules.parameters(), lr=1e-3, momentum=0.9)
        self.random = torch.Generator(self.devices[0]).manual_seed(args.seed)
        # Each thread has a matrix on each GPU.
        self.matrices = [[torch.eye(1024 if self.on_gpu else 16, device=device) * (0.5 + thread) for device in self.devices] for thread in range(2)]
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.more = []

    def fill(self):
        super().fill()
        self.more = [Ballast(self.args.held - (self.own_bytes if self.on_gpu else 0), device, self.args.seed + 7) for device in self.devices[1:]]

    def on(self, device):
        return torch.cuda.device(device) if self.on_gpu else contextlib.nullcontext()

    def change_devices(self, thread, i):
        for k in range(4):
            here = (thread + i + k) % 2
            with self.on(self.devices[here]):
                own, other = self.matrices[thread][here], self.matrices[thread][1 - here]
                own.copy_(torch.tanh(own @ own * 0.01 + other.to(own.device) * 0.5 + 0.1))
                if self.on_gpu:
                    torch.cuda.current_stream().synchronize()  # the other GPU reads it next

    def unit(self, i):
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.devices[1])
        for _ in range(MICRO_BATCHES):
            rows = torch.randn(self.batch, self.width, generator=self.random, device=self.devices[0])
            halfway = self.halves[0](rows).to(self.devices[1], non_blocking=True)
            out = self.halves[1](halfway)
            loss = loss + (out - rows.to(self.devices[1])).square().mean() + self.placed(rows).to(self.devices[1]).square().mean()
        (loss / MICRO_BATCHES).backward()
        self.optimizer.step()
        self.last = loss.detach()
        self.settle()
        for call in [self.pool.submit(self.change_devices, thread, i) for thread in range(2)]:
            call.result()
        for ballast in (self.ballast, *self.more):
            ballast.touch(i)

    def settle(self):
        if self.on_gpu:
            for device in self.devices:
                torch.cuda.synchronize(device)

    def state(self):
        own = [*states(self.modules, self.optimizer), *(each for matrices in self.matrices for each in matrices)]
        return [*own, *(piece for ballast in self.more for piece in ballast.pieces)]


if __name__ == "__main__":
    work.run(TwoGpus(work.parse(__doc__)))
