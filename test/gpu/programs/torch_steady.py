#!/usr/bin/env python3
"""PyTorch training whose steps are counted, as `steady` counts kernels: for checks of compute limits. Says {"event": "ready"}; the order
`run BEGIN END` (CLOCK_MONOTONIC, ns) is answered with {"marks": [[t, steps done by then], ...]}. A step is forward, backward and optimizer of a
small perceptron, some milliseconds of GPU time. Ends with its input."""
import json
import sys
import time

import torch


def main():
    device = "cuda" if "--device" not in sys.argv else sys.argv[sys.argv.index("--device") + 1]
    torch.manual_seed(1)
    width = 4096 if device == "cuda" else 64
    model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU()))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.randn(1024, width, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()

    def settle():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    settle()
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        order = line.split()
        if len(order) != 3 or order[0] != "run":
            print(json.dumps({"error": "unknown order"}), flush=True)
            continue
        begin, end = int(order[1]), int(order[2])
        time.sleep(max(0.0, (begin - time.monotonic_ns()) / 1e9))
        marks, done = [[time.monotonic_ns(), 0]], 0
        while time.monotonic_ns() < end:
            step()
            settle()  # as a loop that reads its loss
            done += 1
            marks.append([time.monotonic_ns(), done])
        print(json.dumps({"marks": marks}), flush=True)


if __name__ == "__main__":
    main()
