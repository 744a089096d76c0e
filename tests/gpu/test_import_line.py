"""Models of the import line on the GPU against plain Transformers there: loss, gradients, generation."""

import copy

import pytest
import torch
from compare import cosines

from families import FAMILIES
from oracle import random_model
from phalanx import AutoModelForCausalLM, explain

pytestmark = pytest.mark.gpu
families = pytest.mark.parametrize("family", FAMILIES)


def twins(family, dtype):
    """(ours, theirs) with the same weights. Sizes that every kernel takes."""
    config_class, base, _ = FAMILIES[family]
    changes = dict(
        hidden_size=128, num_attention_heads=4, head_dim=32, vocab_size=320, max_position_embeddings=256
    )
    theirs = random_model(config_class(**{**base, **changes}), seed=1)
    options = dict(attn_implementation="sdpa", experts_implementation="eager")
    ours = AutoModelForCausalLM.from_config(copy.deepcopy(theirs.config), **options)
    ours.load_state_dict(theirs.state_dict())
    theirs.set_attn_implementation("sdpa")
    return ours.to("cuda", dtype).train(), theirs.to("cuda", dtype).train()


def step(model, **arguments):
    loss = model(**arguments).loss
    loss.backward()
    return loss.item(), {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


def batch(kind):
    ids = torch.randint(0, 320, (2, 128), device="cuda")
    if kind == "packed":
        positions = torch.cat([torch.arange(length) for length in (100, 28)]).expand(2, -1).to("cuda")
        return dict(input_ids=ids, labels=ids, position_ids=positions, use_cache=False)
    return dict(input_ids=ids, labels=ids)


@families
@pytest.mark.parametrize("kind", ["rows", "packed"])
def test_loss_and_gradients_in_fp32(family, kind):
    ours, theirs = twins(family, torch.float32)
    given = batch(kind)
    (loss, found), (expected_loss, expected) = step(ours, **given), step(theirs, **given)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert found.keys() == expected.keys()
    assert min(cosines(found, expected).values()) > 0.9999
    assert explain(ours).reasons() == {}, str(explain(ours))
    assert explain(ours).fused == 2 * theirs.config.num_hidden_layers + 2


@families
def test_a_step_in_bf16(family):
    ours, theirs = twins(family, torch.bfloat16)
    given = batch("rows")
    (loss, _), (expected_loss, _) = step(ours, **given), step(theirs, **given)
    assert loss == pytest.approx(expected_loss, rel=2e-2)
    assert explain(ours).reasons() == {}, str(explain(ours))


@families
def test_generates_the_same(family):
    ours, theirs = (model.eval() for model in twins(family, torch.float32))
    arguments = dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    ids = torch.randint(0, 320, (2, 12), device="cuda")
    assert torch.equal(ours.generate(ids, **arguments), theirs.generate(ids, **arguments))
