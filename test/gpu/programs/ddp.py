#!/usr/bin/env python3
"""A PyTorch job on several GPUs: one process a GPU, DistributedDataParallel over NCCL, and ballast that is summed over all GPUs now and then.

  ddp.py --world 2 --seed 1 --held 3G      what --held says on each GPU; NCCL_CUMEM_ENABLE in the environment chooses NCCL's way to share

This process starts the others and leaves the GPUs alone. Rank 0 keeps the conversation of work.py and tells the others of every unit, through
a store on the loopback device, not through the GPUs.
"""
import argparse
import os
import socket
import subprocess
import sys
import time

import work

SETTLE_EVERY = 4


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--rank", type=int, default=-1, help="given by the process that starts all")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held", type=work.bytes_of, default=work.bytes_of("3G"))
    parser.add_argument("--graphs", action="store_true", help="sums over all GPUs in CUDA graphs, whose buffers NCCL registers")
    parser.add_argument("--device", default="cuda", help="cpu: over gloo, to try this program's own logic")
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_all(args):
    """Waits for all ranks; when one fails the others are ended, since they would wait for it in a collective."""
    port = free_port()
    ranks = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--port", str(port)],
                              stdin=None if rank == 0 else subprocess.DEVNULL, stdout=None if rank == 0 else sys.stderr)
             for rank in range(args.world)]
    failed = None
    while any(rank.poll() is None for rank in ranks):
        failed = failed or next((r for r in ranks if r.poll() not in (None, 0)), None)
        if failed:
            for rank in ranks:
                rank.kill()
        time.sleep(0.05)
    failed = failed or next((r for r in ranks if r.returncode != 0), None)
    return failed.returncode if failed else 0


def run_rank(args):
    # A switch in NVLink that lets several GPUs read the same memory is no part of what is shown, and its use can harm others on some hosts.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    import torch
    import torch.distributed as distributed
    from torch.nn.parallel import DistributedDataParallel
    from torch_work import Perceptron, TorchProgram, states

    on_gpu = args.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(args.rank)
        args.device = f"cuda:{args.rank}"
    distributed.init_process_group("nccl" if on_gpu else "gloo", init_method=f"tcp://127.0.0.1:{args.port}", rank=args.rank,
                                   world_size=args.world)
    store = distributed.TCPStore("127.0.0.1", args.port + 1 if args.port < 65000 else args.port - 1, args.world, args.rank == 0)

    class Parallel(TorchProgram):
        def __init__(self):
            super().__init__(args)
            width, depth, self.batch = (2048, 12, 1024) if on_gpu else (32, 2, 4)
            self.model = DistributedDataParallel(Perceptron(width, depth).to(self.device), device_ids=[args.rank] if on_gpu else None)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
            self.random = torch.Generator(self.device).manual_seed(args.seed * 100 + args.rank)
            self.width = width
            self.pooled = torch.zeros(1 << 20, dtype=torch.int64, device=self.device)
            # Small and large, of whose sums NCCL makes different kernels; large ones are read where they lie once they are registered.
            self.summed = [torch.full((words,), args.rank + 1, dtype=torch.int64, device=self.device) for words in (1 << 10, 1 << 22)]
            self.graph = self.captured() if args.graphs and on_gpu else None

        def captured(self):
            for each in self.summed:  # the communicator has to be there before
                distributed.all_reduce(each)
            self.settle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's own threads call the driver meanwhile
                for each in self.summed:
                    distributed.all_reduce(each)
            return graph

        def unit(self, i):
            rows = torch.randn(self.batch, self.width, generator=self.random, device=self.device)
            self.optimizer.zero_grad(set_to_none=True)
            loss = (self.model(rows) - rows.roll(1, 1)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.last = loss.detach()
            self.ballast.touch(i)
            if self.ballast.pieces:
                piece = self.ballast.pieces[0][:self.pooled.numel()]
                self.pooled[:piece.numel()] += piece
                distributed.all_reduce(self.pooled)
            if args.graphs:
                for each in self.summed:
                    each.mul_(3).add_(i + args.rank)
                if self.graph is not None:
                    self.graph.replay()
                else:
                    for each in self.summed:
                        distributed.all_reduce(each)

        def state(self):
            return [*states(self.model, self.optimizer), self.pooled, *self.summed]

    program = Parallel()
    if args.rank == 0:
        lead(args, program, store)
    else:
        follow(args, program, store)
    program.graph = None  # NCCL's communicator waits for the graphs that use it
    distributed.destroy_process_group()


class Led:
    """What rank 0 gives to work.run: the others hear of every unit before it begins, and their checksums go into the whole."""

    def __init__(self, args, program, store):
        self.args, self.program, self.store = args, program, store
        self.told = 0

    def tell(self, word):
        self.store.set(f"word{self.told}", word)
        self.told += 1

    def unit(self, i):
        self.tell(str(i))
        self.program.unit(i)

    def fill(self):
        self.tell("fill")
        self.program.fill()

    def settle(self):
        self.program.settle()

    def held(self):
        return self.program.held()

    def pids(self):
        return [os.getpid()] + [int(self.store.get(f"pid{rank}")) for rank in range(1, self.args.world)]

    def checksum(self):
        self.tell("end")
        own = self.program.checksum()
        return "-".join([own] + [self.store.get(f"checksum{rank}").decode() for rank in range(1, self.args.world)])

    def value(self):
        return self.program.value()


def lead(args, program, store):
    work.run(Led(args, program, store))


def follow(args, program, store):
    store.set(f"pid{args.rank}", str(os.getpid()))
    heard = 0
    while True:
        word = heard_word(store, f"word{heard}")
        heard += 1
        if word == "end":
            break
        if word == "fill":
            program.fill()
        else:
            program.unit(int(word))
            if int(word) % SETTLE_EVERY == 0:
                program.settle()
    program.settle()
    store.set(f"checksum{args.rank}", program.checksum())


def heard_word(store, key):
    """Waits as long as it takes: rank 0 may be waiting for its turn, or for the word to begin."""
    while True:
        try:
            return store.get(key).decode()
        except RuntimeError as error:
            if "imeout" not in str(error) and "imed out" not in str(error):
                raise


def main():
    args = parse()
    if args.rank < 0:
        sys.exit(start_all(args))
    run_rank(args)


if __name__ == "__main__":
    main()
