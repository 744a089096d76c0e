"""Checkpoints that Transformers and safetensors wrote come back byte for byte, and Transformers reads what we write."""

import json
import pathlib
import subprocess
import time

import pytest
import safetensors.torch
import torch
import transformers

from tree import BUILD

TOOL = BUILD / "bin" / "checkpoint_copy"


def make_model(folder: pathlib.Path, dtype=torch.bfloat16, tied=False, merged=False, **save_arguments):
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=6,
        num_experts_per_tok=2,
        mlp_only_layers=[1],
        tie_word_embeddings=tied,
    )
    model = transformers.Qwen3MoeForCausalLM(config).to(dtype)
    model.save_pretrained(folder, save_original_format=not merged, **save_arguments)
    return model


def copy(source: pathlib.Path, target: pathlib.Path, *options: str) -> dict:
    run = subprocess.run([TOOL, source, target, *options], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def tensors(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out |= safetensors.torch.load_file(path)
    return out


def assert_same(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("merged", [False, True], ids=["per-expert", "merged"])
@pytest.mark.parametrize("memory", ["BF16", "F32"])
def test_a_single_file_comes_back_byte_for_byte(tmp_path, tied, merged, memory):
    make_model(tmp_path / "in", tied=tied, merged=merged)
    names = tensors(tmp_path / "in").keys()
    assert ("model.layers.0.mlp.experts.5.up_proj.weight" in names) != merged
    copy(tmp_path / "in", tmp_path / "out", "--memory", memory)
    for path in (tmp_path / "in").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in (tmp_path / "in").iterdir()}


def test_shards_come_back_with_the_same_tensors_and_an_index_transformers_accepts(tmp_path):
    model = make_model(tmp_path / "in", max_shard_size="40KB")
    copy(tmp_path / "in", tmp_path / "out", "--shard-bytes", "40000")
    assert_same(tensors(tmp_path / "out"), tensors(tmp_path / "in"))
    theirs = json.loads((tmp_path / "in/model.safetensors.index.json").read_text())
    text = (tmp_path / "out/model.safetensors.index.json").read_text()
    ours = json.loads(text)
    assert ours["metadata"] == theirs["metadata"]
    assert ours["weight_map"].keys() == theirs["weight_map"].keys()
    assert len(set(ours["weight_map"].values())) > 2
    assert text == json.dumps(ours, indent=2, sort_keys=True) + "\n"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_same(again.state_dict(), model.state_dict())


@pytest.mark.parametrize("layout", ["released", "merged"])
def test_transformers_reads_both_layouts(tmp_path, layout):
    model = make_model(tmp_path / "in", dtype=torch.float32)
    copy(tmp_path / "in", tmp_path / "out", "--layout", layout)
    assert ("model.layers.0.mlp.experts.gate_up_proj" in tensors(tmp_path / "out")) == (layout == "merged")
    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert_same(again.state_dict(), model.state_dict())


def test_another_dtype_is_rounded_as_torch_rounds(tmp_path):
    make_model(tmp_path / "in", dtype=torch.float32)
    wanted = tensors(tmp_path / "in")
    for name, dtype in {"BF16": torch.bfloat16, "F16": torch.float16}.items():
        copy(tmp_path / "in", tmp_path / name, "--dtype", name)
        assert_same(tensors(tmp_path / name), {k: v.to(dtype) for k, v in wanted.items()})
        assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).dtype == dtype


def test_parts_that_are_not_trained_are_kept(tmp_path):
    make_model(tmp_path / "in")
    path = tmp_path / "in/model.safetensors"
    extra = {
        "mtp.fc.weight": torch.randn(5, 7),
        "model.layers.3.x.weight": torch.randn(3).to(torch.float8_e4m3fn),
    }
    safetensors.torch.save_file(safetensors.torch.load_file(path) | extra, path, {"format": "pt"})
    copy(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == path.read_bytes()


def test_a_config_that_does_not_belong_to_the_weights_is_named(tmp_path):
    make_model(tmp_path / "in")
    config = json.loads((tmp_path / "in/config.json").read_text())
    config["num_experts"] = 5
    (tmp_path / "in/config.json").write_text(json.dumps(config))
    run = subprocess.run([TOOL, tmp_path / "in", tmp_path / "out"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "0 missing, 2 misshaped, 6 surplus" in run.stderr
    assert "surplus: 'model.layers.0.mlp.experts.5.up_proj.weight'" in run.stderr
    assert "misshaped: 'model.layers.2.mlp.gate.weight'" in run.stderr
    assert not (tmp_path / "out").exists()


def test_a_killed_save_leaves_the_whole_model_or_none(tmp_path):
    make_model(tmp_path / "in", max_shard_size="10KB")
    wanted = tensors(tmp_path / "in")
    start = time.monotonic()
    copy(tmp_path / "in", tmp_path / "whole", "--shard-bytes", "10000")
    duration = time.monotonic() - start
    published = []
    for attempt in range(16):
        target = tmp_path / f"out{attempt}"
        process = subprocess.Popen([TOOL, tmp_path / "in", target, "--shard-bytes", "10000"])
        time.sleep(duration * attempt / 12)
        process.kill()
        process.wait()
        published.append(target.exists())
        if target.exists():
            assert_same(tensors(target), wanted)
            assert (target / "config.json").exists()
    assert not published[0]  # killed at once
