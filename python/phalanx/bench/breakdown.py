"""Where the time of a recorded step goes: ms per layer of each part, beside the least the GPU needs for it.

A part's roof is the larger of its FLOP over the rate of dense bf16 products and its bytes (each input read once, each
output written once) over the rate of a copy, both as measured on an H200 in bursts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DENSE_FLOPS = 790e12
COPY_BYTES = 4.3e12
BF16 = 2


@dataclass
class Part:
    name: str
    pattern: str  # of its kernels' names
    flop: float = 0.0  # of one layer, forward and backward
    bytes: float = 0.0
    ms: float = 0.0

    @property
    def roof_ms(self) -> float:
        return max(self.flop / DENSE_FLOPS, self.bytes / COPY_BYTES) * 1e3


def layer_parts(config: dict, tokens: int, sequence: int) -> list[Part]:
    """The first pattern that fits a kernel takes it."""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    heads, kv_heads, head_dim = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    rows = tokens * config["num_experts_per_tok"]
    query, kv = heads * head_dim, kv_heads * head_dim
    weights = config["num_experts"] * hidden * width * BF16  # of one of gate, up and down
    row, token = rows * BF16, tokens * BF16
    core = tokens * sequence * query * 2  # two products over half the keys
    product = 2 * rows * hidden * width
    return [
        Part("attention, forward", r"sdpa.*fprop|flash_fwd", core, token * (2 * query + 2 * kv)),
        Part(
            "attention, backward", r"sdpa|cudnn::fusion|flash_bwd", 2.5 * core, token * (4 * query + 4 * kv)
        ),
        Part(
            "up projection with SwiGLU",
            r"StoreSwiglu>",
            2 * product,
            row * (hidden + 3 * width) + 2 * weights,
        ),
        Part(
            "down projection, dX of up",
            r"StoreRows",
            3 * product,
            row * (2 * hidden + 3 * width) + 3 * weights,
        ),
        Part(
            "dX of down with SwiGLU's gradient",
            r"StoreSwigluGrad",
            product,
            row * (hidden + 5 * width) + weights,
        ),
        Part("dW of up and down", r"WeightGrad", 3 * product, row * (2 * hidden + 3 * width) + 3 * weights),
        Part("gather of rows (3)", r"gather_kernel", 0, 3 * (row + token) * hidden),
        Part("sum of rows (2)", r"combine_kernel", 0, 2 * row * hidden + 3 * token * hidden),
        Part(
            "router, grouping",
            r"RouterForward|RouterBackward|GroupByExpert|scan_kernel|place_kernel|count_kernel",
        ),
        Part("RMSNorm (4 forward, 2 backward)", r"RmsNorm", 0, (4 * 2 + 2 * 4) * token * hidden),
        Part("QK-norm and RoPE", r"Rope", 0, token * (2 * 2 * (query + kv) + 3 * query + 4 * kv)),
        Part(
            "projections of attention and router",
            r"nvjet|gemm|splitK",
            6 * tokens * hidden * (2 * query + 2 * kv),
        ),
    ]


def head_parts(config: dict, tokens: int) -> list[Part]:
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    return [
        Part("products of the head", r"nvjet|gemm", 6 * tokens * hidden * vocabulary),
        Part("cross-entropy", r"CrossEntropy", 0, 2 * tokens * vocabulary * BF16),
    ]


def breakdown(record: dict, result: dict) -> tuple[list[Part], list[Part], float]:
    """Parts of a layer (ms per layer), parts of the head, and the ms of all other kernels."""
    config, tokens = record["config"], record["batch"] * record["sequence"]
    layers = config["num_hidden_layers"]
    in_layers, in_head = layer_parts(config, tokens, record["sequence"]), head_parts(config, tokens)
    other = 0.0
    for kernel in result["kernels"]:
        # What runs once or more per layer belongs to the layers, the one final norm with it.
        parts, times = (in_layers, layers) if kernel["calls"] >= layers else (in_head, 1)
        part = next((part for part in parts if re.search(part.pattern, kernel["name"])), None)
        if part is None:
            other += kernel["ms"]
        else:
            part.ms += kernel["ms"] / times
    return in_layers, in_head, other


def table(record: dict) -> str:
    """The engine's result in a record of `bench step`, as Markdown."""
    result = record["results"][0]
    in_layers, in_head, other = breakdown(record, result)
    lines = ["| part | ms | roof | of the roof |", "| --- | ---: | ---: | ---: |"]

    def rows(parts: list[Part]) -> None:
        for part in parts:
            share = f"{part.roof_ms / part.ms:.0%}" if part.roof_ms and part.ms else ""
            roof = f"{part.roof_ms:.2f}" if part.roof_ms else ""
            lines.append(f"| {part.name} | {part.ms:.2f} | {roof} | {share} |")

    rows(in_layers)
    lines.append(
        f"| **one layer** | {sum(p.ms for p in in_layers):.2f} | {sum(p.roof_ms for p in in_layers):.2f} | |"
    )
    rows(in_head)
    layers = record["config"]["num_hidden_layers"]
    kernels = sum(kernel["ms"] for kernel in result["kernels"])
    lines.append(f"| other kernels, whole step | {other:.2f} | | |")
    lines.append(f"| **{layers} layers and head: kernels** | {kernels:.1f} | | |")
    lines.append(f"| **step as timed** | {result['step_ms']:.1f} | | |")
    return "\n".join(lines)
