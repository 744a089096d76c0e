"""Memory-bound operators on one GPU: time, bytes, and the fraction of the rate at which the same GPU copies memory.

  ./dev bench kernels                    the shapes of Qwen3-30B-A3B at 16,384 tokens, bf16
  ./dev bench kernels --only rms_norm    the rows whose name has these letters

The bytes are the fewest an operator can move: each input read once, each result written once. Inputs that would stay in
the cache take turns with copies of themselves. Times hold all launches of an operator and no gap between calls.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
BF16, FP32 = torch.bfloat16, torch.float32
# Of Qwen3-30B-A3B: hidden, query and key/value heads, head size, experts, chosen ones, width of an expert, vocabulary.
H, HEADS, KV_HEADS, D, EXPERTS, K, WIDTH, VOCAB = 2048, 32, 4, 128, 128, 8, 768, 151936
CACHE_BYTES = 200e6  # far more than any cache holds
operators = torch.ops.phalanx


@dataclass
class Row:
    name: str
    moved: float  # bytes
    inputs: Callable  # -> the operator's arguments
    run: Callable


def normal(*shape, dtype=BF16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def norm_rows(t):
    def backward():
        return normal(t, H), normal(t, H), normal(H), torch.rand(t, device="cuda"), normal(t, H)

    values = 2 * t * H
    yield Row("rms_norm", 2 * values, lambda: (normal(t, H), normal(H), 1e-6), operators._rms_norm_forward)
    yield Row("rms_norm backward", 4 * values, backward, operators._rms_norm_backward)


def rope_rows(t):
    def forward():
        fused = normal(t, (HEADS + 2 * KV_HEADS) * D)
        q, k, _ = fused.view(t, -1, D).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        angles = torch.rand(t, D // 2, device="cuda")
        return q, k, normal(D), normal(D), angles.cos(), angles.sin(), 1e-6

    def backward():
        grads = [normal(t, heads, D) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        return *grads, *forward()

    values, angles = 2 * t * D, 4 * t * D
    heads = HEADS + KV_HEADS
    yield Row("qk_norm_rope", 2 * heads * values + angles, forward, operators._qk_norm_rope_forward)
    moved = (3 * heads + 2 * KV_HEADS) * values + angles
    yield Row("qk_norm_rope backward", moved, backward, operators._qk_norm_rope_backward)


def expert_rows(t):
    r = t * K
    values = 2 * r * WIDTH

    def backward():
        return normal(r, WIDTH), normal(r, 2 * WIDTH), True

    def weigh():
        choices = torch.randperm(r, device="cuda", dtype=torch.int32)
        return normal(r, WIDTH), normal(r, WIDTH), normal(t, K).sign(), choices

    yield Row("swiglu", 3 * values, lambda: (normal(r, 2 * WIDTH),), operators._swiglu_forward)
    yield Row("swiglu backward", 6 * values, backward, operators._swiglu_backward)
    yield Row("weigh_activation", 3 * values, weigh, operators._weigh_activation_)


def permute_rows(t):
    r = t * K

    def groups():
        indices = torch.rand(t, EXPERTS, device="cuda").topk(K, dim=1).indices.int()
        return operators._group_by_expert(indices, EXPERTS)

    def gather():
        return normal(t, H), groups()[3], None

    def combine():
        return normal(r, H), groups()[3], normal(t, K), normal(t, H)

    yield Row("gather_rows", 2 * (r + t) * H, gather, operators._gather_rows)
    yield Row("combine_rows", 2 * (r + 2 * t) * H, combine, operators._combine_rows)


def head_rows(c):
    def inputs():
        labels = torch.randint(VOCAB, (c,), device="cuda")
        return normal(c, VOCAB), labels, torch.ones(c, device="cuda"), True, True

    yield Row(f"cross_entropy, {c} rows", 4 * c * VOCAB, inputs, operators._cross_entropy_rows)


# Sizes of one decoder layer, its experts first.
LAYER = (EXPERTS * 2 * WIDTH * H, EXPERTS * WIDTH * H, (HEADS + 2 * KV_HEADS) * D * H, HEADS * D * H,
         EXPERTS * H, H, H, D, D)  # fmt: skip


def optimizer_rows():
    count = sum(LAYER)
    settings = 1e-4, 0.9, 0.95, 1e-8, 10, 1.0

    def tensors(dtype):
        return [normal(size, dtype=dtype) for size in LAYER]

    def zeros(dtype, sizes=LAYER):
        return [torch.zeros(size, dtype=dtype, device="cuda") for size in sizes]

    def scales(states):
        return zeros(states, [-(-size // 128) for size in LAYER]) if states == torch.uint8 else []

    def adamw(dtype, master, stochastic, states=FP32):
        def inputs():
            held = [
                tensors(dtype),
                tensors(dtype),
                zeros(states),
                zeros(states),
                scales(states),
                scales(states),
            ]
            copies = tensors(FP32) if master else []
            return *held, copies, [0.1] * len(LAYER), range(len(LAYER)), *settings, stochastic, 1

        return inputs

    yield Row("adamw fp32", 28 * count, adamw(FP32, False, False), operators._adamw_)
    yield Row("adamw bf16, master copy", 28 * count, adamw(BF16, True, False), operators._adamw_)
    yield Row("adamw bf16, stochastic", 22 * count, adamw(BF16, False, True), operators._adamw_)
    yield Row("adamw bf16, bf16 states", 14 * count, adamw(BF16, False, True, BF16), operators._adamw_)
    yield Row(
        "adamw bf16, 8-bit states", 10 * count, adamw(BF16, False, True, torch.uint8), operators._adamw_
    )
    yield Row("global_norm bf16", 2 * count, lambda: (tensors(BF16),), operators._global_norm)


def copy_row():
    def inputs():
        return normal(2**29), normal(2**29)

    return Row("copy", 4 * 2**29, inputs, lambda target, source: target.copy_(source))


def median_ms(row, calls, repeats=7):
    """Milliseconds of a call: median over groups of calls that the host has queued before the first one starts."""
    sets = [row.inputs() for _ in range(max(1, round(CACHE_BYTES / row.moved)))]
    turns = itertools.cycle(sets)
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(10_000_000)
        begin.record()
        for _ in range(calls):
            row.run(*next(turns))
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return sorted(times[2:])[repeats // 2]


def measure(row, copy_rate):
    calls = 5 if row.moved > 5e9 else 20
    milliseconds = median_ms(row, calls)
    rate = row.moved / milliseconds * 1e-9  # TB/s
    copy_rate = copy_rate or rate
    print(
        f"{row.name:<28}{milliseconds:9.4f}{row.moved / 1e6:10.0f}{rate:8.2f}{rate / copy_rate:9.1%}",
        flush=True,
    )
    return {"name": row.name, "ms": milliseconds, "bytes": row.moved, "tb_per_s": rate,
            "fraction_of_copy": rate / copy_rate}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", default=os.environ.get("PHALANX_LIBRARY"), help="the built engine")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--only", default="", help="letters of the rows' names")
    parser.add_argument("--output", default=str(ROOT / "benchmarks/results/kernels.json"))
    arguments = parser.parse_args()

    torch.ops.load_library(arguments.library)
    torch.manual_seed(0)
    print(f"{'':<28}{'ms':>9}{'MB':>10}{'TB/s':>8}{'of copy':>9}")
    copy = measure(copy_row(), None)
    t = arguments.tokens
    families = [
        norm_rows(t),
        rope_rows(t),
        expert_rows(t),
        permute_rows(t),
        head_rows(4416),
        optimizer_rows(),
    ]
    rows = [row for row in itertools.chain(*families) if arguments.only in row.name]
    results = [copy] + [measure(row, copy["tb_per_s"]) for row in rows]
    report = {
        "command": " ".join(["benchmarks/kernels.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "tokens": t,
        "rows": results,
    }
    pathlib.Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(arguments.output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
