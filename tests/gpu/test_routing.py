"""Router, grouping, copies of rows and the load-balancing loss on the GPU, against the same operators on the CPU."""

import pytest
import torch
from compare import expect_equal_values, relative_error

pytestmark = pytest.mark.gpu

ops = torch.ops.phalanx
FP32, BF16 = torch.float32, torch.bfloat16
SOFTMAX, SIGMOID = 0, 1
SHAPES = [
    (1, 3, 1),
    (7, 128, 8),
    (300, 60, 4),
    (1000, 256, 8),
    (65, 512, 32),
    (33, 5, 5),
]  # tokens, experts, top_k


def distinct_logits(tokens, experts):
    """No two logits of a token are equal, in bf16 neither: the choice is the same in every arithmetic."""
    ranks = torch.rand(tokens, experts).argsort(1).float()
    return (ranks - experts / 2) / 64


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("score, normalize", [(SOFTMAX, True), (SOFTMAX, False), (SIGMOID, True)])
@pytest.mark.parametrize("tokens, experts, top_k", SHAPES)
def test_router(tokens, experts, top_k, score, normalize, dtype):
    logits = distinct_logits(tokens, experts)
    rule = score, normalize, 1.5
    expect_equal_values(lambda x: ops._router_forward(x, None, top_k, *rule), dtype, logits)
    indices = ops._router_forward(logits, None, top_k, *rule)[1]
    grad_weights, past = torch.randn(tokens, top_k), torch.randn(tokens, experts).to(dtype)
    for grad_past in (past, None):

        def backward(grad_weights, logits, indices, grad_past=grad_past):
            same = None if grad_past is None else grad_past.to(logits)
            return ops._router_backward(grad_weights, same, logits, indices, *rule)

        expect_equal_values(backward, dtype, grad_weights, logits, indices)


def test_ties_go_to_the_lower_index():
    indices = ops._router_forward(torch.zeros(3, 200, device="cuda"), None, 8, SOFTMAX, True, 1.0)[1]
    assert indices.tolist() == [list(range(8))] * 3


def test_a_nan_leaves_distinct_choices():
    logits = torch.randn(4, 128, device="cuda")
    logits[1, 5] = float("nan")
    logits[2] = float("nan")
    logits[3] = float("-inf")
    _, indices = ops._router_forward(logits, None, 8, SOFTMAX, True, 1.0)
    assert all(len(set(row)) == 8 and min(row) >= 0 and max(row) < 128 for row in indices.tolist())


def test_replayed_choice():
    logits = torch.randn(50, 16)
    replay = torch.rand(50, 16).argsort(1)[:, :3].to(torch.int32)
    expect_equal_values(lambda x, r: ops._router_forward(x, r, 3, SOFTMAX, True, 1.0), FP32, logits, replay)
    replay[7, 1] = 16
    with pytest.raises(RuntimeError, match="outside"):
        ops._router_forward(logits.cuda(), replay.cuda(), 3, SOFTMAX, True, 1.0)


@pytest.mark.parametrize(
    "tokens, experts, top_k", [(1, 1, 1), (1, 8, 8), (1000, 128, 8), (4097, 512, 2), (700, 3, 1)]
)
def test_group_by_expert(tokens, experts, top_k):
    for chosen in {top_k, experts}:  # all tokens with the same experts, and spread over all
        indices = torch.rand(tokens, chosen).argsort(1)[:, :top_k].to(torch.int32)
        expect_equal_values(lambda i: ops._group_by_expert(i, experts), FP32, indices)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("width", [1, 96, 100, 2048])
def test_rows(width, dtype):
    tokens, top_k, experts = 130, 3, 7
    indices = torch.rand(tokens, experts).argsort(1)[:, :top_k].to(torch.int32)
    rows = ops._group_by_expert(indices, experts)[3]
    x, weights = torch.randn(tokens, width), torch.rand(tokens, top_k)
    values, residual = torch.randn(tokens * top_k, width), torch.randn(tokens, width)
    expect_equal_values(lambda x, r: ops._gather_rows(x, r, None), dtype, x, rows)
    expect_equal_values(ops._gather_rows, dtype, x, rows, weights)
    expect_equal_values(lambda v, r: ops._combine_rows(v, r, None, None), dtype, values, rows)
    expect_equal_values(ops._combine_rows, dtype, values, rows, weights, residual)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("tokens, experts, top_k", SHAPES)
def test_load_balancing(tokens, experts, top_k, dtype):
    # In fp32 from rounded logits: what is summed is rounded to the logits' dtype, so that only equal dtypes are equal.
    logits, grad = distinct_logits(tokens, experts).to(dtype), torch.randn(experts)
    found = ops._load_balancing_statistics(logits.cuda(), top_k)
    expected = ops._load_balancing_statistics(logits, top_k)
    for a, b in zip(found, expected, strict=True):
        assert relative_error(a, b) <= (2e-3 if dtype == BF16 else 2e-5)
    gradient = ops._load_balancing_backward(grad.cuda(), logits.cuda())
    assert relative_error(gradient, ops._load_balancing_backward(grad, logits)) <= (
        1e-2 if dtype == BF16 else 2e-5
    )


def test_equal_inputs_give_equal_bits():
    logits = torch.randn(5000, 128, device="cuda", dtype=BF16)
    first = None
    for _ in range(20):
        weights, indices = ops._router_forward(logits, None, 8, SOFTMAX, True, 1.0)
        results = [
            weights,
            indices,
            *ops._group_by_expert(indices, 128),
            *ops._load_balancing_statistics(logits, 8),
        ]
        first = first or results
        assert all(torch.equal(a, b) for a, b in zip(first, results, strict=True))
