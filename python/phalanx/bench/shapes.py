"""The models that are measured: shapes of released ones, with weights made up on the spot."""

from __future__ import annotations

import zlib

import torch

MODELS = {
    "qwen3-30b-a3b": dict(
        model_type="qwen3_moe",
        architectures=["Qwen3MoeForCausalLM"],
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
    "tiny": dict(
        model_type="qwen3_moe",
        architectures=["Qwen3MoeForCausalLM"],
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
}
INITIAL_RANGE = 0.02


def model_config(name: str, layers: int | None, dtype: str) -> dict:
    config = dict(MODELS[name], dtype=dtype)
    if layers is not None:
        config["num_hidden_layers"] = layers
    return config


def fill(name: str, parameter: torch.Tensor) -> None:
    """Random values that depend on the parameter's name alone; weights of norms are ones."""
    with torch.no_grad():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            return
        generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(name.encode()))
        parameter.normal_(0.0, INITIAL_RANGE, generator=generator)


def flops_per_token(config: dict, sequence: int) -> float:
    """Model FLOP of forward and backward: 6 per active weight, the attention core at half the square; no recompute."""
    hidden, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    projections = hidden * head_dim * 2 * (heads + config["num_key_value_heads"])
    router = hidden * config["num_experts"]
    experts = config["num_experts_per_tok"] * 3 * hidden * config["moe_intermediate_size"]
    core = 3 * 2 * sequence * heads * head_dim  # two products over S/2 keys, forward once and backward twice
    head = 6 * hidden * config["vocab_size"]
    return config["num_hidden_layers"] * (6 * (projections + router + experts) + core) + head
