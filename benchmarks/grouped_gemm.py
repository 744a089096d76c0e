"""Grouped GEMM on one Hopper GPU, beside at::_grouped_mm in the same run: correctness first, then a table of speeds.

  ./dev bench grouped_gemm                      checks, then Qwen3-30B's six products at 4,096 to 32,768 tokens
  ./dev bench grouped_gemm --models all         other models' experts too
  ./dev bench grouped_gemm --check-only         checks, with 200 random shapes

Needs the shared library of a CUDA build (preset `cuda`), named by --library. Every own row is computed by the own
kernels: there is no fallback in them. Each pair of times is taken alternately, so that both meet the same clocks.
"""

import argparse
import datetime
import json
import pathlib
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from grouped_gemm_check import check_all
from grouped_gemm_library import (
    BF16,
    Library,
    ends_of,
    median_ms,
    random_bf16,
    relative_error,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclass
class Experts:
    """Expert layer of a model as one GPU holds it."""

    experts: int
    per_token: int
    hidden: int
    intermediate: int


MODELS = {
    "qwen3-30b": Experts(128, 8, 2048, 768),
    "deepseek-v3/8": Experts(32, 1, 7168, 2048),  # 32 of 256 experts: as many rows as 8 ranks send
    "gpt-oss-20b": Experts(32, 4, 2880, 2880),
    "mixtral-8x7b": Experts(8, 2, 4096, 14336),
    "olmoe": Experts(64, 8, 2048, 1024),
}


@dataclass
class Row:
    name: str
    tflop: float  # of the products alone
    own: Callable
    aten: Callable
    error: Callable  # relative difference of the two results


def counts_for(layer, tokens, routing, generator):
    rows = tokens * layer.per_token
    if routing == "balanced":
        base, rest = divmod(rows, layer.experts)
        return [base + (e < rest) for e in range(layer.experts)]
    # Zipf-like popularity; the exponent gives a largest share of about 2.8 times the mean with 128 experts.
    exponent = {"uniform": 0.0, "zipf": 0.33}[routing]
    popularity = 1 / torch.arange(1, layer.experts + 1, dtype=torch.float64) ** exponent
    popularity = popularity[torch.randperm(layer.experts, generator=generator)]
    chosen = torch.multinomial(popularity, rows, replacement=True, generator=generator)
    return torch.bincount(chosen, minlength=layer.experts).tolist()


def gemm_row(library, name, ends, rows, n, k, in_out):
    x = random_bf16(rows, k)
    weight = random_bf16(ends.numel(), *((k, n) if in_out else (n, k)), scale=0.05)
    other = weight if in_out else weight.transpose(1, 2)
    y = torch.empty(rows, n, device="cuda", dtype=BF16)

    def aten():
        return torch._grouped_mm(x, other, offs=ends)

    return Row(
        name,
        2e-12 * rows * n * k,
        lambda: library.gemm(x, weight, ends, y, in_out),
        aten,
        lambda: relative_error(y, aten().float()),
    )


def weight_grad_row(library, name, ends, rows, n, k):
    dy, x = random_bf16(rows, n), random_bf16(rows, k)
    dw = torch.empty(ends.numel(), n, k, device="cuda", dtype=BF16)

    def aten():
        return torch._grouped_mm(dy.t(), x, offs=ends)

    return Row(
        name,
        2e-12 * rows * n * k,
        lambda: library.weight_grad(dy, x, ends, dw),
        aten,
        lambda: relative_error(dw, aten().float()),
    )


def six_products(library, layer, ends, rows):
    h, i = layer.hidden, layer.intermediate
    yield gemm_row(library, "up", ends, rows, 2 * i, h, False)
    yield gemm_row(library, "down", ends, rows, h, i, False)
    yield gemm_row(library, "dX of up", ends, rows, h, 2 * i, True)
    yield gemm_row(library, "dX of down", ends, rows, i, h, True)
    yield weight_grad_row(library, "dW of up", ends, rows, 2 * i, h)
    yield weight_grad_row(library, "dW of down", ends, rows, h, i)


def fused_up_row(library, layer, ends, rows, tokens):
    """Rows gathered from [T, H], up projection, SwiGLU."""
    source = random_bf16(tokens, layer.hidden)
    index = torch.randint(tokens, (rows,), device="cuda")
    weight = random_bf16(layer.experts, 2 * layer.intermediate, layer.hidden, scale=0.05)
    z = torch.empty(rows, 2 * layer.intermediate, device="cuda", dtype=BF16)
    a = torch.empty(rows, layer.intermediate, device="cuda", dtype=BF16)

    def own():
        library.swiglu(source.index_select(0, index), weight, ends, z, a)

    def aten():
        gate, up = torch._grouped_mm(source.index_select(0, index), weight.transpose(1, 2), offs=ends).chunk(
            2, 1
        )
        return torch.nn.functional.silu(gate) * up

    flop = 4e-12 * rows * layer.intermediate * layer.hidden
    return Row("gather, up, SwiGLU", flop, own, aten, lambda: relative_error(a, aten().float()))


def fused_dz_row(library, layer, ends, rows, tokens):
    """Rows gathered from dO, product with the down projection, gradient of SwiGLU, s a, summands of the router's."""
    source = random_bf16(tokens, layer.hidden)
    index = torch.randint(tokens, (rows,), device="cuda")
    weight = random_bf16(layer.experts, layer.hidden, layer.intermediate, scale=0.05)
    z = random_bf16(rows, 2 * layer.intermediate)
    scale = torch.rand(rows, device="cuda")
    dz, scaled_a = torch.empty_like(z), torch.empty(rows, layer.intermediate, device="cuda", dtype=BF16)
    partials = torch.empty(rows, library.swiglu_grad_partials(layer.intermediate), device="cuda")

    def own():
        dy = source.index_select(0, index)
        library.swiglu_grad(dy, weight, z, scale, ends, dz, scaled_a, partials)

    def aten():
        da = torch._grouped_mm(source.index_select(0, index), weight, offs=ends)
        gate, up = z.chunk(2, 1)
        silu = torch.nn.functional.silu(gate)
        a = silu * up
        ds = (da * a).sum(1)
        da = da * scale.to(BF16)[:, None]
        dgate = torch.ops.aten.silu_backward(da * up, gate)
        return torch.cat([dgate, da * silu], 1), a * scale.to(BF16)[:, None], ds

    flop = 2e-12 * rows * layer.intermediate * layer.hidden
    return Row("gather, dZ fused", flop, own, aten, lambda: relative_error(dz, aten()[0].float()))


def measure(row, rounds=3):
    own_times, aten_times = [], []
    for _ in range(rounds):
        aten_times.append(median_ms(row.aten, 10))
        own_times.append(median_ms(row.own, 10))
    own, aten = sorted(own_times)[rounds // 2], sorted(aten_times)[rounds // 2]
    error = row.error()
    if not error < 1.5e-2:
        raise AssertionError(f"{row.name}: differs from ATen by {error:.1e}")
    return {
        "name": row.name,
        "kernel": "phalanx",
        "own_ms": own,
        "aten_ms": aten,
        "own_tflops": row.tflop / own * 1e3,
        "aten_tflops": row.tflop / aten * 1e3,
        "difference": error,
    }


def run_case(library, model, tokens, routing, generator):
    layer = MODELS[model]
    rows = tokens * layer.per_token
    ends = ends_of(counts_for(layer, tokens, routing, generator))
    title = f"{model}, {tokens} tokens, {routing}"
    print(f"\n{title}\n{'':<22}{'own':>8}{'ATen':>8}  TFLOP/s   ATen/own  difference")
    results = []
    for row in six_products(library, layer, ends, rows):
        results.append(measure(row))
        print_row(results[-1])
    ratio = sum(r["aten_ms"] for r in results) / sum(r["own_ms"] for r in results)
    print(f"{'sum of the six':<38}       {ratio:9.3f}")
    if layer.intermediate % 128 == 0:
        for make in (fused_up_row, fused_dz_row):
            results.append(measure(make(library, layer, ends, rows, tokens)))
            print_row(results[-1])
    return {"case": title, "ratio_of_six": ratio, "rows": results}


def print_row(r):
    print(
        f"{r['name']:<22}{r['own_tflops']:8.0f}{r['aten_tflops']:8.0f}{'':<9}"
        f"{r['aten_ms'] / r['own_ms']:9.3f}  {r['difference']:.1e}",
        flush=True,
    )


def dense_tflops():
    a, b = random_bf16(8192, 8192), random_bf16(8192, 8192)
    return 2e-9 * 8192**3 / median_ms(lambda: a @ b)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", default=str(ROOT / "build/cuda/lib/libphalanx_grouped_gemm.so"))
    parser.add_argument("--models", default="qwen3-30b", help="comma-separated, or all")
    parser.add_argument("--tokens", default="4096,8192,16384,32768")
    parser.add_argument(
        "--routing", default="balanced,uniform,zipf", help="of the first model at 8,192 tokens"
    )
    parser.add_argument("--random-shapes", type=int, default=200)
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--output", default=str(ROOT / "benchmarks/results/grouped_gemm.json"))
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    library = Library(arguments.library)
    check_all(library, arguments.random_shapes)
    print(f"checks passed, {arguments.random_shapes} random shapes among them", flush=True)
    if arguments.check_only:
        return
    generator = torch.Generator().manual_seed(0)
    models = list(MODELS) if arguments.models == "all" else arguments.models.split(",")
    cases = []
    for model in models:
        for tokens in [int(t) for t in arguments.tokens.split(",")] if model == models[0] else [8192]:
            routings = arguments.routing.split(",") if (model, tokens) == (models[0], 8192) else ["balanced"]
            for routing in routings:
                cases.append(run_case(library, model, tokens, routing, generator))
    dense = dense_tflops()
    print(f"\ndense bf16 8192^3 through ATen: {dense:.0f} TFLOP/s")
    report = {
        "command": " ".join(["benchmarks/grouped_gemm.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "dense_tflops": dense,
        "cases": cases,
    }
    pathlib.Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(arguments.output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
