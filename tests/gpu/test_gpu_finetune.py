"""Training on a GPU through the real program: learning, and resuming to the bit."""

import shutil
import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig

from chat_data import write_chat_model
from finetune_run import checkpoint, finetune, losses, metrics, write_chats

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small random Qwen3-MoE whose sizes all kernels take."""
    folder = write_chat_model(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)),
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    chats = write_chats(folder / "chats.jsonl", 40)
    subprocess.run(
        ["phalanx", "prepare", "--model", model, "--data", chats, "--output", folder / "tokens"], check=True
    )
    return folder / "tokens"


@pytest.mark.parametrize("precision", ["fp32", "bf16_master", "bf16_stochastic"])
def test_learns_as_on_the_cpu(model, data, tmp_path, precision):
    fields = {"train__precision": precision, "train__max_steps": 60, "train__micro_batch_size": 4}
    for device in ("cpu", "cuda"):
        finetune(model, data, tmp_path / device, train__device=device, **fields)
    curve, expected = losses(tmp_path / "cuda"), losses(tmp_path / "cpu")
    assert curve[1] == pytest.approx(expected[1], rel=1e-5 if precision == "fp32" else 5e-3)
    assert curve[60] < 0.5 * curve[1]
    assert metrics(tmp_path / "cuda")[0]["grad_norm"] == pytest.approx(
        metrics(tmp_path / "cpu")[0]["grad_norm"], rel=1e-4 if precision == "fp32" else 2e-2
    )
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "cuda/model").config.hidden_size == 64


@pytest.mark.parametrize(("precision", "states"), [("bf16_master", "fp32"), ("bf16_stochastic", "8bit")])
def test_a_resumed_run_is_bitwise_equal_to_an_unbroken_one(model, data, tmp_path, precision, states):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    fields = {
        "train__device": "cuda",
        "train__deterministic": True,
        "train__precision": precision,
        "optimizer__states": states,
        "train__accumulation": 2,
        "export_model": False,
    }
    finetune(model, data, whole, **fields)
    (resumed / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / "config.json", resumed)
    shutil.copytree(checkpoint(whole, 5), checkpoint(resumed, 5))
    run = finetune(model, data, resumed, **fields)
    assert "resumed from" in run.stdout and "step 5 of 12" in run.stdout
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (checkpoint(whole, 12) / name).read_bytes() == (checkpoint(resumed, 12) / name).read_bytes()
    assert losses(resumed) == {step: loss for step, loss in losses(whole).items() if step > 5}


def test_updates_within_backward_and_recomputed_layers_change_no_bit(model, data, tmp_path):
    common = {
        "train__device": "cuda",
        "train__deterministic": True,
        "train__precision": "bf16_stochastic",
        "optimizer__states": "8bit",
        "optimizer__clip_norm": 0,
        "train__max_steps": 4,
        "export_model": False,
    }
    finetune(model, data, tmp_path / "plain", **common)
    for recompute in ("selective", "full"):
        run = tmp_path / recompute
        finetune(model, data, run, optimizer__update="in_backward", train__recompute=recompute, **common)
        for name in ("model.safetensors", "optimizer.safetensors"):
            ours, expected = (checkpoint(folder, 4) / name for folder in (run, tmp_path / "plain"))
            assert ours.read_bytes() == expected.read_bytes()
