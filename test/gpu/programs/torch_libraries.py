#!/usr/bin/env python3
"""NVIDIA's libraries through PyTorch: cuDNN convolutions forward and backward, cuFFT, cuSOLVER, batched cuBLAS, and NVRTC by a kernel that
PyTorch compiles at run time."""
import torch
from torch import nn

import work
from torch_work import TorchProgram, states


class Libraries(TorchProgram):
    def __init__(self, args):
        super().__init__(args, deterministic=False)  # some of cuSOLVER's ways have no deterministic twin; cuDNN is told below
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        self.batch, self.size, self.order = (16, 96, 512) if self.on_gpu else (2, 8, 16)
        channels = 64 if self.on_gpu else 4
        self.model = nn.Sequential(nn.Conv2d(3, channels, 5, padding=2), nn.BatchNorm2d(channels), nn.ReLU(),
                                   nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 3, 3, padding=1))
        self.model.to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.random = torch.Generator(self.device).manual_seed(args.seed)
        self.sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.compiled = self.compile() if self.on_gpu else (lambda x: x * 3 + 1)

    def compile(self):
        from torch.cuda.jiterator import _create_jit_fn  # PyTorch's own way to NVRTC; it has no other name
        return _create_jit_fn("template <typename T> T thrice(T x) { return x * T(3) + T(1); }")

    def noise(self, *shape):
        return torch.randn(*shape, generator=self.random, device=self.device)

    def convolve(self):
        images = self.noise(self.batch, 3, self.size, self.size)
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(images) - images.flip(3)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.last = loss.detach()

    def transform(self):
        signal = self.noise(64, self.order * 32)
        spectrum = torch.fft.rfft(signal)
        self.sums[0] += torch.fft.irfft(spectrum * spectrum.conj()).double().square().sum()

    def solve(self):
        a = self.noise(self.order, self.order).double()
        a = a @ a.t() + torch.eye(self.order, dtype=torch.float64, device=self.device) * self.order
        factor = torch.linalg.cholesky(a)
        self.sums[1] += torch.linalg.solve(a, self.noise(self.order, 8).double()).square().sum()
        self.sums[2] += torch.linalg.eigvalsh(a).sum() + factor.diagonal().sum()

    def unit(self, i):
        self.convolve()
        self.transform()
        if i % 3 == 0:
            self.solve()
        blocks = self.noise(128, 64, 64)
        self.sums[3] += self.compiled(torch.bmm(blocks, blocks)).double().sum()
        self.ballast.touch(i)

    def state(self):
        return [*states(self.model, self.optimizer), self.sums]

    def value(self):
        return float(self.sums.sum())


if __name__ == "__main__":
    work.run(Libraries(work.parse(__doc__)))
