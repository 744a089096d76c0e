"""Correctness of the grouped GEMM kernels on the device: fp32 references, repeats, poisoned memory, graph replay."""

import random

import torch
from grouped_gemm_library import (
    BF16,
    FP32,
    ends_of,
    random_bf16,
    reference_gemm,
    reference_swiglu,
    reference_swiglu_grad,
    reference_weight_grad,
    relative_error,
)

ROUNDING = 2.5e-3  # one rounding to bf16 of random values is 1.7e-3, a little more over few values
TWO_ROUNDINGS = 4e-3
EXACT = 2e-5  # fp32 sums of thousands of terms in another order


def expect(name, error, bound):
    if not error <= bound:
        raise AssertionError(f"{name}: relative error {error:.2e}, expected at most {bound:.1e}")


def check_shape(library, counts, n, k, spare_rows):
    """Every kernel on one shape; rows past the last expert are NaN in inputs and must stay as they are in outputs."""
    ends = ends_of(counts)
    m = int(ends[-1])
    name = f"counts {counts if len(counts) < 9 else (len(counts), m)} n {n} k {k}"

    def rows(columns, scale=1.0):
        tensor = random_bf16(m + spare_rows, columns, scale=scale)
        tensor[m:] = float("nan")
        return tensor

    def output(columns, dtype=BF16):
        return torch.full((m + spare_rows, columns), 7.0, device="cuda", dtype=dtype)

    def expect_rows(what, result, reference, bound=ROUNDING):
        expect(f"{what}, {name}", relative_error(result[:m], reference), bound)
        if not (result[m:] == 7).all():
            raise AssertionError(f"{what}, {name}: wrote past the last expert's rows")

    x = rows(k)
    for in_out in (False, True):
        weight = random_bf16(len(counts), *((k, n) if in_out else (n, k)), scale=0.05)
        y = output(n)
        library.gemm(x, weight, ends, y, in_out)
        expect_rows("gemm", y, reference_gemm(x[:m], weight, ends, in_out))

    dy = rows(n)
    dw_reference = reference_weight_grad(dy, x, ends)
    for dtype, bound in ((BF16, ROUNDING), (FP32, EXACT)):
        dw = torch.full(dw_reference.shape, float("nan"), device="cuda", dtype=dtype)
        library.weight_grad(dy, x, ends, dw)
        expect(f"weight_grad, {name}", relative_error(dw, dw_reference), bound)
        before = random_bf16(*dw.shape).to(dtype)
        dw = before.clone()
        library.weight_grad(dy, x, ends, dw, accumulate=True)
        bound = TWO_ROUNDINGS if dtype == BF16 else EXACT
        expect(f"weight_grad accumulating, {name}", relative_error(dw, dw_reference + before.float()), bound)

    weight = random_bf16(len(counts), 2 * n, k, scale=0.05)
    z, a = output(2 * n), output(n)
    library.swiglu(x, weight, ends, z, a)
    expect_rows("swiglu z", z, reference_gemm(x[:m], weight, ends, in_out=False))
    expect_rows("swiglu a", a, reference_swiglu(z[:m]))

    down = random_bf16(len(counts), k, n, scale=0.05)
    z = rows(2 * n)
    scale = torch.rand(m + spare_rows, device="cuda")
    dz, scaled_a = output(2 * n), output(n)
    partials = output(library.swiglu_grad_partials(n), FP32)
    library.swiglu_grad(x, down, z, scale, ends, dz, scaled_a, partials)
    dz_reference, a_reference, ds_terms = reference_swiglu_grad(x[:m], down, z[:m], scale[:m], ends)
    expect_rows("swiglu_grad dz", dz, dz_reference)
    expect_rows("swiglu_grad scaled_a", scaled_a, a_reference, TWO_ROUNDINGS)
    # The terms of ds have random signs: its error is measured against their size, not against what is left of them.
    ds_error = (partials[:m].sum(1) - ds_terms.sum(1)).norm() / ds_terms.norm().clamp_min(1e-20)
    expect(f"swiglu_grad ds, {name}", ds_error.item(), ROUNDING)
    if not (partials[m:] == 7).all():
        raise AssertionError(f"swiglu_grad partials, {name}: wrote past the last expert's rows")


def check_fixed_shapes(library):
    for counts, n, k, spare_rows in (
        ([128], 256, 64, 0),
        ([64, 0, 128, 200, 1, 63], 256, 512, 0),
        ([300, 5], 512, 768, 100),
        ([0, 17, 0], 192, 72, 3),
        ([100, 260, 33, 0, 4], 264, 136, 70),
        ([1000, 1, 2, 3, 700], 768, 2048, 9),
        ([3], 8, 8, 5),
        ([0, 0, 0], 64, 64, 5),
        ([5000] + [0] * 511, 128, 64, 1),
    ):
        check_shape(library, counts, n, k, spare_rows)


def check_random_shapes(library, number, seed=0):
    generator = random.Random(seed)
    for _ in range(number):
        experts = generator.choice([1, 2, 3, 5, 8, 16, 33, 64, 128, 256, 512])
        largest = (
            generator.choice([1, 7, 64, 130, 600, 3000])
            if experts <= 16
            else generator.choice([1, 9, 70, 200])
        )
        counts = [generator.choice([0, generator.randint(0, largest), largest]) for _ in range(experts)]
        widest = 200 if experts <= 16 else 40
        n, k = (8 * generator.randint(1, widest) for _ in range(2))
        check_shape(library, counts, n, k, generator.randint(0, 200))


def check_repeats(library, repeats=40):
    """The same bits every time, while other outputs would differ if blocks raced."""
    counts = [512, 100, 0, 37, 700, 255]
    ends = ends_of(counts)
    m, n, k = sum(counts), 768, 1024
    x, dy, z = random_bf16(m, k), random_bf16(m, n), random_bf16(m, 2 * n)
    weight, down = random_bf16(len(counts), 2 * n, k, scale=0.05), random_bf16(len(counts), k, n, scale=0.05)
    scale = torch.rand(m, device="cuda")
    first = None
    for _ in range(repeats):
        outputs = [torch.empty(m, c, device="cuda", dtype=BF16) for c in (n, 2 * n, n, 2 * n, n)]
        dw = torch.empty(len(counts), n, k, device="cuda", dtype=FP32)
        partials = torch.empty(m, library.swiglu_grad_partials(n), device="cuda")
        library.gemm(x, down, ends, outputs[0], in_out=True)
        library.swiglu(x, weight, ends, outputs[1], outputs[2])
        library.swiglu_grad(x, down, z, scale, ends, outputs[3], outputs[4], partials)
        library.weight_grad(dy, x, ends, dw)
        results = [*outputs, dw, partials]
        first = first or results
        if not all(torch.equal(a, b) for a, b in zip(first, results, strict=True)):
            raise AssertionError("two runs on the same inputs differ")


def check_graph_replay(library):
    """A captured launch reads the counts of the replay, not of the capture."""
    n, k, m = 256, 512, 1000
    x, dy = random_bf16(m, k), random_bf16(m, n)
    weight = random_bf16(4, n, k, scale=0.05)
    ends = ends_of([250, 250, 250, 250])
    y = torch.zeros(m, n, device="cuda", dtype=BF16)
    dw = torch.zeros(4, n, k, device="cuda", dtype=FP32)
    library.gemm(x, weight, ends, y, in_out=False)  # loads the module outside the capture
    library.weight_grad(dy, x, ends, dw)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.gemm(x, weight, ends, y, in_out=False)
        library.weight_grad(dy, x, ends, dw)
    for counts in ([0, 1000, 0, 0], [1, 2, 3, 994], [333, 333, 0, 334]):
        ends.copy_(ends_of(counts))
        graph.replay()
        expect(
            f"graph replay gemm {counts}", relative_error(y, reference_gemm(x, weight, ends, False)), ROUNDING
        )
        expect(f"graph replay dw {counts}", relative_error(dw, reference_weight_grad(dy, x, ends)), EXACT)


def check_refusals(library):
    """What cannot be computed is an error that says so, before anything is launched."""
    ends, x = ends_of([8]), random_bf16(8, 12)
    try:
        library.gemm(x, random_bf16(1, 16, 12), ends, random_bf16(8, 16), in_out=False)
    except RuntimeError as error:
        if "multiples of 8" not in str(error):
            raise
    else:
        raise AssertionError("12 columns were accepted")


def check_all(library, random_shapes):
    check_fixed_shapes(library)
    check_refusals(library)
    check_graph_replay(library)
    check_repeats(library)
    check_random_shapes(library, random_shapes)
