"""The memory plan against what a training process really held."""

import json
import os
import subprocess

import pytest
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from bad_input import run_phalanx
from chat_data import write_chat_model
from finetune_run import finetune_command, write_chats

BATCH = {"data.sequence_length": 256, "train.micro_batch_size": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Sixty million parameters, so that they count for more than the engine's own memory."""
    folder = write_chat_model(tmp_path_factory.mktemp("model"))
    config = Qwen3MoeConfig(
        vocab_size=json.loads((folder / "config.json").read_text())["vocab_size"],
        hidden_size=512,
        moe_intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=24,
        num_experts_per_tok=4,
        max_position_embeddings=256,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    chats = write_chats(folder / "chats.jsonl", 200)
    done = run_phalanx("prepare", "--model", model, "--data", chats, "--output", folder / "tokens")
    assert done.returncode == 0, done.stderr
    return folder / "tokens"


def planned_bytes(model, fields):
    sets = [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]
    done = run_phalanx("plan", "--json", "--model", model, *sets)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["total_bytes"]


def peak_bytes(command):
    """Largest resident memory of the process: loading, steps, checkpoint and export."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.parametrize(
    ("precision", "accumulation", "least"),
    [("fp32", 1, 0.7), pytest.param("bf16_master", 2, 0.5, marks=pytest.mark.slow)],
)
def test_a_run_holds_what_was_planned(model, data, tmp_path, precision, accumulation, least):
    fields = BATCH | {"train.precision": precision, "train.accumulation": accumulation}
    command = finetune_command(model, data, tmp_path / "run", **fields, **{"train.max_steps": 2})
    share = peak_bytes(command) / planned_bytes(model, fields)
    assert least <= share <= 1.0
