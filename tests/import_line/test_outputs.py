"""What a forward pass gives besides the loss: logits that are lazy in training, hidden states, router logits."""

import copy
import pickle

import numpy
import pytest
import torch
from twins import (
    LAYERS,
    assert_fused,
    assert_same_gradients,
    assert_same_step,
    fallbacks,
    relative_error,
    tokens,
    twins,
)

from phalanx import explain
from phalanx.lazy_logits import LazyLogits

IDS = tokens(2, 12)


def test_logits_are_not_computed_unless_read(monkeypatch):
    ours, _ = twins()
    computed = []
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *args: computed.append(args))
    output = ours(IDS, labels=IDS)
    output.loss.backward()
    assert output.logits.shape == (2, 12, 96) and output.logits.dtype == torch.float32
    assert output.logits.size(-1) == 96 and output.logits.dim() == 3 and output.logits.device.type == "cpu"
    assert isinstance(output.logits.float().detach().contiguous(), LazyLogits)
    assert computed == [] and not output.logits.computed


USES = {
    "argmax": lambda x: x.argmax(-1),
    "slice": lambda x: x[:, :-1],
    "add": lambda x: x + 1,
    "radd": lambda x: 1 + x,
    "sub": lambda x: x - x,
    "divide": lambda x: x / 2,
    "matmul": lambda x: x @ torch.ones(96, 2),
    "less": lambda x: x < 0,
    "softmax": lambda x: torch.softmax(x, -1),
    "method": lambda x: x.log_softmax(-1),
    "cross entropy": lambda x: torch.nn.functional.cross_entropy(x.view(-1, 96), IDS.flatten()),
    "concatenate": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x[0], x[1]]),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "to": lambda x: x.to("cpu", torch.float64),
    "half": lambda x: x.to(torch.bfloat16) * 1,
    "numpy": lambda x: torch.from_numpy(numpy.asarray(x.detach())),
    "iterate": lambda x: list(x)[1],
    "length": lambda x: torch.tensor(len(x)),
    "transpose": lambda x: x.mT,
    "item": lambda x: torch.tensor(x.sum().item()),
    "detach": lambda x: x.detach() * 1,
    "deepcopy": lambda x: copy.deepcopy(x.detach()),
    "pickle": lambda x: pickle.loads(pickle.dumps(x.detach())),
    "gather": lambda x: x.gather(-1, IDS[..., None]),
    "einsum": lambda x: torch.einsum("btv->bt", x),
    "negate": lambda x: -x,
    "power": lambda x: x**2,
}


@pytest.mark.parametrize("use", USES)
def test_whoever_reads_logits_gets_them(use):
    ours, theirs = twins()
    found, expected = (USES[use](model(IDS, labels=IDS).logits) for model in (ours, theirs))
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-2 if use == "half" else 1e-5)


def test_logits_that_are_read_have_a_gradient():
    ours, theirs = twins()
    for model in (ours, theirs):
        output = model(IDS, labels=IDS)
        (output.loss + output.logits.softmax(-1).pow(2).mean()).backward()
    assert_same_gradients(ours, theirs)


def test_detached_logits_have_none():
    ours, _ = twins()
    logits = ours(IDS, labels=IDS).logits
    assert logits.requires_grad and not logits.detach().requires_grad
    assert not (logits.detach() * 1).requires_grad


def test_without_labels_logits_are_a_tensor():
    ours, theirs = twins()
    found, expected = (model(IDS).logits for model in (ours, theirs))
    assert type(found) is torch.Tensor and found.requires_grad
    assert relative_error(found, expected) <= 1e-5


def test_evaluation_gives_the_same_fields_and_values():
    ours, theirs = (model.eval() for model in twins())
    with torch.no_grad():
        found, expected = (model(IDS, labels=IDS) for model in (ours, theirs))
    assert list(found) == list(expected)
    assert type(found.logits) is torch.Tensor
    assert relative_error(found.logits, expected.logits) <= 1e-5
    assert relative_error(found.loss, expected.loss) <= 1e-5


def test_hidden_states():
    ours, theirs = twins()
    found, expected = assert_same_step(ours, theirs, input_ids=IDS, labels=IDS, output_hidden_states=True)
    assert len(found.hidden_states) == len(expected.hidden_states) == LAYERS + 1
    for ours_state, their_state in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert relative_error(ours_state, their_state) <= 1e-5
    assert_fused(ours)


@pytest.mark.parametrize("padded", [False, True])
def test_router_logits_and_the_auxiliary_loss(padded):
    ours, theirs = twins()
    arguments = dict(input_ids=IDS, labels=IDS, output_router_logits=True)
    if padded:
        mask = torch.ones_like(IDS)
        mask[0, :5] = 0
        arguments |= dict(attention_mask=mask, labels=IDS.masked_fill(mask == 0, -100))
    found, expected = assert_same_step(ours, theirs, **arguments)
    assert relative_error(found.aux_loss, expected.aux_loss) <= 1e-5
    assert len(found.router_logits) == len(expected.router_logits) == LAYERS
    for mine, other in zip(found.router_logits, expected.router_logits, strict=True):
        assert relative_error(mine, other) <= 1e-5
    assert_fused(ours)


def test_router_logits_asked_for_by_the_config():
    ours, theirs = twins(output_router_logits=True)
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours)


def test_attentions():
    ours, theirs = twins(attn="eager")
    found, expected = assert_same_step(ours, theirs, input_ids=IDS, labels=IDS, output_attentions=True)
    for mine, other in zip(found.attentions, expected.attentions, strict=True):
        assert relative_error(mine, other) <= 1e-5
    assert fallbacks(ours) == {"attention": {"attentions are asked for"}}


def test_recording_leaves_later_passes_fused():
    ours, theirs = twins()
    ours(IDS, labels=IDS, output_hidden_states=True, output_router_logits=True)
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours, passes=2)


def test_explanation_before_and_after_a_pass():
    ours, _ = twins()
    assert str(explain(ours)).count("fused; calls so far: none") == 2 * LAYERS + 2
    ours(IDS, labels=IDS)
    assert "model.layers.1 experts" in str(explain(ours))
    assert str(explain(ours)).endswith(f"calls: {2 * LAYERS + 2} fused, 0 on Transformers' path")
