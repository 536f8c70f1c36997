#!/usr/bin/env python3
"""Real loads whose work is counted, for `run.py --only sharing --rows real`: one of

  train    trains a GPT-2 of transformers with random weights: kernels of a batch fill the GPU
  small    trains a small perceptron: the launching thread is what limits it
  serve    answers requests: a prompt of 128 tokens and 16 more by a GPT-2 of half the layers, greedy, arriving by chance

Says {"event": "ready"}. The order `work BEGIN END RATE SEED` (CLOCK_MONOTONIC, ns; RATE: requests a second) is answered with {"done": N,
"seconds": S, "took_ms": [...]}: steps or requests that ended in that time, the last one's end after BEGIN, and how long each request took from
its arrival to its last token. Requests that arrived before END are answered after it, too, and counted in `took_ms` alone. Ends with its input."""
import json
import random
import sys
import time

import torch


def small_step(device):
    width = 512
    model = torch.nn.Sequential(*(layer for _ in range(8) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU()))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, width, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def gpt(layers, device, large):
    from transformers import GPT2Config, GPT2LMHeadModel
    sizes = {"n_layer": layers, "n_embd": 768, "n_head": 12} if large else {"n_layer": 2, "n_embd": 32, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).to(device)


def train_step(device):
    large = device == "cuda"
    model = gpt(12, device, large).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 50257, (8, 512) if large else (2, 32), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    return step


def answer_one(device):
    large = device == "cuda"
    model = gpt(6, device, large).eval().to(torch.bfloat16)
    prompt = torch.randint(0, 50257, (1, 128 if large else 8), device=device)

    @torch.inference_mode()
    def step():
        tokens, past = prompt, None
        for _ in range(16 if large else 4):
            found = model(tokens, past_key_values=past, use_cache=True)
            past = found.past_key_values
            tokens = found.logits[:, -1:].argmax(-1)
        return tokens

    return step


STEPS = {"train": train_step, "small": small_step, "serve": answer_one}


def train_until(step, begin, end):
    done, last = 0, begin
    while (now := time.monotonic_ns()) < end:
        step().sum().item()  # as a loop that reads its loss
        last = time.monotonic_ns()
        done += last <= end
        if last > end:
            last = now
    return {"done": done, "seconds": (last - begin) / 1e9, "took_ms": []}


def serve_until(step, begin, end, rate, seed):
    chance = random.Random(seed)
    arrives, took, done = float(begin), [], 0
    while True:
        arrives += chance.expovariate(rate) * 1e9
        if arrives >= end:
            return {"done": done, "seconds": (end - begin) / 1e9, "took_ms": took}
        time.sleep(max(0.0, (arrives - time.monotonic_ns()) / 1e9))
        step().sum().item()
        now = time.monotonic_ns()
        done += now <= end
        took.append(round((now - arrives) / 1e6, 3))


def main():
    kind, device = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cuda"
    torch.manual_seed(1)
    torch.set_num_threads(1)
    step = STEPS[kind](device)
    for _ in range(5):
        step().sum().item()
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        order = line.split()
        if len(order) != 5 or order[0] != "work":
            print(json.dumps({"error": "unknown order"}), flush=True)
            continue
        begin, end, rate, seed = int(order[1]), int(order[2]), float(order[3]), int(order[4])
        time.sleep(max(0.0, (begin - time.monotonic_ns()) / 1e9))
        found = serve_until(step, begin, end, rate, seed) if kind == "serve" else train_until(step, begin, end)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
