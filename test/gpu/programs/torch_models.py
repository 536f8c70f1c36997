#!/usr/bin/env python3
"""PyTorch training of one of four kinds of models, whose steps are counted as torch_steady.py's are: the same orders and answers, with marks
20 ms apart at least. --kind mlp, cnn, transformer or lstm; --batch N. Ends with its input.

The order "dense" is answered with the GPU time that a step takes when the host keeps the GPU waiting for nothing ("gpu_ns"): what a step costs the
GPU, whereas steps alone leave it idle wherever the next kernel has not been submitted yet."""
import argparse
import json
import sys
import time

import torch
from torch import nn

MARK_NS = 20_000_000
STEPS_BETWEEN_LOSSES = 8


class Sequence(nn.Module):
    """An LSTM or a transformer encoder over sequences, with a loss on their last element."""

    def __init__(self, core, width):
        super().__init__()
        self.core, self.head = core, nn.Linear(width, width)

    def forward(self, data):
        answer = self.core(data)
        return self.head((answer[0] if isinstance(answer, tuple) else answer)[:, -1])


def model_and_data(kind, batch, device):
    """A model and a batch of its input; a step of each takes some milliseconds of an H200."""
    small = device == "cpu"
    width = 64 if small else 1024
    length = 8 if small else 128
    if kind == "mlp":
        layers = [layer for _ in range(4) for layer in (nn.Linear(width * 2, width * 2), nn.ReLU())]
        return nn.Sequential(*layers), torch.randn(batch * 16, width * 2)
    if kind == "cnn":
        channels = 8 if small else 64
        layers = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        layers += [layer for _ in range(4) for layer in (nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())]
        side = 8 if small else 96
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)), torch.randn(batch, 3, side, side)
    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(width // 2, 8, width * 2, batch_first=True)
        return Sequence(nn.TransformerEncoder(layer, 2), width // 2), torch.randn(batch, length, width // 2)
    return Sequence(nn.LSTM(width // 2, width // 2, 2, batch_first=True), width // 2), torch.randn(batch, length, width // 2)


def dense_ns(submit_step, repeats=15):
    """The median GPU time of a step that is submitted whole while the GPU is still busy; None where a step does not fit into the queue."""
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)  # about 0.1 s in which the host submits
        before, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        before.record()
        submit_step()  # kernels of the step that follows begin when these end
        begin.record()
        submit_step()
        end.record()
        submitted_in_time = not before.query()
        torch.cuda.synchronize()
        if submitted_in_time:
            found.append(begin.elapsed_time(end) * 1e6)
    return sorted(found)[len(found) // 2] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("mlp", "cnn", "transformer", "lstm"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(1)
    model, data = model_and_data(args.kind, args.batch, args.device)
    model, data = model.to(args.device), data.to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def submit_step():
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    def steps():
        """As a loop that reads its loss every few steps: the host is ahead of the GPU, so that what is measured is the GPU's."""
        for _ in range(STEPS_BETWEEN_LOSSES):
            submit_step()
        if args.device == "cuda":
            torch.cuda.synchronize()

    steps()
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        order = line.split()
        if order == ["dense"]:
            print(json.dumps({"gpu_ns": dense_ns(submit_step) if args.device == "cuda" else None}), flush=True)
            continue
        if len(order) != 3 or order[0] != "run":
            print(json.dumps({"error": "unknown order"}), flush=True)
            continue
        begin, end = int(order[1]), int(order[2])
        time.sleep(max(0.0, (begin - time.monotonic_ns()) / 1e9))
        marks, done = [[time.monotonic_ns(), 0]], 0
        while time.monotonic_ns() < end:
            steps()
            done += STEPS_BETWEEN_LOSSES
            if time.monotonic_ns() - marks[-1][0] >= MARK_NS:
                marks.append([time.monotonic_ns(), done])
        marks.append([time.monotonic_ns(), done])
        print(json.dumps({"marks": marks}), flush=True)


if __name__ == "__main__":
    main()
