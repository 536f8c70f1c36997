#!/usr/bin/env python3
"""PyTorch training with CUDA graphs: a whole step, optimizer included, captured once and replayed; a second graph over the ballast."""
import torch

import work
from torch_work import Perceptron, TorchProgram, states


class Graphs(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        width, depth, batch = (1536, 8, 512) if self.on_gpu else (64, 2, 8)
        self.model = Perceptron(width, depth).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, capturable=self.on_gpu)
        self.random = torch.Generator(self.device).manual_seed(args.seed)
        self.rows = torch.zeros(batch, width, device=self.device)
        self.last = torch.zeros((), device=self.device)
        self.step_graph = self.ballast_graph = None

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(self.rows) - self.rows.roll(1, 1)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.last.copy_(loss.detach())

    def captured(self, call):
        """`call` as a graph, after a few rounds on a side stream as PyTorch wants it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph

    def new_rows(self):
        self.rows.copy_(torch.randn(self.rows.shape, generator=self.random, device=self.device))

    def fill(self):
        super().fill()
        if self.on_gpu:
            self.ballast_graph = self.captured(lambda: self.ballast.touch(7))

    def unit(self, i):
        self.new_rows()
        if i == 0 and self.on_gpu:
            self.step_graph = self.captured(self.step)
        for _ in range(4):
            if self.step_graph:
                self.step_graph.replay()
            else:
                self.step()
        if self.ballast_graph:
            self.ballast_graph.replay()

    def state(self):
        return [*states(self.model, self.optimizer), self.last]


if __name__ == "__main__":
    work.run(Graphs(work.parse(__doc__)))
