#!/usr/bin/env python3
"""A small GPT-like transformer trained with AdamW, bit-reproducible: plain attention (matmul, softmax, matmul), deterministic algorithms, a
fixed seed. Prints one JSON line at the end: losses, a sha256 over all weights, time, peak memory, throughput.

  train.py --steps 100                  so many steps
  train.py --seconds 35                 as many steps as begin in that time; "steps" in the output says how many (repeat with --steps)
  train.py --serve                      orders on standard input: "go SECONDS STALL_MS [BATCH]" trains so long and answers with one JSON line

Every time is CLOCK_MONOTONIC, nanoseconds, comparable between processes of one machine.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import sys
import time

PROCESS_BEGIN_NS = time.monotonic_ns()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: deterministic matrix products

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x, mask):
        batch, length, dim = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(dim, dim=2))
        scores = (q * (dim // self.heads) ** -0.5) @ k.transpose(2, 3)
        attended = scores.masked_fill(mask, float("-inf")).softmax(dim=-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary, dim, layers, heads, length):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


class Training:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("highest" if args.fp32 else "high")
        self.device = torch.device(args.device)
        with self.device:
            self.model = Transformer(args.vocabulary, args.dim, args.layers, args.heads, args.length)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=self.device.type == "cuda")
        self.random = torch.Generator().manual_seed(args.seed)
        self.losses = []

    def batch(self):
        """Rows that count up by a stride, modulo the vocabulary, with a tenth of the tokens replaced: something to learn."""
        args = self.args
        start = torch.randint(args.vocabulary, (args.batch, 1), generator=self.random)
        stride = torch.randint(1, 17, (args.batch, 1), generator=self.random)
        rows = (start + stride * torch.arange(args.length + 1)) % args.vocabulary
        noise = torch.randint(args.vocabulary, rows.shape, generator=self.random)
        rows = torch.where(torch.rand(rows.shape, generator=self.random) < 0.1, noise, rows)
        if self.device.type == "cuda":
            rows = rows.pin_memory()
        return rows.to(self.device, non_blocking=True)

    def step(self):
        rows = self.batch()
        logits = self.model(rows[:, :-1])
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self):
        if self.device.type != "cuda":
            return {"peak_allocated": 0, "peak_reserved": 0, "reserved": 0}
        return {
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
            "reserved": torch.cuda.memory_reserved(),
        }

    def train(self, steps, seconds, stall_ms):
        """At most `steps` (0: no bound), stopping after `seconds` (0: no bound) at a multiple of five steps."""
        begin = time.monotonic_ns()
        done = 0
        while not steps or done < steps:
            if seconds and done % 5 == 0 and time.monotonic_ns() - begin > seconds * 1e9:
                break
            self.step()
            done += 1
            if stall_ms:
                self.losses[-1].item()
                time.sleep(stall_ms / 1000)
            elif done % 5 == 0:
                self.losses[-1].item()
            if done == 3 and self.args.require_gib and self.peak_bytes()["peak_allocated"] < self.args.require_gib * 2**30:
                sys.exit(f"only {self.peak_bytes()['peak_allocated'] / 2**30:.2f} GiB allocated after 3 steps; take a larger --batch")
        self.synchronize()
        end = time.monotonic_ns()
        lasted = (end - begin) / 1e9
        return {"begin_ns": begin, "end_ns": end, "steps": done, "seconds": lasted, "steps_per_s": done / lasted}

    def weights_sha256(self):
        def digest(parameter):
            return hashlib.sha256(parameter.detach().cpu().contiguous().view(torch.uint8).numpy()).digest()

        parameters = [p for _, p in sorted(self.model.state_dict().items())]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return hashlib.sha256(b"".join(pool.map(digest, parameters))).hexdigest()


def say(record):
    print(json.dumps(record), flush=True)


def serve(training):
    training.train(5, 0, 0)
    say({"event": "ready", **training.peak_bytes()})
    for line in sys.stdin:
        words = line.split()
        if len(words) in (3, 4) and words[0] == "go":
            training.losses.clear()
            if len(words) == 4:
                training.args.batch = int(words[3])
            say({**training.train(0, float(words[1]), float(words[2])), **training.peak_bytes()})
        else:
            say({"error": f"unknown order {line!r}"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--host-stall-ms", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=15)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--require-gib", type=float, default=0, help="give up after 3 steps when less is allocated")
    parser.add_argument("--fp32", action="store_true", help="no TF32 in matrix products")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if not (args.steps or args.seconds or args.serve):
        parser.error("one of --steps, --seconds, --serve")
    training = Training(args)
    if args.serve:
        serve(training)
        return
    begin = time.monotonic_ns()
    trained = training.train(args.steps, args.seconds, args.host_stall_ms)
    losses = torch.stack(training.losses).tolist()
    hashing = time.monotonic_ns()
    sha256 = training.weights_sha256()
    say({
        "event": "result",
        "process_begin_ns": PROCESS_BEGIN_NS,
        "start_up_s": (begin - PROCESS_BEGIN_NS) / 1e9,
        **trained,
        **training.peak_bytes(),
        "hash_s": (time.monotonic_ns() - hashing) / 1e9,
        "first_loss": losses[0],
        "final_loss": losses[-1],
        "losses_sha256": hashlib.sha256(json.dumps([value.hex() for value in losses]).encode()).hexdigest(),
        "final_loss_hex": losses[-1].hex(),
        "weights_sha256": sha256,
        "tokens_per_s": trained["steps_per_s"] * args.batch * args.length,
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "torch": torch.__version__,
    })


if __name__ == "__main__":
    main()
