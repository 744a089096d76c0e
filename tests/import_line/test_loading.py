"""from_pretrained and save_pretrained against plain Transformers: the same model, the same files, the same reports."""

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from twins import IDS_SHAPE, assert_fused, assert_same_step, tokens, twins

from phalanx import AutoModelForCausalLM
from phalanx.explanation import log


@pytest.fixture
def messages():
    """What the import line says."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    yield records
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.fixture
def folder(tmp_path):
    twins()[1].save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load_both(folder, **arguments):
    return (
        AutoModelForCausalLM.from_pretrained(folder, **arguments),
        transformers.AutoModelForCausalLM.from_pretrained(folder, **arguments),
    )


def assert_same_state(ours, theirs):
    found, expected = ours.state_dict(), theirs.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    for (name, buffer), (_, other) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert torch.equal(buffer, other), name
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
    assert ours.training == theirs.training
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"dtype": torch.bfloat16},
        {"dtype": "bfloat16"},
        {"dtype": torch.float64},
        {"dtype": "auto"},
        {"attn_implementation": "eager"},
        {"experts_implementation": "eager"},
        {"device_map": "cpu"},
        {"use_safetensors": True},
        {"local_files_only": True},
        {"low_cpu_mem_usage": True},
        {"trust_remote_code": False},
        {"output_router_logits": True},
        {"torch_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_arguments_that_the_engine_honours(folder, messages, arguments):
    ours, theirs = load_both(folder, **arguments)
    assert_same_state(ours, theirs)
    assert ours.config.to_dict() == theirs.config.to_dict()
    assert ours.config._attn_implementation == theirs.config._attn_implementation
    assert ours.config._experts_implementation == theirs.config._experts_implementation
    assert [message for message in messages if "weights read" in message] == [
        f"Qwen3MoeForCausalLM: weights read by the engine from {folder}"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"dtype": torch.float16},
        {"key_mapping": {"^nothing": "something"}},
    ],
    ids=str,
)
def test_arguments_that_go_to_transformers(folder, messages, arguments):
    assert_same_state(*load_both(folder, **arguments))
    assert [message for message in messages if "read by Transformers: " in message]


def test_a_state_dict_that_is_given(folder, messages):
    ours, theirs = load_both(folder)
    state = {name: 2 * tensor for name, tensor in theirs.state_dict().items()}
    loaded = [
        type(model).from_pretrained(None, state_dict=dict(state), config=model.config)
        for model in (ours, theirs)
    ]
    assert_same_state(*loaded)
    assert any("given as a state dict" in message for message in messages)


def test_a_loaded_model_trains_fused(folder):
    ours, theirs = (model.train() for model in load_both(folder))
    ids = tokens(*IDS_SHAPE)
    assert_same_step(ours, theirs, input_ids=ids, labels=ids)
    assert_fused(ours)
    q, k, v = (getattr(ours.model.layers[0].self_attn, f"{kind}_proj").weight for kind in "qkv")
    assert k.data_ptr() == q.data_ptr() + q.nbytes and v.data_ptr() == k.data_ptr() + k.nbytes


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("arguments", [{}, {"max_shard_size": "20KB"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saving_writes_the_same_files(folder, tmp_path, arguments, dtype):
    ours, theirs = load_both(folder, dtype=dtype)
    ours.save_pretrained(tmp_path / "ours", **arguments)
    theirs.save_pretrained(tmp_path / "theirs", **arguments)
    found, expected = files_of(tmp_path / "ours"), files_of(tmp_path / "theirs")
    assert list(found) == list(expected)
    for name, content in expected.items():
        assert found[name] == content, name
    assert json.loads(found["config.json"])["architectures"] == ["Qwen3MoeForCausalLM"]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert_same_state(again, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs"))


def test_tied_weights(tmp_path):
    twins(tie_word_embeddings=True)[1].save_pretrained(tmp_path)
    ours, theirs = load_both(tmp_path)
    assert_same_state(ours, theirs)
    assert ours.lm_head.weight is ours.model.embed_tokens.weight


def changed(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
DAMAGES = {
    "missing": lambda tensors: tensors.pop("model.layers.0.self_attn.q_proj.weight"),
    "unexpected": lambda tensors: tensors.update({"model.layers.0.extra.weight": torch.zeros(3)}),
    "other part": lambda tensors: tensors.update({"mtp.extra.weight": torch.zeros(3)}),
    "mismatched": lambda tensors: tensors.update({"model.norm.weight": torch.zeros(5)}),
    "missing expert": lambda tensors: tensors.pop(EXPERT),
}


def outcome(auto, folder, **arguments):
    """What a load reports, or how it fails."""
    torch.manual_seed(0)
    try:
        _, info = auto.from_pretrained(folder, output_loading_info=True, **arguments)
    except Exception as error:
        return type(error), str(error)
    return {name: sorted(map(str, keys)) for name, keys in info.items()}


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_checkpoints_that_do_not_fit_are_reported_alike(folder, damage, ignore):
    changed(folder, DAMAGES[damage])
    arguments = {"ignore_mismatched_sizes": True} if ignore else {}
    found = outcome(AutoModelForCausalLM, folder, **arguments)
    assert found == outcome(transformers.AutoModelForCausalLM, folder, **arguments)


def test_a_folder_that_is_not_there():
    found, expected = (
        outcome(auto, "no/such/model") for auto in (AutoModelForCausalLM, transformers.AutoModelForCausalLM)
    )
    assert found == expected and found[0] is OSError


def test_unknown_arguments_are_errors(folder):
    found, expected = (
        outcome(auto, folder, nonsense=1)
        for auto in (AutoModelForCausalLM, transformers.AutoModelForCausalLM)
    )
    assert found == expected and found[0] is TypeError


def test_pickled_weights(folder, messages):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert_same_state(*load_both(folder))
    assert any("not in safetensors files" in message for message in messages)


def test_merged_experts(folder, tmp_path):
    """A folder that holds the experts of a layer as one tensor, as the model does."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    save_file(theirs.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    ours, theirs = load_both(folder)
    assert_same_state(ours, theirs)
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "theirs")


def test_other_families_and_plain_transformers_are_untouched(folder):
    llama = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    assert type(AutoModelForCausalLM.from_config(llama)) is transformers.LlamaForCausalLM
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(plain) is transformers.Qwen3MoeForCausalLM
    assert {type(module).__module__.split(".")[0] for module in plain.modules()} == {"torch", "transformers"}
