"""Qwen3-MoE: Transformers' classes, bound to the engine."""

from __future__ import annotations

from typing import ClassVar

from transformers.activations import ACT2FN
from transformers.models.qwen3_moe import modeling_qwen3_moe as hf

from phalanx import halves, modeling
from phalanx.intact import part
from phalanx.loader import loading

_SILU = type(ACT2FN["silu"])
_LINEAR = hf.nn.Linear
_NORM = hf.Qwen3MoeRMSNorm

_ATTENTION = (
    part("input_layernorm", _NORM),
    part("self_attn", hf.Qwen3MoeAttention),
    part("self_attn.q_proj", _LINEAR),
    part("self_attn.k_proj", _LINEAR),
    part("self_attn.v_proj", _LINEAR),
    part("self_attn.o_proj", _LINEAR),
    part("self_attn.q_norm", _NORM),
    part("self_attn.k_norm", _NORM),
)
_EXPERTS = modeling.FeedForward(
    "experts",
    (
        part("post_attention_layernorm", _NORM),
        part("mlp", hf.Qwen3MoeSparseMoeBlock),
        part("mlp.gate", hf.Qwen3MoeTopKRouter),
        part("mlp.experts", hf.Qwen3MoeExperts),
        part("mlp.experts.act_fn", _SILU),
    ),
    halves.experts,
    lambda layer: layer.mlp.experts.gate_up_proj,
)
_MLP = modeling.FeedForward(
    "mlp",
    (
        part("post_attention_layernorm", _NORM),
        part("mlp", hf.Qwen3MoeMLP),
        part("mlp.gate_proj", _LINEAR),
        part("mlp.up_proj", _LINEAR),
        part("mlp.down_proj", _LINEAR),
        part("mlp.act_fn", _SILU),
    ),
    halves.mlp,
    lambda layer: layer.mlp.gate_proj.weight,
)


class Qwen3MoeRMSNorm(modeling.RMSNorm, _NORM):
    forward = modeling.norm_forward(_NORM.forward)


class Qwen3MoeDecoderLayer(modeling.DecoderLayer, hf.Qwen3MoeDecoderLayer):
    phalanx_attention = _ATTENTION
    phalanx_feed_forwards: ClassVar = {hf.Qwen3MoeSparseMoeBlock: _EXPERTS, hf.Qwen3MoeMLP: _MLP}
    forward = modeling.layer_forward(hf.Qwen3MoeDecoderLayer.forward)


class Qwen3MoeModel(modeling.PreTrained, hf.Qwen3MoeModel):
    phalanx_base = hf.Qwen3MoeModel
    forward = modeling.model_forward(hf.Qwen3MoeModel.forward)


class Qwen3MoeForCausalLM(modeling.CausalLM, hf.Qwen3MoeForCausalLM):
    phalanx_base = hf.Qwen3MoeForCausalLM
    phalanx_model = Qwen3MoeModel
    phalanx_layer = Qwen3MoeDecoderLayer
    phalanx_norm = Qwen3MoeRMSNorm
    forward = modeling.causal_lm_forward(hf.Qwen3MoeForCausalLM.forward)
    _load_pretrained_model = staticmethod(loading(hf.Qwen3MoeForCausalLM._load_pretrained_model))
