"""The memory plan of a run on a GPU against what the run allocated at most."""

import json
import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from chat_data import write_chat_model
from finetune_run import finetune, metrics, write_chats

pytestmark = pytest.mark.gpu

SETTINGS = {
    "little of everything": {
        "train.precision": "bf16_stochastic",
        "optimizer.states": "8bit",
        "optimizer.update": "in_backward",
        "optimizer.clip_norm": 0,
        "train.recompute": "full",
        "train.micro_batch_size": 32,
    },
    "much of everything": {
        "train.precision": "bf16_master",
        "optimizer.states": "bf16",
        "train.accumulation": 2,
        "train.micro_batch_size": 16,
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A billion parameters."""
    folder = write_chat_model(tmp_path_factory.mktemp("model"))
    config = Qwen3MoeConfig(
        vocab_size=32000,
        hidden_size=1024,
        moe_intermediate_size=320,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=64,
        num_experts_per_tok=8,
        max_position_embeddings=1024,
    )
    with torch.device("cuda"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    torch.cuda.empty_cache()
    return folder


@pytest.fixture(scope="module")
def data(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    chats = write_chats(folder / "chats.jsonl", 6000)
    subprocess.run(
        ["phalanx", "prepare", "--model", model, "--data", chats, "--output", folder / "tokens"], check=True
    )
    return folder / "tokens"


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_allocates_what_was_planned(model, data, tmp_path, setting):
    fields = SETTINGS[setting] | {"train.device": "cuda", "data.sequence_length": 1024, "train.max_steps": 2}
    sets = [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]
    shown = subprocess.run(
        ["phalanx", "plan", "--json", "--model", model, *sets], capture_output=True, text=True, check=True
    )
    plan = json.loads(shown.stdout)
    finetune(model, data, tmp_path / "run", export_model=False, **fields)
    held = metrics(tmp_path / "run")[-1]["gpu_allocated_bytes"]
    planned = plan["total_bytes"] - plan["bytes"]["engine"]
    print(f"{setting}: planned {planned / 2**30:.2f} GiB, allocated {held / 2**30:.2f} GiB")
    assert planned == pytest.approx(held, rel=0.05)
