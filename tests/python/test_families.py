"""Every registered family through every command: inspect, plan, finetune with packed rows, a resumed run, export."""

import json
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat_data import write_chat_model
from families import FAMILIES
from finetune_run import checkpoint, finetune, losses, metrics, write_chats


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def data(tokenizer, tmp_path_factory):
    """Forty chats, prepared."""
    folder = tmp_path_factory.mktemp("family-data")
    chats = write_chats(folder / "chats.jsonl", 40)
    subprocess.run(
        ["phalanx", "prepare", "--model", tokenizer, "--data", chats, "--output", folder / "tokens"],
        check=True,
    )
    return folder / "tokens"


@pytest.fixture(params=FAMILIES)
def model(request, tokenizer, tmp_path):
    """A tiny random model of the family, with a tokenizer."""
    config_class, base, _ = FAMILIES[request.param]
    vocab_size = len(AutoTokenizer.from_pretrained(tokenizer))
    config = config_class(**{**base, "vocab_size": vocab_size, "max_position_embeddings": 256})
    folder = shutil.copytree(tokenizer, tmp_path / request.param)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def report(*command):
    run = subprocess.run(["phalanx", *command, "--json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)


def test_a_family_through_every_command(model, data, tmp_path):
    peer = AutoModelForCausalLM.from_pretrained(model)
    inspected = report("inspect", model)
    assert inspected["architecture"] == type(peer).__name__
    assert inspected["parameters"] == sum(parameter.numel() for parameter in peer.parameters())
    assert inspected["problems"] == "" and inspected["carried_through"] == []
    planned = report("plan", "--model", model, "--sequence-length", "64", "--precision", "fp32")
    held = sum(tensor.numel() for tensor in peer.state_dict().values())  # with buffers
    assert planned["bytes"]["weights"] == 4 * held

    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    fields = {"train__max_steps": 60, "checkpoint__every_steps": 40, "data__packing": True}
    finetune(model, data, whole, train__micro_batch_size=4, **fields)
    curve = losses(whole)
    assert curve[60] < 0.7 * curve[1]
    assert metrics(whole)[0]["tokens"] > 0.7 * 4 * 64  # rows hold more than one chat
    (resumed / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / "config.json", resumed)
    shutil.copytree(checkpoint(whole, 40), checkpoint(resumed, 40))
    finetune(model, data, resumed, train__micro_batch_size=4, **fields)
    assert losses(resumed) == {step: loss for step, loss in curve.items() if step > 40}

    subprocess.run(["phalanx", "export", checkpoint(whole, 40), "--output", tmp_path / "step-40"], check=True)
    for exported, step in ((whole / "model", 60), (tmp_path / "step-40", 40)):
        loaded, loading = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
        assert not loading["missing_keys"] and not loading["unexpected_keys"]
        trained = load_file(checkpoint(whole, step) / "model.safetensors")
        assert all(torch.equal(tensor, trained[name]) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize("precision", ["bf16_master", "bf16_stochastic"])
def test_a_family_resumes_bitwise_in_bf16(model, data, tmp_path, precision):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    fields = {"train__precision": precision, "train__accumulation": 2, "train__max_steps": 8}
    finetune(model, data, whole, **fields)
    (resumed / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / "config.json", resumed)
    shutil.copytree(checkpoint(whole, 5), checkpoint(resumed, 5))
    finetune(model, data, resumed, **fields)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (checkpoint(whole, 8) / name).read_bytes() == (checkpoint(resumed, 8) / name).read_bytes(), (
            name
        )
    trained = load_file(checkpoint(whole, 8) / "model.safetensors")
    exported = AutoModelForCausalLM.from_pretrained(whole / "model", dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, trained[name].float()) for name, tensor in exported.items())
