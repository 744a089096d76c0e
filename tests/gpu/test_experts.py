"""Grouped products and the whole expert layer on the GPU, every implementation, against the CPU."""

import pytest
import torch
from compare import expect_equal_values, relative_error

pytestmark = pytest.mark.gpu

ops = torch.ops.phalanx
FP32, BF16 = torch.float32, torch.bfloat16
EAGER, BATCHED_MM, GROUPED_MM, PHALANX = 1, 2, 3, 4
COUNTS = [[5, 0, 130, 1], [0, 64, 0], [257], [3, 1, 0, 0, 90, 2, 7, 64]]


def ends_of(counts):
    return torch.tensor(counts).cumsum(0).to(torch.int32)


@pytest.mark.parametrize(
    "implementation, dtype",
    [
        (EAGER, FP32),
        (EAGER, BF16),
        (BATCHED_MM, FP32),
        (GROUPED_MM, FP32),
        (GROUPED_MM, BF16),
        (PHALANX, BF16),
    ],
)
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("n, m", [(96, 64), (64, 200)])
def test_grouped_linear(counts, n, m, implementation, dtype):
    ends, rows = ends_of(counts), sum(counts)
    x, grad_y, weight = torch.randn(rows, m), torch.randn(rows, n), torch.randn(len(counts), n, m) / 8

    def numbered(operator):
        return lambda *tensors: operator(*tensors, implementation if tensors[0].is_cuda else EAGER)

    expect_equal_values(numbered(ops._grouped_linear), dtype, x, weight, ends)
    expect_equal_values(
        numbered(lambda g, w, e, i: ops._grouped_linear(g, w.transpose(1, 2), e, i)),
        dtype,
        grad_y,
        weight,
        ends,
    )
    expect_equal_values(numbered(ops._grouped_linear_weight_grad), dtype, grad_y, x, ends)


def reference_swiglu(x, gate_up, ends):
    z = ops._grouped_linear(x, gate_up, ends, EAGER)
    gate, up = z.chunk(2, 1)
    return z, torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("counts", COUNTS)
def test_swiglu_inside_the_products(counts):
    hidden, width, top_k = 128, 72, 1
    ends, rows = ends_of(counts), sum(counts)
    x, grad = torch.randn(rows, hidden).to(BF16), torch.randn(rows, hidden).to(BF16)
    gate_up = (torch.randn(len(counts), 2 * width, hidden) / 8).to(BF16)
    down = (torch.randn(len(counts), hidden, width) / 8).to(BF16)
    weights = torch.rand(rows, top_k).to(BF16)
    choices = torch.randperm(rows).to(torch.int32)
    row_of = choices.argsort().to(torch.int32).view(rows, top_k)

    z, activation = ops._grouped_linear_swiglu(x.cuda(), gate_up.cuda(), ends.cuda())
    z_expected, activation_expected = reference_swiglu(x.float(), gate_up.float(), ends)
    assert relative_error(z, z_expected) < 6e-3
    assert relative_error(activation, activation_expected) < 1e-2

    found = ops._grouped_linear_swiglu_backward(
        grad.cuda(), down.cuda(), z, weights.cuda(), ends.cuda(), choices.cuda(), row_of.cuda()
    )
    leaf = z.cpu().float().requires_grad_()
    gate, up = leaf.chunk(2, 1)
    a = torch.nn.functional.silu(gate) * up
    upstream = ops._grouped_linear(grad.float(), down.float().transpose(1, 2), ends, EAGER)
    w = weights.float().flatten()[choices.long()][:, None]
    (grad_z,) = torch.autograd.grad(a, leaf, upstream * w)
    grad_weights = (upstream * a.detach()).sum(1)[row_of.long()]
    assert relative_error(found[0], grad_z) < 6e-3
    assert relative_error(found[1], a * w) < 6e-3
    assert relative_error(found[2], grad_weights) < 6e-3
