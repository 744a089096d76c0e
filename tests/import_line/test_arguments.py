"""Tables of arguments of from_pretrained and from_config: the same models, reports and errors as Transformers."""

import copy
import json
import shutil

import pytest
import torch
import transformers
from twins import tiny_config, twins

from phalanx import AutoModelForCausalLM
from phalanx.explanation import log

OURS, THEIRS = AutoModelForCausalLM, transformers.AutoModelForCausalLM


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A folder with the model, and a folder within it that has it too."""
    folder = tmp_path_factory.mktemp("models") / "model"
    model = twins()[1]
    model.save_pretrained(folder)
    model.save_pretrained(folder / "inner")
    model.save_pretrained(folder / "shards", max_shard_size="20KB")
    model.save_pretrained(folder / "variants", variant="special")
    pickled = folder / "pickled"
    pickled.mkdir()
    shutil.copy(folder / "config.json", pickled)
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    return folder


def outcome(make, *args, **kwargs):
    """What a call makes, reduced to what can be compared, or how it fails."""
    torch.manual_seed(0)
    try:
        made = make(*args, **copy.deepcopy(kwargs))
    except Exception as error:
        return type(error), str(error)
    model, info = made if isinstance(made, tuple) else (made, None)
    tensors = {
        name: (tensor.dtype, tensor.device.type, tensor.requires_grad, tensor.tolist())
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if tensor.device.type != "meta"
    }
    return {
        "class": type(model).__name__,
        "tensors": tensors,
        "meta": [name for name, tensor in model.named_parameters() if tensor.is_meta],
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "experts": model.config._experts_implementation,
        "generation": model.generation_config.to_dict(),
        "device map": getattr(model, "hf_device_map", None),
        "training": model.training,
        "info": info and {name: sorted(map(str, keys)) for name, keys in info.items()},
    }


LOADED = [
    {},
    {"dtype": torch.bfloat16},
    {"dtype": "float32"},
    {"dtype": torch.float16},
    {"dtype": "auto"},
    {"dtype": "nonsense"},
    {"dtype": {"model": "bfloat16"}},
    {"torch_dtype": "bfloat16"},
    {"attn_implementation": "eager"},
    {"attn_implementation": {"": "eager"}},
    {"attn_implementation": "nonsense"},
    {"attn_implementation": "flash_attention_2"},
    {"experts_implementation": "batched_mm"},
    {"experts_implementation": "nonsense"},
    {"device_map": "cpu"},
    {"device_map": "auto"},
    {"device_map": {"": "cpu"}},
    {"device_map": {"": torch.device("cpu")}},
    {"device_map": {"model": "cpu"}},
    {"device_map": "nonsense"},
    {"device_map": "cpu", "max_memory": {"cpu": "1GB"}},
    {"device_map": {"": "meta"}},
    {"low_cpu_mem_usage": False},
    {"use_safetensors": True},
    {"use_safetensors": False},
    {"subfolder": "inner"},
    {"subfolder": "shards"},
    {"subfolder": "nothing"},
    {"subfolder": "pickled"},
    {"subfolder": "pickled", "use_safetensors": True},
    {"subfolder": "variants", "variant": "special"},
    {"variant": "special"},
    {"revision": "main"},
    {"output_loading_info": True},
    {"ignore_mismatched_sizes": True, "vocab_size": 90},
    {"vocab_size": 90},
    {"num_hidden_layers": 1, "output_loading_info": True},
    {"num_hidden_layers": 3, "output_loading_info": True},
    {"tie_word_embeddings": True, "output_loading_info": True},
    {"num_experts": 4},
    {"output_hidden_states": True, "return_dict": False},
    {"config": tiny_config(rms_norm_eps=0.1)},
    {"config": "nothing/there"},
    {"generation_config": transformers.GenerationConfig(max_new_tokens=3)},
    {"key_mapping": {"^nothing": "something"}, "output_loading_info": True},
    {"key_mapping": {r"^lm_head": "other"}, "output_loading_info": True},
    {"state_dict": {}},
    {"trust_remote_code": True},
    {"gguf_file": "nothing.gguf"},
    {"quantization_config": {"quant_method": "nonsense"}},
    {"tp_plan": "nonsense"},
    {"nonsense": 1},
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arguments", LOADED, ids=str)
def test_from_pretrained(parent, arguments):
    expected = outcome(THEIRS.from_pretrained, parent, **arguments)
    assert outcome(OURS.from_pretrained, parent, **arguments) == expected


MADE = [
    {},
    {"dtype": torch.bfloat16},
    {"torch_dtype": torch.float64},
    {"attn_implementation": "eager"},
    {"attn_implementation": "nonsense"},
    {"experts_implementation": "eager"},
    {"experts_implementation": "nonsense"},
    {"trust_remote_code": False},
    {"nonsense": 1},
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arguments", MADE, ids=str)
def test_from_config(arguments):
    expected = outcome(THEIRS.from_config, tiny_config(), **arguments)
    assert outcome(OURS.from_config, tiny_config(), **arguments) == expected


def test_positional_and_wrong_arguments():
    for arguments in ([], ["no/such/model"], [None], [tiny_config()], [3]):
        for name in ("from_pretrained", "from_config"):
            if name == "from_config" and arguments == [tiny_config()]:
                continue
            found, expected = (outcome(getattr(auto, name), *arguments) for auto in (OURS, THEIRS))
            assert found == expected, (name, arguments)
    found, expected = (outcome(auto) for auto in (OURS, THEIRS))
    assert found == expected and found[0] is OSError


def test_tensors_kept_on_disk_are_transformers_matter(parent, tmp_path, caplog):
    ids = torch.arange(3, 11)[None]
    logits = []
    with caplog.at_level("INFO", log.name):
        for auto in (OURS, THEIRS):
            device_map = {f"model.layers.{layer}": "disk" for layer in range(2)} | {
                name: "cpu" for name in ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
            }
            model = auto.from_pretrained(
                parent, device_map=device_map, offload_folder=tmp_path / str(len(logits))
            )
            with torch.no_grad():
                logits.append(model(ids).logits)
    assert torch.allclose(*logits, atol=1e-5)
    said = [record.getMessage() for record in caplog.records if "weights read" in record.getMessage()]
    assert said == [
        "Qwen3MoeForCausalLM: weights read by Transformers: they go to other devices than the CPU"
    ]


def test_a_float8_checkpoint(parent, tmp_path):
    """Dequantised by Transformers, or refused as by Transformers."""
    folder = tmp_path / "quantised"
    shutil.copytree(parent / "inner", folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    assert outcome(OURS.from_pretrained, folder) == outcome(THEIRS.from_pretrained, folder)
