#!/usr/bin/env python3
"""An inference server, for `run.py --only servers`: a Llama of transformers with random weights, loaded once.

  torch_server.py LAYERS SEED            layers of 1.6 GiB each beside 0.5 GiB of embeddings
  torch_server.py LAYERS SEED --managed  the weights in managed memory, which the order `evict` moves to the host: what a request then needs
                                         comes back by the driver's demand paging. Natively only; never more of it than the card has free

Says {"event": "ready", "bytes": N, "tokens": "HASH"}: what its weights take, and a hash of what it answers. The order `ask` is answered with
{"first_ns": T, "end_ns": T, "tokens": "HASH"}: a prompt of 128 tokens, of which the first new token and the last of 64 were there at these
times (CLOCK_MONOTONIC). Greedy, so every answer is the same. Ends with its input."""
import ctypes
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


class ManagedWeights:
    """The parameters of a model in managed memory, a block each."""

    def __init__(self, model):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.blocks = []  # (address, bytes)
        free, _ = torch.cuda.mem_get_info()
        if 2 * sum(parameter.nbytes for parameter in model.parameters()) > free:
            raise MemoryError("managed memory for the weights would not leave as much free again")
        for parameter in model.parameters():
            self.blocks.append((self.allocate(parameter.nbytes), parameter.nbytes))
            interface = {"shape": (parameter.nbytes,), "typestr": "|u1", "data": (self.blocks[-1][0], False), "version": 3}
            holder = type("Block", (), {"__cuda_array_interface__": interface})()
            moved = torch.as_tensor(holder, device="cuda").view(parameter.dtype).view(parameter.shape)
            moved.copy_(parameter.data)
            parameter.data = moved
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        attach_global = 1
        self.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(attach_global))
        return address.value

    def evict(self):
        host = -1
        for address, size in self.blocks:
            self.call("cuMemPrefetchAsync", ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.c_int(host), ctypes.c_void_p(None))
        torch.cuda.synchronize()


def main():
    layers, seed = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    model = model_of(layers, seed)
    managed = ManagedWeights(model) if "--managed" in sys.argv[3:] else None
    weights = {parameter.data_ptr(): parameter.nbytes for parameter in model.parameters()}
    prompt = torch.randint(0, 32000, (1, PROMPT), device="cuda", dtype=torch.int64)
    answer(model, prompt)
    print(json.dumps({"event": "ready", "bytes": sum(weights.values()), "tokens": answer(model, prompt)[2]}), flush=True)
    for line in sys.stdin:
        if line.strip() == "evict" and managed is not None:
            managed.evict()
            print(json.dumps({"event": "evicted"}), flush=True)
            continue
        if line.strip() != "ask":
            print(json.dumps({"error": "unknown order"}), flush=True)
            continue
        first, end, said = answer(model, prompt)
        print(json.dumps({"first_ns": first, "end_ns": end, "tokens": said}), flush=True)


if __name__ == "__main__":
    main()
