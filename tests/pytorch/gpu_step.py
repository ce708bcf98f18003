#!/usr/bin/env python3
"""Times a training step of GPT-2 124M in PyTorch on a GPU, for comparison with Hearth in the same run.

  python3 tests/pytorch/gpu_step.py [--batch 32] [--time 1024] [--steps 30]

bf16 autocast, torch.compile, flash attention (scaled_dot_product_attention), fused AdamW, gradients clipped: what
people use.  Random tokens.  Prints "@tokens_per_second N" and "@ms N", the median step, for scripts/gpu_check.sh.
The model is baseline.py's.
"""
import argparse
import statistics

import torch
import torch.nn as nn

from baseline import GPT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--time", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = GPT(layers=12, heads=12, channels=768, bias=True, vocab=50304, context=options.time).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    parameters = list(model.parameters())
    tokens = torch.randint(50257, (options.batch, options.time + 1), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(5):
        step()
    milliseconds = []
    for _ in range(options.steps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        milliseconds.append(start.elapsed_time(end))
    median = statistics.median(milliseconds)
    rate = options.batch * options.time / median * 1e3
    print(f"@tokens_per_second {rate:.0f}")
    print(f"@ms {median:.2f}")
    print(f"PyTorch {torch.__version__}: {rate:,.0f} tokens/s, {median:.1f} ms a step")


if __name__ == "__main__":
    main()
