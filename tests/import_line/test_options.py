"""What from_pretrained and from_config take beyond Transformers' arguments: backend, distributed_setup, device_mesh."""

import pytest
import torch
import transformers
from twins import LAYERS, assert_fused, assert_same_step, tiny_config, tokens, twins

from phalanx import AutoModelForCausalLM, BackendConfig, DistributedSetup, create_distributed_setup, explain

IDS = tokens(2, 12)


def made(theirs, **arguments):
    model = AutoModelForCausalLM.from_config(theirs.config, **arguments)
    model.load_state_dict(theirs.state_dict())
    return model.train()


@pytest.mark.parametrize(
    "backend",
    [
        BackendConfig(),
        BackendConfig(attn="sdpa", linear="torch", rms_norm="phalanx", experts="eager", dispatcher="local"),
        {"experts": "batched_mm"},
        {"attn": "eager"},
    ],
    ids=str,
)
def test_backends_give_the_same_step(backend):
    theirs = twins()[1]
    ours = made(theirs, backend=backend)
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours)


def test_a_backend_is_heeded():
    theirs = twins()[1]
    ours = made(theirs, backend=BackendConfig(attn="eager", experts="batched_mm"))
    assert ours.config._attn_implementation == "eager"
    assert [layer.phalanx_experts for layer in ours.model.layers] == ["batched_mm"] * LAYERS
    assert {layer.phalanx_experts for layer in made(theirs).model.layers} == {"auto"}


def test_a_backend_for_a_folder(tmp_path):
    theirs = twins()[1]
    theirs.save_pretrained(tmp_path)
    arguments = dict(backend={"experts": "batched_mm"}, attn_implementation="sdpa", output_loading_info=True)
    ours, info = AutoModelForCausalLM.from_pretrained(tmp_path, **arguments)
    assert not info["missing_keys"]
    assert ours.model.layers[0].phalanx_experts == "batched_mm"
    assert_same_step(ours.train(), theirs, input_ids=IDS, labels=IDS)


def test_own_kernels_are_refused_where_they_do_not_run():
    ours = made(twins()[1], backend={"experts": "phalanx"})
    with pytest.raises(RuntimeError, match=r"experts_implementation phalanx .*Use eager, batched_mm or auto"):
        ours(IDS, labels=IDS)


REFUSED = {
    "implementation": (
        {"backend": {"experts": "te"}},
        ValueError,
        "backend: experts is 'te'; there are auto, eager, batched_mm, grouped_mm, phalanx",
    ),
    "attention": ({"backend": {"attn": "te"}}, ValueError, "attn is 'te'; there are auto, sdpa, eager"),
    "dispatcher": (
        {"backend": {"dispatcher": "deepep"}},
        ValueError,
        "dispatcher is 'deepep'; there are auto",
    ),
    "kind": ({"backend": {"rope": "torch"}}, ValueError, "there is no rope; there are attn, linear"),
    "type": ({"backend": "te"}, TypeError, "backend is a str; expected a BackendConfig or a dict"),
    "contradiction": (
        {"backend": {"attn": "eager"}, "attn_implementation": "sdpa"},
        ValueError,
        "attn is 'eager', but attn_implementation is 'sdpa'",
    ),
    "strategy": ({"distributed_setup": {"strategy": "ddp"}}, ValueError, "strategy is 'ddp'; there is fsdp2"),
    "experts": ({"distributed_setup": {"ep_size": 8}}, ValueError, "ep_size is 8"),
    "tensors": (
        {"distributed_setup": {"tp_size": 2}},
        ValueError,
        "tp_size is 2; tensor parallelism is not there",
    ),
    "ranks": (
        {"distributed_setup": {"dp_size": 4}},
        ValueError,
        "dp_size is 4, but torchrun started 1 ranks",
    ),
    "copies": ({"distributed_setup": {"dp_replicate_size": 2}}, ValueError, "does not divide 1 ranks"),
    "option": (
        {"distributed_setup": {"moe": {}}},
        ValueError,
        "there is no moe; there are strategy, dp_size",
    ),
    "two meshes": (
        {"distributed_setup": {}, "device_mesh": object()},
        ValueError,
        "give one of distributed_setup and device_mesh",
    ),
    "unknown": ({"nonsense": 1}, TypeError, "nonsense"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused_by_name(case):
    arguments, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        AutoModelForCausalLM.from_config(tiny_config(), **arguments)


def test_a_backend_for_a_model_on_transformers_path():
    llama = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = AutoModelForCausalLM.from_config(llama, backend=BackendConfig(attn="eager"))
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="experts cannot be chosen for a LlamaForCausalLM"):
        AutoModelForCausalLM.from_config(llama, backend={"experts": "eager"})


def test_a_setup_for_one_rank_shards_nothing():
    theirs = twins()[1]
    setup = create_distributed_setup({"strategy": "fsdp2", "ep_size": 1, "activation_checkpointing": True})
    assert setup == DistributedSetup(activation_checkpointing=True)
    ours = made(theirs, distributed_setup=setup)
    assert type(ours.lm_head.weight) is torch.nn.Parameter
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert explain(ours).fused == 2 * 2 * LAYERS + 2
