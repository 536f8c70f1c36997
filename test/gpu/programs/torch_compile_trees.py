#!/usr/bin/env python3
"""torch.compile with CUDA graphs for everything (mode "reduce-overhead"): trees of captured graphs that share one pool of memory, recorded anew for
each of three shapes."""
import torch

import work
from torch_compile import Compiled


class Trees(Compiled):
    def __init__(self, args):
        super().__init__(args)
        self.batch, self.width = self.shape

    def compiled(self):
        import torch._inductor.config as inductor
        inductor.triton.autotune_pointwise = False
        if hasattr(inductor, "deterministic"):
            inductor.deterministic = True
        inductor.compile_threads = 4
        return torch.compile(self.loss, mode="reduce-overhead", dynamic=False)

    def unit(self, i):
        for k in range(3):
            rows = torch.randn((self.batch - 64 * k if self.on_gpu else self.batch, self.width), generator=self.random, device=self.device)
            if self.on_gpu:
                torch.compiler.cudagraph_mark_step_begin()
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.forward(rows)
            loss.backward()
            self.optimizer.step()
            self.last = loss.detach().clone()  # the next replay writes over it
        self.ballast.touch(i)


if __name__ == "__main__":
    work.run(Trees(work.parse(__doc__)))
