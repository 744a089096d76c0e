"""Logits and every gradient against Transformers, fp32 on the CPU, on tiny random models of every registered family."""

import pytest
import torch
from engine import relative_error
from engine import run as run_engine

from batches import make_batch
from engine_library import load_engine
from families import FAMILIES, cases
from oracle import crowd_experts, model_with_margin
from oracle import run as run_oracle

load_engine()

TOLERANCE = 1e-5
CASES = list(cases())


def prepared(config, kind, name):
    prepare = crowd_experts if name == "crowded and idle experts" else None
    return model_with_margin(config, lambda seed: make_batch(kind, config.vocab_size, seed), prepare)


def differences(found, expected):
    """Every quantity that is off, with its error: empty when the two runs agree."""
    loss, logits, gradients = found
    expected_loss, expected_logits, expected_gradients = expected
    assert set(gradients) == set(expected_gradients)
    errors = {"loss": relative_error(loss, expected_loss), "logits": relative_error(logits, expected_logits)}
    for name, gradient in expected_gradients.items():
        wanted = gradient if gradient is not None else torch.zeros_like(found[2][name])
        errors[name] = relative_error(gradients[name], wanted)
    return {name: error for name, error in errors.items() if not error <= TOLERANCE}


def test_every_registered_family_is_judged():
    assert sorted(FAMILIES) == sorted(torch.ops.phalanx.registered_families())


@pytest.mark.parametrize("family, name, config, kind", CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_matches_transformers(family, name, config, kind, tmp_path):
    model, batch = prepared(config, kind, name)
    model.save_pretrained(tmp_path)
    engine = torch.classes.phalanx.CausalLM(str(tmp_path), "float32")
    assert differences(run_engine(engine, batch), run_oracle(model, batch)) == {}
    if name == "crowded and idle experts":
        gradient = engine.parameters()["model.layers.0.mlp.experts.down_proj"].grad
        assert gradient[0].abs().max() > 0 and gradient[1].abs().max() == 0


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_every_experts_implementation(experts, tmp_path):
    config_class, base, _ = FAMILIES["qwen3_moe"]
    model, batch = prepared(config_class(**base), "rows", "")
    model.save_pretrained(tmp_path)
    engine = torch.classes.phalanx.CausalLM(str(tmp_path), "float32", experts)
    assert differences(run_engine(engine, batch), run_oracle(model, batch)) == {}


def test_documents_do_not_see_each_other(tmp_path):
    config_class, base, _ = FAMILIES["qwen3_moe"]
    model, batch = prepared(config_class(**base), "packed", "")
    model.save_pretrained(tmp_path)
    engine = torch.classes.phalanx.CausalLM(str(tmp_path), "float32")
    before = engine.forward(batch.tokens(), None, batch.lengths)["logits"]
    changed = batch.tokens().clone()
    changed[: batch.lengths[0]] = (changed[: batch.lengths[0]] + 1) % base["vocab_size"]
    after = engine.forward(changed, None, batch.lengths)["logits"]
    first = batch.lengths[0]
    assert (before[:first] - after[:first]).abs().max() > 1e-2
    # Not bitwise: the first document's rows share the experts' products, whose rounding depends on the number of rows.
    assert (before[first:] - after[first:]).abs().max() <= 1e-6 * before.abs().max()


def test_the_check_notices_swapped_gate_and_up(tmp_path):
    """What a weight map with one rule swapped would load."""
    from safetensors.torch import load_file, save_file

    config_class, base, _ = FAMILIES["qwen3_moe"]
    model, batch = prepared(config_class(**base), "rows", "")
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    gate, up = (f"model.layers.1.mlp.experts.3.{kind}_proj.weight" for kind in ("gate", "up"))
    tensors[gate], tensors[up] = tensors[up].clone(), tensors[gate].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    engine = torch.classes.phalanx.CausalLM(str(tmp_path), "float32")
    assert "logits" in differences(run_engine(engine, batch), run_oracle(model, batch))


def test_the_check_notices_a_missing_gradient_term(tmp_path):
    """Without the auxiliary loss the logits are right and the routers' gradients are not."""
    config_class, base, _ = FAMILIES["qwen3_moe"]
    config = config_class(**base, output_router_logits=True, router_aux_loss_coef=0.1)
    model, batch = prepared(config, "rows", "")
    model.save_pretrained(tmp_path)
    engine = torch.classes.phalanx.CausalLM(str(tmp_path), "float32", "auto", 0.0)
    found = differences(run_engine(engine, batch), run_oracle(model, batch))
    assert "logits" not in found
    assert "model.layers.0.mlp.gate.weight" in found
