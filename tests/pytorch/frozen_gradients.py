#!/usr/bin/env python3
"""Writes tests/reference_values/tiny_gpt.json: what PyTorch says about a tiny GPT, in fp64.

Run by hand (needs torch and numpy), the output is committed:
    python3 tests/pytorch/frozen_gradients.py tests/reference_values/tiny_gpt.json

The C++ test makes the same weights and tokens from integer formulas, so the file holds only results.

    hash(k, i):  u = i * 2654435761 + k * 2246822519 + 374761393   (all modulo 2^32)
                 u ^= u >> 15;  u *= 2246822519;  u ^= u >> 13;  u *= 3266489917;  u ^= u >> 16
    unit(k, i) = hash(k, i) / 2^32                                  in [0, 1)

Element i (row-major, padding of the vocabulary not counted) of the parameter with index k is
    0.4 * unit(k, i) - 0.2,   plus 1 for layernorm weights.
Tokens:  position j of batch row r is hash(500, r * 8 + j) % 11.
Targets: hash(501, r * 8 + j) % 11, but -1 (no loss there) where hash(502, r * 8 + j) % 4 == 0.
A checksum of a tensor is sum over i of value[i] * (unit(1000, i) - 0.5): compare it to within a tolerance
times the tensor's norm.  Optimizer steps repeat the same batch: clip to norm 1 with the coefficient
min(1, 1 / (norm + 1e-6)), then AdamW (lr 1e-3, betas 0.9 and 0.95, eps 1e-8, decay 0.1 on matrices and
embeddings only).  The gradient of a key bias is zero in exact arithmetic: compare it absolutely.
"""
import json
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, HEADS, CHANNELS, CONTEXT, VOCAB, BATCH = 2, 2, 16, 8, 11, 2
STEPS = 3
MASK = 0xFFFFFFFF


def hash_values(k: int, count: int) -> np.ndarray:
    u = (np.arange(count, dtype=np.uint64) * 2654435761 + k * 2246822519 + 374761393) & MASK
    u ^= u >> np.uint64(15)
    u = (u * np.uint64(2246822519)) & MASK
    u ^= u >> np.uint64(13)
    u = (u * np.uint64(3266489917)) & MASK
    return u ^ (u >> np.uint64(16))


def unit(k: int, count: int) -> np.ndarray:
    return hash_values(k, count).astype(np.float64) / 2.0**32


def parameter_shapes(bias: bool, tied: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes; the place in this table is the k of the formulas, whatever the variant leaves out."""
    shapes = {"wte.weight": (VOCAB, CHANNELS), "wpe.weight": (CONTEXT, CHANNELS)}
    linears = {"q": (CHANNELS, CHANNELS), "k": (CHANNELS, CHANNELS), "v": (CHANNELS, CHANNELS),
               "proj": (CHANNELS, CHANNELS)}

    def add(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        shapes[f"{name}.bias"] = shape[:1]

    for layer in range(LAYERS):
        add(f"h.{layer}.ln_1", CHANNELS)
        for name, shape in linears.items():
            add(f"h.{layer}.attn.{name}", *shape)
        add(f"h.{layer}.ln_2", CHANNELS)
        add(f"h.{layer}.mlp.fc", 4 * CHANNELS, CHANNELS)
        add(f"h.{layer}.mlp.proj", CHANNELS, 4 * CHANNELS)
    add("ln_f", CHANNELS)
    shapes["lm_head.weight"] = (VOCAB, CHANNELS)
    index = {name: k for k, name in enumerate(shapes)}
    kept = {name: shape for name, shape in shapes.items()
            if (bias or not name.endswith(".bias")) and (not tied or name != "lm_head.weight")}
    return {name: (index[name], shape) for name, shape in kept.items()}


def make_parameters(bias: bool, tied: bool) -> dict[str, tuple[int, torch.Tensor]]:
    parameters = {}
    for name, (k, shape) in parameter_shapes(bias, tied).items():
        values = 0.4 * unit(k, math.prod(shape)) - 0.2
        if ".ln_" in f".{name}" and name.endswith(".weight"):
            values += 1.0
        parameters[name] = (k, torch.tensor(values.reshape(shape), dtype=torch.float64, requires_grad=True))
    return parameters


def loss_of(p: dict[str, torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    def linear(x, name):
        return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))

    def norm(x, name):
        return F.layer_norm(x, (CHANNELS,), p[f"{name}.weight"], p.get(f"{name}.bias"), 1e-5)

    def attention(x, name):
        b, t, c = x.shape
        q, k, v = (linear(x, f"{name}.{part}").view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in "qkv")
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // HEADS)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c), f"{name}.proj")

    x = p["wte.weight"][tokens] + p["wpe.weight"]
    for layer in range(LAYERS):
        x = x + attention(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn")
        hidden = F.gelu(linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.fc"), approximate="tanh")
        x = x + linear(hidden, f"h.{layer}.mlp.proj")
    logits = F.linear(norm(x, "ln_f"), p.get("lm_head.weight", p["wte.weight"]))
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)


def summary(tensor: torch.Tensor) -> dict:
    values = tensor.detach().numpy().reshape(-1)
    return {
        "norm": float(np.linalg.norm(values)),
        "checksum": float(np.dot(values, unit(1000, values.size) - 0.5)),
        "first": [float(v) for v in values[:8]],
    }


def variant(name: str, bias: bool, tied: bool) -> dict:
    parameters = make_parameters(bias, tied)
    tensors = {key: tensor for key, (_, tensor) in parameters.items()}
    tokens = torch.tensor((hash_values(500, BATCH * CONTEXT) % 11).astype(np.int64).reshape(BATCH, CONTEXT))
    targets = (hash_values(501, BATCH * CONTEXT) % 11).astype(np.int64)
    targets[hash_values(502, BATCH * CONTEXT) % 4 == 0] = -1
    targets = torch.tensor(targets.reshape(BATCH, CONTEXT))
    decayed = [t for t in tensors.values() if t.dim() == 2]
    others = [t for t in tensors.values() if t.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    result = {
        "name": name, "bias": bias, "tied": tied, "tokens": tokens.flatten().tolist(),
        "targets": targets.flatten().tolist(), "losses": [], "gradient_norms": [], "parameters": {},
    }
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(tensors, tokens, targets)
        loss.backward()
        norm = math.sqrt(sum(float(t.grad.square().sum()) for t in tensors.values()))
        result["losses"].append(loss.item())
        result["gradient_norms"].append(norm)
        if step == 0:
            for key, (k, tensor) in parameters.items():
                result["parameters"][key] = {"k": k, "shape": list(tensor.shape), "initial": summary(tensor),
                                             "gradient": summary(tensor.grad)}
        for tensor in tensors.values():
            tensor.grad *= min(1.0, 1.0 / (norm + 1e-6))
        optimizer.step()
    with torch.no_grad():
        result["losses"].append(float(loss_of(tensors, tokens, targets)))
    for key, tensor in tensors.items():
        result["parameters"][key]["after_steps"] = summary(tensor)
    return result


def main() -> None:
    contents = {
        "made_by": f"tests/pytorch/frozen_gradients.py, PyTorch {torch.__version__.split('+')[0]}, fp64",
        "model": {"layers": LAYERS, "heads": HEADS, "channels": CHANNELS, "context": CONTEXT, "vocab": VOCAB},
        "batch": BATCH,
        "steps": STEPS,
        "variants": [variant("tied_with_biases", True, True), variant("untied_without_biases", False, False)],
    }
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(contents, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
