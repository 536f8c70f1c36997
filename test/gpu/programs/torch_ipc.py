#!/usr/bin/env python3
"""CUDA tensors passed between two processes by torch.multiprocessing: one that both change for good, and a new one from the child each time."""
import os

import torch
import torch.multiprocessing as processes

import work
from torch_work import MULTIPLIER, TorchProgram, checksum

SHARED_BYTES = 128 << 20


def child(orders, answers):
    """Changes the shared tensor as it is told and sends a tensor of its own back."""
    shared = orders.get()
    mine = torch.arange(4 << 20, dtype=torch.int64, device=shared.device)
    answers.put(os.getpid())
    while True:
        i = orders.get()
        if i is None:
            break
        shared.mul_(MULTIPLIER).add_(i)
        mine.add_(shared[:mine.numel()])
        fresh = mine * 3 + i
        if shared.is_cuda:
            torch.cuda.synchronize()
        answers.put(fresh)
        del fresh
        orders.get()  # the other side is done with it
    answers.put(checksum([mine]))


class Passing(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        words = (SHARED_BYTES if self.on_gpu else 1 << 16) // 8
        self.shared = torch.arange(max(words, 4 << 20), dtype=torch.int64, device=self.device)
        self.total = torch.zeros(4 << 20, dtype=torch.int64, device=self.device)
        self.childs_checksum = None
        spawning = processes.get_context("spawn")
        self.orders, self.answers = spawning.Queue(), spawning.Queue()
        self.child = spawning.Process(target=child, args=(self.orders, self.answers), daemon=True)
        self.child.start()
        self.settle()
        self.orders.put(self.shared)
        self.childs_pid = self.answers.get(timeout=120)

    def pids(self):
        return [os.getpid(), self.childs_pid]

    def unit(self, i):
        self.shared.add_(1)
        self.settle()
        self.orders.put(i)
        fresh = self.answers.get(timeout=120)
        self.total.mul_(31).add_(fresh)
        self.settle()
        del fresh
        self.orders.put("done")
        self.ballast.touch(i)

    def state(self):
        return [self.shared, self.total]

    def checksum(self):
        self.orders.put(None)
        return super().checksum() + "-" + self.answers.get(timeout=120)

    def close(self):
        self.child.join(30)
        if self.child.exitcode != 0:
            raise RuntimeError(f"the child ended with {self.child.exitcode}")


if __name__ == "__main__":
    work.run(Passing(work.parse(__doc__)))
