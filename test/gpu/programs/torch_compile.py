#!/usr/bin/env python3
"""PyTorch training with torch.compile: kernels that Triton compiles and loads as modules in mid-run."""
import torch

import work
from torch_work import Perceptron, TorchProgram, states


class Compiled(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        width, depth, batch = (1536, 6, 768) if self.on_gpu else (64, 2, 8)
        self.model = Perceptron(width, depth).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.random = torch.Generator(self.device).manual_seed(args.seed)
        self.shape = (batch, width)
        self.forward = self.compiled() if self.on_gpu else self.loss

    def compiled(self):
        """No choice among kernels by timing them: beside neighbours it falls out another way, and sums get another order."""
        import torch._inductor.config as inductor
        inductor.triton.autotune_pointwise = False
        if hasattr(inductor, "deterministic"):
            inductor.deterministic = True
        inductor.compile_threads = 4
        return torch.compile(self.loss)

    def loss(self, rows):
        normal = (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-5)
        return (self.model(torch.tanh(normal) * torch.sigmoid(rows)) - rows.roll(1, 1)).square().mean()

    def unit(self, i):
        for _ in range(3):
            rows = torch.randn(self.shape, generator=self.random, device=self.device)
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.forward(rows)
            loss.backward()
            self.optimizer.step()
            self.last = loss.detach()
        self.ballast.touch(i)

    def state(self):
        return states(self.model, self.optimizer)


if __name__ == "__main__":
    work.run(Compiled(work.parse(__doc__)))
