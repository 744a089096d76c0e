"""Every family that the engine has trains through the import line as in plain Transformers, in the engine."""

import pickle
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file
from twins import TOLERANCE, assert_fused, assert_same_step, fallbacks, relative_error, tokens, twin_of, twins

from batches import make_batch
from families import FAMILIES, cases
from oracle import crowd_experts, model_with_margin
from oracle import run as run_pass
from phalanx import AutoModelForCausalLM, engine, explain

CASES = list(cases())
IDS = tokens(2, 12)
families = pytest.mark.parametrize("family", FAMILIES)


def test_every_registered_family_is_bound():
    engine.load()
    assert sorted(FAMILIES) == sorted(torch.ops.phalanx.registered_families())
    for config_class, base, _ in FAMILIES.values():
        ours = AutoModelForCausalLM.from_config(config_class(**base))
        theirs = transformers.AutoModelForCausalLM.from_config(config_class(**base))
        assert isinstance(ours, type(theirs)) and type(ours) is not type(theirs)
        assert [type(m).__name__ for m in ours.modules()] == [type(m).__name__ for m in theirs.modules()]


@pytest.mark.parametrize("family, name, config, kind", CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_matches_transformers(family, name, config, kind):
    prepare = crowd_experts if name == "crowded and idle experts" else None
    theirs, batch = model_with_margin(config, lambda seed: make_batch(kind, config.vocab_size, seed), prepare)
    ours = twin_of(theirs)
    loss, logits, gradients = run_pass(theirs, batch)
    found_loss, found_logits, found = run_pass(ours, batch)
    errors = {name: relative_error(found[name], gradients[name]) for name in gradients}
    errors.update(loss=relative_error(found_loss, loss), logits=relative_error(found_logits, logits))
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}
    assert explain(ours).reasons() == {}
    assert explain(ours).fused == 2 * config.num_hidden_layers + 2


@families
def test_left_to_transformers_each_half_is_the_same(family):
    """A hook on a half leaves it, and its mask, to Transformers."""
    ours, theirs = twins(family=family)
    for layer in ours.model.layers:
        layer.self_attn.register_forward_hook(lambda *_: None)
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert fallbacks(ours) == {"attention": {"self_attn has a hook"}}


@families
def test_autocast(family):
    ours, theirs = twins(family=family)
    losses = []
    for model in (ours, theirs):
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(model(input_ids=IDS, labels=IDS).loss)
        losses[-1].backward()
    assert_fused(ours)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-2)
    found = torch.cat([p.grad.flatten() for p in ours.parameters()])
    expected = torch.cat([p.grad.flatten() for p in theirs.parameters()])
    assert torch.nn.functional.cosine_similarity(found, expected, dim=0) > 0.99


@families
def test_in_bfloat16(family):
    ours, theirs = twins(family=family, dtype=torch.bfloat16)
    losses = [model(input_ids=IDS, labels=IDS).loss for model in (ours, theirs)]
    losses[0].backward()
    assert_fused(ours)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=2e-2)


@families
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loaded_as_by_transformers(family, dtype, tmp_path, caplog):
    """Also where some tensors are kept in fp32 whatever the dtype."""
    twins(family=family)[1].save_pretrained(tmp_path)
    with caplog.at_level("INFO", "phalanx"):
        ours, theirs = (
            auto.from_pretrained(tmp_path, dtype=dtype)
            for auto in (AutoModelForCausalLM, transformers.AutoModelForCausalLM)
        )
    assert "weights read by the engine" in caplog.text
    for name, tensor in theirs.state_dict().items():
        found = ours.state_dict()[name]
        assert found.dtype == tensor.dtype and torch.equal(found, tensor), name


@families
def test_saved_and_loaded(family, tmp_path):
    """The folder that plain Transformers writes is read by the engine and written back byte for byte."""
    _, theirs = twins(family=family)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    found, expected = (load_file(tmp_path / who / "model.safetensors") for who in ("ours", "theirs"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert_same_step(ours.train(), theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours)


@families
def test_generates_the_same(family):
    ours, theirs = (model.eval() for model in twins(family=family))
    arguments = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(ours.generate(IDS, **arguments), theirs.generate(IDS, **arguments))


def test_pickled_models_load_in_another_process(tmp_path):
    for family in FAMILIES:
        with open(tmp_path / family, "wb") as file:
            pickle.dump(twins(family=family)[0], file)
    code = (
        "import pickle, sys, torch\n"
        "for path in sys.argv[1:]:\n"
        "    model, ids = pickle.load(open(path, 'rb')), torch.arange(3, 12)[None]\n"
        "    model(ids, labels=ids).loss.backward()\n"
        "    import phalanx; assert phalanx.explain(model).fused == 6, phalanx.explain(model)\n"
    )
    paths = [str(tmp_path / family) for family in FAMILIES]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, timeout=120)


def test_noise_on_the_routers_input_is_left_to_transformers():
    """It is drawn from torch's generator, as in plain Transformers."""
    ours, theirs = twins(family="mixtral", router_jitter_noise=0.1)
    losses = []
    for model in (ours, theirs):
        torch.manual_seed(5)
        losses.append(model(input_ids=IDS, labels=IDS).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert fallbacks(ours) == {"experts": {"noise on the router's input"}}
