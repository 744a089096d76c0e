"""A full training step on the CPU against Transformers and torch's AdamW, in one run on the same weights and tokens.

The peer is Transformers with sdpa attention and the faster of its `grouped_mm` and `eager` experts, torch's
`clip_grad_norm_` and `AdamW(fused=True)`. A step is forward, backward, clipping and update. First the losses of all are
compared.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

SIZES = {
    "tiny": dict(
        config=dict(
            vocab_size=2048, hidden_size=96, moe_intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2,
        ),
        rows=8, length=128, steps=15,
    ),
    "100m": dict(
        config=dict(
            vocab_size=16384, hidden_size=512, moe_intermediate_size=384, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=4, head_dim=64, num_experts=16, num_experts_per_tok=4,
        ),
        rows=2, length=256, steps=5,
    ),
}  # fmt: skip
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


class Ours:
    """The engine's model and optimizer."""

    def __init__(self, folder, dtype, tokens):
        self.model = torch.classes.phalanx.CausalLM(str(folder), dtype)
        self.parameters = list(self.model.parameters().values())
        wide = [parameter.detach().float() for parameter in self.parameters]
        self.master = wide if dtype == "bfloat16" else []
        self.states = [[torch.zeros_like(tensor) for tensor in wide] for _ in range(2)]
        rows, length = tokens.shape
        self.tokens = tokens.reshape(-1)
        shifted = torch.cat([tokens[:, 1:], torch.full((rows, 1), -100)], dim=1)
        self.labels = shifted.reshape(-1)
        self.lengths = [length] * rows
        self.steps = 0

    def step(self):
        loss = self.model.forward(self.tokens, self.labels, self.lengths)["loss"]
        loss.backward()
        gradients = [parameter.grad for parameter in self.parameters]
        scale = min(1.0, 1.0 / (torch.ops.phalanx._global_norm(gradients).item() + 1e-6))
        self.steps += 1
        beta1, beta2 = ADAMW["betas"]
        with torch.no_grad():
            torch.ops.phalanx._adamw_(
                self.parameters, gradients, *self.states, [], [], self.master,
                [ADAMW["weight_decay"]] * len(gradients), range(len(gradients)),
                ADAMW["lr"], beta1, beta2, ADAMW["eps"], self.steps, scale, False, 0,
            )  # fmt: skip
        for parameter in self.parameters:
            parameter.grad = None
        return loss.item()


class Peer:
    """Transformers and torch."""

    def __init__(self, folder, dtype, tokens, experts):
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", experts_implementation=experts
        ).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True, **ADAMW)
        self.tokens = tokens

    def step(self):
        loss = self.model(input_ids=self.tokens, labels=self.tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def measure(runners, steps, clock=time.perf_counter):
    """Median seconds of a step of each by the clock, taken in turns so that a busy machine hits all alike."""
    times = {name: [] for name in runners}
    for step in range(steps + 2):
        for name, runner in runners.items():
            start = clock()
            runner.step()
            if step >= 2:
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def run(size, dtype):
    setting = SIZES[size]
    torch.manual_seed(0)
    config = Qwen3MoeConfig(norm_topk_prob=True, max_position_embeddings=4096, **setting["config"])
    tokens = torch.randint(0, config.vocab_size, (setting["rows"], setting["length"]))
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_config(config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        model.save_pretrained(folder)
        runners = {"phalanx": Ours(folder, dtype, tokens)}
        for experts in ("grouped_mm", "eager"):
            runners[f"transformers {experts}"] = Peer(folder, dtype, tokens, experts)
        losses = {name: runner.step() for name, runner in runners.items()}
        spread = max(losses.values()) - min(losses.values())
        if spread > (1e-4 if dtype == "float32" else 5e-2):
            sys.exit(f"the losses of the first step differ: {losses}")
        seconds = measure(runners, setting["steps"])
    best = min(value for name, value in seconds.items() if name != "phalanx")
    return {
        "size": size,
        "dtype": dtype,
        "parameters": parameters,
        "tokens": tokens.numel(),
        "first_loss": losses,
        "seconds": seconds,
        "ratio": best / seconds["phalanx"],
    }


def print_table(rows):
    print(
        f"{'size':6} {'dtype':9} {'parameters':>11} {'tokens':>7}  ms a step: phalanx, grouped_mm, eager    ratio"
    )
    for row in rows:
        times = "  ".join(f"{1e3 * value:9.1f}" for value in row["seconds"].values())
        sizes = f"{row['size']:6} {row['dtype']:9} {row['parameters']:11,} {row['tokens']:7,}"
        print(f"{sizes}  {times}   {row['ratio']:5.2f} x")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, action="append", help="default: all")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], action="append", help="default: both")
    parser.add_argument("--output", type=Path, help="where to write the JSON record")
    arguments = parser.parse_args()
    torch.ops.load_library(os.environ["PHALANX_LIBRARY"])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = []
    for dtype in arguments.dtype or ["float32", "bfloat16"]:
        for size in arguments.size or SIZES:
            rows.append(run(size, dtype))
    record = {
        "command": "./dev bench cpu",
        "date": datetime.date.today().isoformat(),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rows": rows,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=2) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
