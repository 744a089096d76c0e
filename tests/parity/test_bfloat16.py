"""Every family in bf16 against Transformers in fp32 with the same weights, the choice of experts replayed."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from batches import make_batch
from engine_library import load_engine
from families import FAMILIES
from oracle import random_model
from oracle import run as run_oracle

load_engine()


def choices(model, batch):
    """The experts [T, K] of each token, layer by layer."""
    chosen = []
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    hooks = [gate.register_forward_hook(lambda _, __, out: chosen.append(out[2].int())) for gate in gates]
    with torch.no_grad():
        model(**batch.inputs, use_cache=False)
    for hook in hooks:
        hook.remove()
    return chosen


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_in_bf16_point_where_those_in_fp32_point(family, tmp_path):
    config_class, base, _ = FAMILIES[family]
    model = random_model(config_class(**base), 0).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    model = model.float()
    batch = make_batch("rows", base["vocab_size"], 0)
    routing = choices(model, batch)
    loss, _, gradients = run_oracle(model, batch)
    engine = torch.classes.phalanx.CausalLM(str(tmp_path), "bfloat16")
    output = engine.forward(batch.tokens(), batch.shifted_labels(), batch.lengths, None, routing)
    output["loss"].backward()
    assert output["loss"].item() == pytest.approx(loss.item(), rel=5e-3)
    cosines = {
        name: cosine_similarity(parameter.grad.float().flatten(), gradients[name].flatten(), dim=0).item()
        for name, parameter in engine.parameters().items()
    }
    assert {name: cosine for name, cosine in cosines.items() if not cosine > 0.9995} == {}
