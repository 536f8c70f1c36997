#!/usr/bin/env python3
"""An inference server, for `run.py --only servers`: a Llama of transformers with random weights, loaded once.

  torch_server.py LAYERS SEED     layers of 1.6 GiB each beside 0.5 GiB of embeddings

Says {"event": "ready", "bytes": N, "tokens": "HASH"}: what its weights take, and a hash of what it answers. The order `ask` is answered with
{"first_ns": T, "end_ns": T, "tokens": "HASH"}: a prompt of 128 tokens, of which the first new token and the last of 64 were there at these
times (CLOCK_MONOTONIC). Greedy, so every answer is the same. Ends with its input."""
import hashlib
import json
import sys
import time

import torch

PROMPT, NEW = 128, 64


def model_of(layers, seed):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    # Few and wide layers: what a launch costs on the host hardly counts.
    config = LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=layers, num_attention_heads=64, num_key_value_heads=8,
                         vocab_size=32000, tie_word_embeddings=True)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def answer(model, prompt):
    tokens, past, said, first = prompt, None, [], 0
    for _ in range(NEW):
        found = model(tokens, past_key_values=past, use_cache=True)
        past = found.past_key_values
        tokens = found.logits[:, -1:].argmax(-1)
        said.append(int(tokens))  # as a server that streams its tokens
        first = first or time.monotonic_ns()
    return first, time.monotonic_ns(), hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def main():
    layers, seed = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    model = model_of(layers, seed)
    weights = {parameter.data_ptr(): parameter.nbytes for parameter in model.parameters()}
    prompt = torch.randint(0, 32000, (1, PROMPT), device="cuda", dtype=torch.int64)
    answer(model, prompt)
    print(json.dumps({"event": "ready", "bytes": sum(weights.values()), "tokens": answer(model, prompt)[2]}), flush=True)
    for line in sys.stdin:
        if line.strip() != "ask":
            print(json.dumps({"error": "unknown order"}), flush=True)
            continue
        first, end, said = answer(model, prompt)
        print(json.dumps({"first_ns": first, "end_ns": end, "tokens": said}), flush=True)


if __name__ == "__main__":
    main()
