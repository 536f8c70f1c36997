#!/usr/bin/env python3
"""PyTorch training fed by a pinned DataLoader whose workers are forked anew each epoch, while the GPU's memory comes and goes."""
import torch
from torch.utils import data

import work
from torch_work import Perceptron, TorchProgram, states

WORKERS = 3
BATCHES_PER_EPOCH = 24


class Rows(data.Dataset):
    """Rows that depend on their number alone."""

    def __init__(self, count, width, seed):
        self.count, self.width, self.seed = count, width, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.randn(self.width, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + index))


class Fed(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        width, depth, self.batch = (1024, 8, 256) if self.on_gpu else (64, 2, 8)
        self.model = Perceptron(width, depth).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.rows = Rows(self.batch * BATCHES_PER_EPOCH, width, args.seed)
        self.epoch = 0
        self.batches = iter(())

    def next_batch(self):
        batch = next(self.batches, None)
        if batch is None:
            order = torch.Generator().manual_seed(self.args.seed + self.epoch)
            self.epoch += 1
            self.batches = iter(data.DataLoader(self.rows, batch_size=self.batch, shuffle=True, num_workers=WORKERS, pin_memory=self.on_gpu,
                                                multiprocessing_context="fork", generator=order))
            batch = next(self.batches)
        return batch.to(self.device, non_blocking=True)

    def unit(self, i):
        rows = self.next_batch()
        for _ in range(3):
            self.optimizer.zero_grad(set_to_none=True)
            loss = (self.model(rows) - rows.roll(1, 1)).square().mean()
            loss.backward()
            self.optimizer.step()
        self.last = loss.detach()
        self.ballast.touch(i)

    def state(self):
        return states(self.model, self.optimizer)

    def close(self):
        self.batches = iter(())


if __name__ == "__main__":
    work.run(Fed(work.parse(__doc__)))
