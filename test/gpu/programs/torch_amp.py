#!/usr/bin/env python3
"""PyTorch training with automatic mixed precision: half with a gradient scaler, then bfloat16, in turn."""
import torch

import work
from torch_work import Perceptron, TorchProgram, states


class Mixed(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        width, depth, batch = (2048, 8, 1024) if self.on_gpu else (64, 2, 8)
        self.model = Perceptron(width, depth).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        settings = {"init_scale": 1024.0, "enabled": self.on_gpu}
        newer = getattr(torch.amp, "GradScaler", None)
        self.scaler = newer("cuda", **settings) if newer else torch.cuda.amp.GradScaler(**settings)
        self.random = torch.Generator(self.device).manual_seed(args.seed)
        self.shape = (batch, width)

    def unit(self, i):
        for kind in (torch.float16, torch.bfloat16) if self.on_gpu else (torch.bfloat16,):
            rows = torch.randn(self.shape, generator=self.random, device=self.device)
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, dtype=kind):
                loss = (self.model(rows) - rows.roll(1, 1)).float().square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.last = loss.detach()
        self.ballast.touch(i)

    def state(self):
        return states(self.model, self.optimizer)


if __name__ == "__main__":
    work.run(Mixed(work.parse(__doc__)))
