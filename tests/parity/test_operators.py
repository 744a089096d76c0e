"""Device operators against the code of torch and Transformers that they stand in for."""

import os

import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter, load_balancing_loss_func

torch.ops.load_library(os.environ["PHALANX_LIBRARY"])
operators = torch.ops.phalanx

SOFTMAX = 0


def test_adamw_equals_torch_optim():
    torch.manual_seed(0)
    theirs = [torch.nn.Parameter(torch.randn(size)) for size in (1, 31, 1000, 40003)]
    ours = [parameter.detach().clone() for parameter in theirs]
    means = [torch.zeros_like(parameter) for parameter in ours]
    squares = [torch.zeros_like(parameter) for parameter in ours]
    decays = [0.0, 0.1, 0.01, 0.1]
    groups = [
        {"params": [parameter], "weight_decay": decay}
        for parameter, decay in zip(theirs, decays, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    for step in range(1, 21):
        for parameter in theirs:
            parameter.grad = torch.randn_like(parameter)
        gradients = [parameter.grad for parameter in theirs]
        operators._adamw_(
            ours, gradients, means, squares, [], [], [], decays, range(4),
            1e-3, 0.9, 0.95, 1e-8, step, 1.0, False, 0,
        )  # fmt: skip
        optimizer.step()
    for parameter, own, mean, square in zip(theirs, ours, means, squares, strict=True):
        # torch's square root is off by the last bit now and then.
        torch.testing.assert_close(own, parameter.detach(), rtol=1e-6, atol=1e-7)
        assert torch.equal(mean, optimizer.state[parameter]["exp_avg"])
        assert torch.equal(square, optimizer.state[parameter]["exp_avg_sq"])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_router_equals_qwen3_moe(normalize, dtype):
    torch.manual_seed(1)
    config = Qwen3MoeConfig(hidden_size=64, num_experts=16, num_experts_per_tok=4, norm_topk_prob=normalize)
    router = Qwen3MoeTopKRouter(config).to(dtype)
    torch.nn.init.normal_(router.weight)
    with torch.no_grad():
        logits, expected, chosen = router(torch.randn(200, 64, dtype=dtype))
        weights, indices = operators._router_forward(logits, None, 4, SOFTMAX, normalize, 1.0)
    assert weights.dtype == expected.dtype == dtype
    # Where two logits are equal torch may choose either; their weights agree nevertheless.
    untied = logits.sort(-1).values.diff(dim=-1).min(-1).values > 0
    assert untied.sum() > 50
    assert torch.equal(indices[untied].long(), chosen[untied])
    torch.testing.assert_close(weights, expected, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_load_balancing_statistics_give_the_loss_of_transformers(dtype):
    torch.manual_seed(2)
    experts, top_k, tokens = 8, 2, 300
    layers = tuple(torch.randn(tokens, experts).to(dtype) for _ in range(3))
    expected = load_balancing_loss_func(layers, experts, top_k)
    statistics = [operators._load_balancing_statistics(logits, top_k) for logits in layers]
    rows = tokens * len(layers)
    choices = sum(choices for choices, _ in statistics) / rows
    scores = sum(scores for _, scores in statistics) / rows
    loss = experts * (choices * scores).sum()
    assert loss.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-5 if dtype == torch.float32 else 1e-3, atol=0)
