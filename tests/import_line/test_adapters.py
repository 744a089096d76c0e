"""PEFT and other changes of a model's parts: honoured on Transformers' path by the half they touch, and by no other."""

import copy

import peft
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils import parametrize, prune
from torchao.quantization import Int8WeightOnlyConfig, quantize_
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

IDS = tokens(2, 12)
EXPERT_TENSORS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# The configuration of an adapter -> which kinds of work it leaves fused.
ADAPTERS = {
    "q and v": (LoraConfig(target_modules=["q_proj", "v_proj"]), {"experts", "norm", "head and loss"}),
    "dora": (LoraConfig(target_modules=["q_proj"], use_dora=True), {"experts", "norm", "head and loss"}),
    "dropout": (
        LoraConfig(target_modules=["o_proj"], lora_dropout=0.0),
        {"experts", "norm", "head and loss"},
    ),
    "experts": (
        LoraConfig(target_modules=[], target_parameters=EXPERT_TENSORS),
        {"attention", "norm", "head and loss"},
    ),
    "all-linear": (LoraConfig(target_modules="all-linear"), {"norm", "head and loss"}),
    "norms saved": (
        LoraConfig(target_modules=["q_proj"], modules_to_save=["post_attention_layernorm"]),
        {"norm", "head and loss"},
    ),
    "head saved": (
        LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
        {"experts", "norm", "head and loss"},
    ),
    "ia3": (
        peft.IA3Config(target_modules=["k_proj", "v_proj"], feedforward_modules=[]),
        {"experts", "norm", "head and loss"},
    ),
}


def adapted(models, config):
    """Both models with the same adapter, whose product is not zero."""
    wrapped = []
    for model in models:
        torch.manual_seed(3)
        wrapped.append(get_peft_model(model, copy.deepcopy(config)))
    with torch.no_grad():
        for name, parameter in wrapped[1].named_parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter + 0.1 * torch.randn_like(parameter))
                wrapped[0].get_parameter(name).copy_(parameter)
    return wrapped


def fused_kinds(model):
    return {row.name.split(" ", 1)[1] for row in explain(model).rows if row.calls.fused}


@pytest.mark.parametrize("case", ADAPTERS)
def test_an_adapter_trains_as_with_plain_transformers(case):
    config, fused = ADAPTERS[case]
    ours, theirs = adapted(twins(), config)
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert all((p.grad is not None) == p.requires_grad for p in ours.parameters())
    assert fused_kinds(ours) == fused
    assert set(fallbacks(ours)) == {"attention", "experts", "norm", "head and loss"} - fused


@pytest.mark.parametrize("case", ["q and v", "experts", "all-linear"])
def test_merging_an_adapter_brings_fused_back(case):
    ours, theirs = (model.merge_and_unload() for model in adapted(twins(), ADAPTERS[case][0]))
    for model in (ours, theirs):
        model.requires_grad_()
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours)


def test_an_adapter_that_is_switched_off_merged_or_exchanged():
    ours, theirs = adapted(twins(), ADAPTERS["q and v"][0])
    for model in (ours, theirs):
        torch.manual_seed(4)
        model.add_adapter("second", LoraConfig(target_modules=["k_proj"], init_lora_weights=False))
    losses = []
    for model in (ours, theirs):
        model.set_adapter("second")
        losses.append([model(IDS, labels=IDS).loss])
        with model.disable_adapter():
            losses[-1].append(model(IDS, labels=IDS).loss)
        model.merge_adapter(["default"])
        losses[-1].append(model(IDS, labels=IDS).loss)
        model.unmerge_adapter()
    for found, expected in zip(*losses, strict=True):
        assert relative_error(found, expected) <= 1e-5
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)


def test_transformers_own_adapters(tmp_path):
    models = twins()
    lora = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    refused = [outcome(model.add_adapter, lora) for model in twins()]
    assert refused[0] == refused[1]
    if refused[1] is not None:  # by Transformers, which asks for a newer PEFT
        return
    for model in models:
        torch.manual_seed(3)
        model.add_adapter(lora)
    assert_same_step(*models, input_ids=IDS, labels=IDS)
    assert set(fallbacks(models[0])) == {"attention"}
    for model, name in zip(models, ("ours", "theirs"), strict=True):
        model.save_pretrained(tmp_path / name)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    fresh = twins()
    for model in fresh:
        model.load_adapter(tmp_path / "theirs")
        model.train().requires_grad_()
    assert_same_step(*fresh, input_ids=IDS, labels=IDS)
    with torch.no_grad():
        assert torch.equal(fresh[1](IDS).logits, models[1](IDS).logits)


def outcome(function, *arguments):
    """What a call gives, or the words with which it fails."""
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_an_adapters_folder_is_loaded_with_its_model(tmp_path):
    ours, theirs = twins()
    theirs.save_pretrained(tmp_path / "base")
    wrapped = get_peft_model(theirs, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    wrapped.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    wrapped.save_pretrained(tmp_path / "adapter")
    loaded = [outcome(type(model).from_pretrained, tmp_path / "adapter") for model in (ours, theirs)]
    if isinstance(loaded[1], str):  # refused by Transformers, which asks for a newer PEFT
        assert loaded[0] == loaded[1]
        return
    for model in loaded:
        model.train().requires_grad_()
    found, expected = (model(IDS, labels=IDS) for model in loaded)
    assert relative_error(found.loss, expected.loss) <= 1e-5
    assert relative_error(found.loss, wrapped(IDS, labels=IDS).loss) <= 1e-5
    assert set(fallbacks(loaded[0])) == {"attention"}


class Halved(torch.nn.Module):
    def forward(self, weight):
        return 0.5 * weight


def hook(layer):
    layer.self_attn.v_proj.register_forward_hook(lambda module, args, output: 2 * output)


def pre_hook(layer):
    layer.mlp.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def backward_hook(layer):
    layer.self_attn.o_proj.register_full_backward_hook(lambda module, before, after: (2 * before[0],))


def parametrized(layer):
    parametrize.register_parametrization(layer.self_attn.v_proj, "weight", Halved())


def pruned(layer):
    prune.l1_unstructured(layer.self_attn.o_proj, "weight", amount=0.5)


def own_forward(layer):
    norm = layer.post_attention_layernorm
    norm.forward = lambda hidden: 2 * type(norm).forward(norm, hidden)


def other_activation(layer):
    layer.mlp.experts.act_fn = torch.nn.GELU()


def other_scaling(layer):
    layer.self_attn.scaling *= 2


def other_top_k(layer):
    layer.mlp.gate.top_k = 3


def other_epsilon(layer):
    layer.input_layernorm.variance_epsilon = 0.1
    layer.self_attn.q_norm.variance_epsilon = 0.2


def a_bias(layer):
    layer.self_attn.q_proj.bias = torch.nn.Parameter(torch.linspace(-1, 1, 32))


def an_own_module(layer):
    layer.self_attn.o_proj = torch.nn.Sequential(layer.self_attn.o_proj, torch.nn.Tanh())


def an_own_subclass(layer):
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer.self_attn.v_proj.__class__ = Doubled


# Change -> the half of the first layer that goes to Transformers' path; None where the engine computes it all the same.
CHANGES = {
    hook: "attention",
    pre_hook: "experts",
    backward_hook: "attention",
    parametrized: "attention",
    pruned: "attention",
    own_forward: "experts",
    other_activation: "experts",
    other_scaling: None,
    other_top_k: None,
    other_epsilon: "attention",
    a_bias: None,
    an_own_module: "attention",
    an_own_subclass: "attention",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_part_is_honoured(change):
    ours, theirs = twins()
    plain = ours(IDS, labels=IDS).loss
    explain(ours).reset()
    for model in (ours, theirs):
        change(model.model.layers[0])
    found, _ = assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert change is backward_hook or relative_error(found.loss, plain) > 1e-4
    half = CHANGES[change]
    assert set(fallbacks(ours)) == ({half} if half else set())
    assert explain(ours).fused == 2 * LAYERS + 2 - (half is not None)


def test_a_hook_on_all_modules():
    ours, theirs = twins()
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *rest: seen.append(type(module))
    )
    try:
        assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    finally:
        handle.remove()
    assert seen.count(torch.nn.Linear) >= 2 * 4 * LAYERS
    assert set(fallbacks(ours)) >= {"attention", "experts"}


def test_hooks_on_a_layer_or_the_model_leave_it_fused():
    ours, theirs = twins()
    for model in (ours, theirs):
        model.model.layers[0].register_forward_hook(lambda module, args, output: 2 * output)
        model.model.register_forward_pre_hook(lambda module, args: None)
        model.model.layers[1].mlp.experts.down_proj.register_hook(lambda gradient: 3 * gradient)
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours)


def test_a_bias_added_to_the_head():
    ours, theirs = twins()
    for model in (ours, theirs):
        model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1, 1, 96))
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert fallbacks(ours) == {"head and loss": {"the head has a bias"}}


def test_quantised_tensors():
    ours, theirs = twins()
    for model in (ours, theirs):
        model.requires_grad_(False)
        quantize_(model, Int8WeightOnlyConfig(), lambda module, name: name.endswith(("q_proj", "v_proj")))
        model.model.embed_tokens.weight.requires_grad_()
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert set(fallbacks(ours)) == {"attention"}
    assert_same_gradients(ours, theirs)
