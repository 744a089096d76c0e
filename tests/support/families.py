"""Tiny random configurations of every family, for the common suite. A new family adds what is particular to it here.

Each case is a name, keyword arguments of the family's Transformers config, and a kind of batch (see `batches.py`).
"""

from transformers import Glm4MoeConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig

# Fields that every family has.
COMMON_BASE = dict(
    vocab_size=97,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_experts_per_tok=2,
    max_position_embeddings=64,
    initializer_range=0.15,
)

# What every family must get right.
COMMON_CASES = [
    ("plain", {}, "rows"),
    ("multi-head", dict(num_key_value_heads=4), "rows"),
    ("multi-query", dict(num_key_value_heads=1), "rows"),
    ("every expert", dict(num_experts_per_tok=6), "rows"),
    ("tied head", dict(tie_word_embeddings=True), "rows"),
    ("large epsilon", dict(rms_norm_eps=0.1), "rows"),
    ("auxiliary loss", dict(output_router_logits=True, router_aux_loss_coef=0.5), "rows"),
    ("auxiliary loss, right padding", dict(output_router_logits=True, router_aux_loss_coef=0.5), "right padding"),
    ("left padding", {}, "left padding"),
    ("packed documents", dict(num_experts_per_tok=3), "packed"),
    ("packed documents, auxiliary loss", dict(output_router_logits=True, router_aux_loss_coef=0.3), "packed"),
    ("one token", {}, "one token"),
    ("padding token", dict(pad_token_id=5), "rows"),
    ("no padding token", dict(pad_token_id=None), "rows"),
    ("crowded and idle experts", {}, "rows"),
]  # fmt: skip

GLM4_MOE_BASE = dict(
    COMMON_BASE,
    intermediate_size=56,
    moe_intermediate_size=24,
    head_dim=16,
    n_routed_experts=6,
    first_k_dense_replace=0,
)

GLM4_MOE_CASES = [
    ("dense layers first", dict(num_hidden_layers=3, first_k_dense_replace=2), "rows"),
    ("groups of experts", dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3), "rows"),
    ("one group of experts counts", dict(n_routed_experts=9, n_group=3, topk_group=1), "packed"),
    ("scaled weights", dict(routed_scaling_factor=2.5), "rows"),
    ("no renormalisation", dict(norm_topk_prob=False, num_experts_per_tok=3), "rows"),
    ("norms of q and k, biases", dict(use_qk_norm=True, attention_bias=True), "rows"),
    ("two shared experts", dict(n_shared_experts=2), "rows"),
    ("a quarter of each head rotates", dict(rope_parameters=dict(rope_type="default", rope_theta=100.0,
                                                                 partial_rotary_factor=0.25)), "rows"),
    ("odd sizes", dict(hidden_size=44, moe_intermediate_size=20, n_routed_experts=5, head_dim=20,
                       vocab_size=101), "rows"),
]  # fmt: skip

MIXTRAL_BASE = dict(COMMON_BASE, intermediate_size=24, num_local_experts=6)

MIXTRAL_CASES = [
    ("odd sizes", dict(hidden_size=44, intermediate_size=20, num_local_experts=5, vocab_size=101,
                       num_attention_heads=2), "rows"),
    ("head size of its own", dict(head_dim=20), "rows"),
    ("sliding window", dict(sliding_window=5), "rows"),
    ("rope theta", dict(rope_parameters=dict(rope_type="default", rope_theta=100.0)), "rows"),
]  # fmt: skip

OLMOE_BASE = dict(COMMON_BASE, intermediate_size=24, num_experts=6)

OLMOE_CASES = [
    ("clipped projections", dict(clip_qkv=0.5), "rows"),
    ("clipped projections, packed documents", dict(clip_qkv=1.0, num_key_value_heads=1), "packed"),
    ("top-8 of 16", dict(num_experts=16, num_experts_per_tok=8), "rows"),
    ("top-1", dict(num_experts_per_tok=1), "rows"),
    ("renormalisation", dict(norm_topk_prob=True), "rows"),
    ("odd sizes", dict(hidden_size=44, intermediate_size=20, num_experts=5, num_attention_heads=2,
                       vocab_size=101), "rows"),
    ("attention bias", dict(attention_bias=True), "rows"),
]  # fmt: skip

QWEN2_MOE_BASE = dict(
    COMMON_BASE,
    intermediate_size=56,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=40,
    num_experts=6,
)

QWEN2_MOE_CASES = [
    ("renormalisation", dict(norm_topk_prob=True), "rows"),
    ("top-8 of 16", dict(num_experts=16, num_experts_per_tok=8), "rows"),
    ("odd sizes", dict(hidden_size=44, moe_intermediate_size=20, shared_expert_intermediate_size=12, num_experts=5,
                       num_attention_heads=2, vocab_size=101), "rows"),
    ("no biases", dict(qkv_bias=False), "rows"),
    ("no experts at all", dict(num_experts=0), "packed"),
    ("dense layers", dict(num_hidden_layers=4, mlp_only_layers=[1]), "rows"),
    ("every second layer sparse", dict(num_hidden_layers=4, decoder_sparse_step=2), "packed"),
    ("every second layer with a window", dict(num_hidden_layers=4, use_sliding_window=True, sliding_window=5,
                                              max_window_layers=2), "rows"),
    ("windows by layer types", dict(use_sliding_window=True, sliding_window=4,
                                    layer_types=["full_attention", "sliding_attention"]), "rows"),
]  # fmt: skip

QWEN3_MOE_BASE = dict(
    COMMON_BASE,
    intermediate_size=56,
    moe_intermediate_size=24,
    head_dim=16,
    num_experts=6,
    norm_topk_prob=True,
)

QWEN3_MOE_CASES = [
    ("many query heads", dict(num_key_value_heads=1, num_attention_heads=6, head_dim=8), "rows"),
    ("top-1", dict(num_experts_per_tok=1, norm_topk_prob=False), "rows"),
    ("top-8 of 8", dict(num_experts=8, num_experts_per_tok=8), "rows"),
    ("odd sizes", dict(hidden_size=44, moe_intermediate_size=20, num_experts=5, head_dim=10, vocab_size=101), "rows"),
    ("no renormalisation", dict(norm_topk_prob=False, num_experts_per_tok=3), "rows"),
    ("dense layers", dict(num_hidden_layers=4, mlp_only_layers=[1], decoder_sparse_step=1), "rows"),
    ("every second layer sparse", dict(num_hidden_layers=4, decoder_sparse_step=2), "rows"),
    ("no experts at all", dict(num_experts=0), "rows"),
    ("sliding window", dict(use_sliding_window=True, sliding_window=5), "rows"),
    ("attention bias", dict(attention_bias=True), "rows"),
    ("yarn", dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                       original_max_position_embeddings=16)), "rows"),
    ("linear rope scaling", dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)), "rows"),
    ("llama3 rope scaling", dict(rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0,
                                                      low_freq_factor=1.0, high_freq_factor=4.0,
                                                      original_max_position_embeddings=16)), "rows"),
]  # fmt: skip

FAMILIES = {
    "glm4_moe": (Glm4MoeConfig, GLM4_MOE_BASE, GLM4_MOE_CASES),
    "mixtral": (MixtralConfig, MIXTRAL_BASE, MIXTRAL_CASES),
    "olmoe": (OlmoeConfig, OLMOE_BASE, OLMOE_CASES),
    "qwen2_moe": (Qwen2MoeConfig, QWEN2_MOE_BASE, QWEN2_MOE_CASES),
    "qwen3_moe": (Qwen3MoeConfig, QWEN3_MOE_BASE, QWEN3_MOE_CASES),
}


def cases():
    """(family, name, config, kind of batch) of every family."""
    for family, (config_class, base, family_cases) in FAMILIES.items():
        for name, changes, batch in COMMON_CASES + family_cases:
            yield family, name, config_class(**{**base, **changes}), batch
