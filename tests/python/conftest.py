"""What the tests of bad input share: a good model, and a job on a copy of it."""

import json

import pytest

from bad_input import Job
from chat_data import write_chat_model


@pytest.fixture(scope="session")
def good_model(tmp_path_factory):
    """A tiny Qwen3-MoE with a tokenizer, written by Transformers."""
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    folder = tmp_path_factory.mktemp("good") / "model"
    write_chat_model(folder)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=128,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def job(tmp_path, good_model):
    return Job(tmp_path, good_model)
