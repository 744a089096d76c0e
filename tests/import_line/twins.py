"""The same tiny model twice: through the import line and from plain Transformers, with the same weights."""

import copy

import torch
import transformers
from transformers import Qwen3MoeConfig

from families import FAMILIES
from oracle import unsettle
from phalanx import AutoModelForCausalLM, explain

torch.set_num_threads(1)  # the tensors are tiny

TINY = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    moe_intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=6,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    max_position_embeddings=128,
    initializer_range=0.2,
    router_aux_loss_coef=0.1,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
LAYERS = TINY["num_hidden_layers"]
# Fields that families without experts have.
DENSE = dict(
    vocab_size=TINY["vocab_size"],
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.2,
)
TOLERANCE = 1e-5
IDS_SHAPE = (2, 12)


def tiny_config(family="qwen3_moe", **changes):
    if family == "qwen3_moe":
        return Qwen3MoeConfig(**{**TINY, **changes})
    config_class, base, _ = FAMILIES[family]
    shared = {
        name: TINY[name] for name in ("vocab_size", "max_position_embeddings", "pad_token_id", "bos_token_id")
    }
    return config_class(**{**base, **shared, "eos_token_id": TINY["eos_token_id"], **changes})


def twins(seed=0, dtype=torch.float32, attn="sdpa", experts="eager", **changes):
    """(ours, theirs) in training mode."""
    torch.manual_seed(seed)
    options = dict(attn_implementation=attn, experts_implementation=experts)
    theirs = transformers.AutoModelForCausalLM.from_config(tiny_config(**changes), **options)
    unsettle(theirs)
    return twin_of(theirs).to(dtype).train(), theirs.to(dtype).train()


def llamas():
    """The same of a family that the engine has not."""
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**DENSE)).train()
    unsettle(theirs)
    return twin_of(theirs), theirs


def twin_of(theirs):
    """The same model through the import line."""
    config = theirs.config
    options = dict(
        attn_implementation=config._attn_implementation, experts_implementation=config._experts_implementation
    )
    ours = AutoModelForCausalLM.from_config(copy.deepcopy(config), **options)
    ours.load_state_dict(theirs.state_dict())
    return ours.train(theirs.training)


def tokens(*shape, seed=0):
    return torch.randint(3, TINY["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def relative_error(found, expected):
    """max |found - expected| over max |expected|."""
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    assert found.shape == expected.shape
    difference = (found - expected).abs().max().item()
    return 0.0 if difference == 0.0 else difference / expected.abs().max().item()


def assert_same_gradients(ours, theirs, tolerance=TOLERANCE):
    expected = gradients(theirs)
    errors = {name: relative_error(found, expected[name]) for name, found in gradients(ours).items()}
    assert set(errors) == set(expected)
    assert {name: error for name, error in errors.items() if not error <= tolerance} == {}
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in expected.values())


def assert_same_step(ours, theirs, tolerance=TOLERANCE, their_arguments=None, **arguments):
    """Loss and every gradient of a forward and backward pass with these arguments; gives both outputs."""
    for model in (ours, theirs):
        model.zero_grad(set_to_none=True)
    found = ours(**arguments)
    expected = theirs(**{**arguments, **(their_arguments or {})})
    assert relative_error(found.loss, expected.loss) <= tolerance
    found.loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs, tolerance)
    return found, expected


def assert_fused(model, passes=1, layers=LAYERS):
    """All work of `passes` training passes with labels ran in the engine: halves, last norm, head."""
    explanation = explain(model)
    assert explanation.reasons() == {}, str(explanation)
    assert explanation.fused == passes * (2 * layers + 2), str(explanation)


def fallbacks(model):
    """Reasons by the kind of work that fell back."""
    found = {}
    for row in explain(model).rows:
        for reason in row.calls.fallbacks:
            found.setdefault(row.name.split(" ", 1)[1], set()).add(reason)
    return found
