#!/usr/bin/env python3
"""PyTorch on many streams: work on four, copies to and from pinned memory on two more, ordered by events, and two threads that submit."""
import concurrent.futures

import torch

import work
from torch_work import TorchProgram

STREAMS = 4


class NoStream:
    """On the CPU everything is in order anyway."""

    def wait_event(self, event):
        pass

    def record_event(self):
        return None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        pass


class Streams(TorchProgram):
    def __init__(self, args):
        super().__init__(args)
        side = 2048 if self.on_gpu else 32
        made = [torch.cuda.Stream() if self.on_gpu else NoStream() for _ in range(STREAMS + 2)]
        self.streams, self.to_gpu, self.to_host = made[:STREAMS], made[STREAMS], made[STREAMS + 1]
        random = torch.Generator(self.device).manual_seed(args.seed)
        self.matrices = [torch.randn(side, side, generator=random, device=self.device) / side ** 0.5 for _ in range(STREAMS)]
        self.sent = torch.zeros(side, side, device=self.device)
        self.source = torch.randn(side, side, generator=torch.Generator().manual_seed(args.seed))
        self.back = torch.zeros(side, side)
        if self.on_gpu:
            self.source, self.back = self.source.pin_memory(), self.back.pin_memory()
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.settle()

    def within(self, stream):
        return torch.cuda.stream(stream) if self.on_gpu else stream

    def compute(self, begin, end, sent, done):
        """Streams begin..end-1, submitted by one thread."""
        for k in range(begin, end):
            stream = self.streams[k]
            stream.wait_event(sent) if sent else None
            with self.within(stream):
                matrix = self.matrices[k]
                for _ in range(3):
                    matrix.copy_(torch.tanh(matrix @ matrix + self.sent))
                done[k] = stream.record_event()

    def unit(self, i):
        with self.within(self.to_gpu):
            self.sent.copy_(self.source, non_blocking=True)
            sent = self.to_gpu.record_event()
        done = [None] * STREAMS
        calls = [self.pool.submit(self.compute, begin, begin + 2, sent, done) for begin in (0, 2)]
        for call in calls:
            call.result()  # raises what the thread raised
        with self.within(self.to_host):
            for event in done:
                self.to_host.wait_event(event) if event else None
            self.back.copy_(self.matrices[i % STREAMS], non_blocking=True)
            copied = self.to_host.record_event()
        if copied:
            copied.synchronize()
        self.source.copy_(torch.roll(self.back, 1, 0) * 0.5 + 0.1)  # the host takes part: what comes back goes out again
        self.ballast.touch(i)

    def state(self):
        return [*self.matrices, self.sent]

    def value(self):
        return float(self.matrices[0].sum())


if __name__ == "__main__":
    work.run(Streams(work.parse(__doc__)))
