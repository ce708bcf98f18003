#!/usr/bin/env python3
"""A plain, well written PyTorch GPT trainer: what Hearth's speed on the CPU is measured against.

Run by hand (needs torch and numpy); prints CPU seconds (user + system, the whole process), wall seconds and
tokens per second, of the training alone and with evaluations.

  python3 tests/pytorch/baseline.py --threads 1                                the quickstart task, 2000 steps
  python3 tests/pytorch/baseline.py --steps 300 --no-eval --compile
  python3 tests/pytorch/baseline.py --shape gpt2-124m --batch 4 --time 256 --steps 10 --precision bf16

The quickstart task is configs/shakespeare-char-cpu.toml: the same shape, batch, optimizer, schedule, split, and
an evaluation of the whole validation split every 250 steps.  gpt2-124m trains on random tokens.  CPU time
before the first step (imports, --compile) is not counted; --warmup steps are not either.
"""
import os

for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # pinned to slow kernels on some machines
    os.environ.pop(variable, None)

import argparse
import math
import resource
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {  # layers, heads, channels, bias
    "shakespeare-char-cpu": (4, 4, 128, False),
    "gpt2-124m": (12, 12, 768, True),
}


class Block(nn.Module):
    def __init__(self, channels: int, heads: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(channels, bias=bias)
        self.qkv = nn.Linear(channels, 3 * channels, bias=bias)
        self.proj = nn.Linear(channels, channels, bias=bias)
        self.ln_2 = nn.LayerNorm(channels, bias=bias)
        self.fc = nn.Linear(channels, 4 * channels, bias=bias)
        self.fc_proj = nn.Linear(4 * channels, channels, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attention.transpose(1, 2).reshape(b, t, c))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers: int, heads: int, channels: int, bias: bool, vocab: int, context: int):
        super().__init__()
        self.wte = nn.Embedding(vocab, channels)
        self.wpe = nn.Parameter(torch.empty(context, channels))
        self.blocks = nn.ModuleList(Block(channels, heads, bias) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels, bias=bias)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 1 / math.sqrt(2 * layers) if "proj" in name else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Clock:
    """CPU and wall time since the last restart()."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        self.cpu, self.wall = cpu_seconds(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        return cpu_seconds() - self.cpu, time.perf_counter() - self.wall


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine from lr to min_lr at the last step; steps start at 1."""
    if step <= options.lr_warmup:
        return options.lr * step / (options.lr_warmup + 1)
    progress = min(1.0, (step - options.lr_warmup) / max(1, options.lr_steps - options.lr_warmup))
    return options.min_lr + 0.5 * (options.lr - options.min_lr) * (1 + math.cos(math.pi * progress))


def load_characters(path: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    text = open(path, encoding="utf-8").read()
    alphabet = sorted(set(text))
    index = {character: i for i, character in enumerate(alphabet)}
    tokens = torch.from_numpy(np.array([index[character] for character in text], dtype=np.int64))
    split = len(tokens) * 9 // 10
    return tokens[:split], tokens[split:], len(alphabet)


@torch.no_grad()
def evaluate(loss_of, split: torch.Tensor, context: int, rows: int, autocast) -> float:
    """Mean loss over the whole split, in windows of `context`; the shorter rest at the end is left out."""
    windows = (len(split) - 1) // context
    tokens = split[: windows * context].view(windows, context)
    targets = split[1 : windows * context + 1].view(windows, context)
    total = 0.0
    for first in range(0, windows, rows):
        with autocast:
            loss = loss_of(tokens[first : first + rows], targets[first : first + rows])
        total += loss.item() * len(tokens[first : first + rows])
    return total / windows


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="shakespeare-char-cpu")
    parser.add_argument("--data", default="data/cache/shakespeare.txt")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--time", type=int, default=64, help="context length")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=0, help="further steps, not measured, before the others")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-eval", action="store_true")
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--eval-rows", type=int, default=24, help="sequences per evaluation batch")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--min-lr", type=float, default=1e-4)
    parser.add_argument("--lr-warmup", type=int, default=100)
    parser.add_argument("--lr-steps", type=int, default=2000)
    parser.add_argument("--beta2", type=float, default=0.99)
    parser.add_argument("--log-every", type=int, default=250)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    train = validation = None
    if options.shape == "gpt2-124m":
        vocab = 50304
        train = torch.randint(50257, (1 << 20,))
    else:
        train, validation, vocab = load_characters(options.data)

    layers, heads, channels, bias = SHAPES[options.shape]
    model = GPT(layers, heads, channels, bias, vocab, options.time)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=options.lr, betas=(0.9, options.beta2), eps=1e-8, fused=True)
    loss_of = torch.compile(model) if options.compile else model
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.precision == "bf16")
    parameters = list(model.parameters())
    offsets = torch.arange(options.time)

    def train_step(step: int) -> torch.Tensor:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        index = torch.randint(len(train) - options.time, (options.batch, 1)) + offsets
        with autocast:
            loss = loss_of(train[index], train[index + 1])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for _ in range(max(options.warmup, 3 if options.compile else 0)):
        train_step(1)
    with_evaluations = options.eval_every and not options.no_eval and validation is not None
    if with_evaluations and options.compile:
        evaluate(loss_of, validation, options.time, options.eval_rows, autocast)
    clock, evaluation_cpu, evaluation_wall = Clock(), 0.0, 0.0
    for step in range(1, options.steps + 1):
        loss = train_step(step)
        if step % options.log_every == 0 or step == options.steps:
            print(f"step {step} loss {loss.item():.4f} cpu {clock.read()[0]:.1f} s", flush=True)
        if with_evaluations and (step % options.eval_every == 0 or step == options.steps):
            before = clock.read()
            value = evaluate(loss_of, validation, options.time, options.eval_rows, autocast)
            after = clock.read()
            evaluation_cpu += after[0] - before[0]
            evaluation_wall += after[1] - before[1]
            print(f"step {step} validation loss {value:.4f}", flush=True)
    cpu, wall = clock.read()
    tokens = options.steps * options.batch * options.time
    train_cpu, train_wall = cpu - evaluation_cpu, wall - evaluation_wall
    print(f"torch {torch.__version__} {options.shape} {options.precision} threads {options.threads}"
          f" compile {options.compile} final loss {loss.item():.4f}")
    print(f"training    cpu {train_cpu:.2f} s  wall {train_wall:.2f} s  {1e3 * train_cpu / options.steps:.2f} ms cpu/step"
          f"  {tokens / train_cpu:.0f} tokens per cpu second  {tokens / train_wall:.0f} tokens/s")
    print(f"with evaluations  cpu {cpu:.2f} s  wall {wall:.2f} s"
          f"  (system time of the whole process {resource.getrusage(resource.RUSAGE_SELF).ru_stime:.2f} s)")
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
