"""The two halves of a decoder layer: each runs in the engine or, by itself, on Transformers' path.

A layer has the modules that Transformers gives to Llama-like decoders: `input_layernorm`, `self_attn` with q, k, v
and o projections, `post_attention_layernorm` and `mlp`. All tensors are [B, S, H].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from phalanx import compat, engine
from phalanx.batch import Batch
from phalanx.intact import Part, why_changed

_operators = torch.ops.phalanx


def why_not_attention(layer: torch.nn.Module, parts: Sequence[Part]) -> str | None:
    """What keeps the attention half of `layer` off the engine, whatever the batch; None when nothing does."""
    reason = why_changed(layer, parts)
    if reason is not None:
        return reason
    self_attn = layer.self_attn
    if layer.training and self_attn.attention_dropout:
        return "attention dropout"
    if not getattr(self_attn, "is_causal", True):
        return "self_attn is not causal"
    q_norm, k_norm = map(self_attn._modules.get, ("q_norm", "k_norm"))
    if q_norm is not None and q_norm.variance_epsilon != k_norm.variance_epsilon:
        return "self_attn.q_norm and k_norm differ in their epsilon"
    return None


def attention(layer: torch.nn.Module, hidden: torch.Tensor, rope: tuple, batch: Batch) -> torch.Tensor:
    """hidden + o(attention(norm(hidden))) in the engine."""
    self_attn, norm = layer.self_attn, layer.input_layernorm
    q, k, v, o = self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj
    q_norm, k_norm = getattr(self_attn, "q_norm", None), getattr(self_attn, "k_norm", None)
    return _operators.attention_half(
        hidden,
        norm.weight,
        q.weight,
        k.weight,
        v.weight,
        o.weight,
        q.bias,
        k.bias,
        v.bias,
        o.bias,
        None if q_norm is None else q_norm.weight,
        None if k_norm is None else k_norm.weight,
        *batch.rope(rope, hidden.shape[0]),
        batch.documents,
        self_attn.head_dim,
        self_attn.scaling,
        layer.phalanx_family.window(self_attn),
        norm.variance_epsilon,
        norm.variance_epsilon if q_norm is None else q_norm.variance_epsilon,
        layer.phalanx_family.clip_qkv(self_attn),
    )


def attention_of_transformers(
    layer: torch.nn.Module, hidden: torch.Tensor, attention_mask: Any, arguments: dict[str, Any]
) -> torch.Tensor:
    """The same on Transformers' path. `arguments` are those of the layer."""
    attended, *_ = layer.self_attn(
        hidden_states=layer.input_layernorm(hidden), attention_mask=attention_mask, **arguments
    )
    return hidden + attended


def experts(layer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """hidden + experts(norm(hidden)) + shared_expert(norm(hidden)) in the engine.

    Tells whoever records router logits.
    """
    norm, mlp = layer.post_attention_layernorm, layer.mlp
    gate, router = mlp.gate, layer.phalanx_family.router(mlp)
    # Under autocast the product is made in its dtype, whatever that of the weight.
    fp32 = router.fp32 and not torch.is_autocast_enabled(hidden.device.type)
    out, logits = _operators.moe_half(
        hidden,
        norm.weight,
        gate.weight.float() if fp32 else gate.weight,
        mlp.experts.gate_up_proj,
        mlp.experts.down_proj,
        router.top_k,
        router.normalize,
        norm.variance_epsilon,
        layer.phalanx_experts,
        router.score,
        router.scale,
        router.num_groups,
        router.top_groups,
        router.correction_bias,
        _shared_expert(layer),
    )
    for hook in gate._forward_hooks.values():
        hook(gate, (hidden,), (_recorded(gate, logits), None, None))
    return out


def _shared_expert(layer: torch.nn.Module) -> list[torch.Tensor]:
    family = layer.phalanx_family
    if family.shared is None:
        return []
    expert = getattr(layer.mlp, family.shared)
    weights = [expert.gate_proj.weight, expert.up_proj.weight, expert.down_proj.weight]
    return (
        weights if family.shared_gate is None else [*weights, getattr(layer.mlp, family.shared_gate).weight]
    )


def mlp(layer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """hidden + mlp(norm(hidden)) in the engine."""
    norm, weights = layer.post_attention_layernorm, layer.mlp
    return _operators.mlp_half(
        hidden,
        norm.weight,
        weights.gate_proj.weight,
        weights.up_proj.weight,
        weights.down_proj.weight,
        norm.variance_epsilon,
    )


def feed_forward_of_transformers(layer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Either of the two on Transformers' path."""
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def why_not_tensors(hidden: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor) -> str | None:
    """What keeps these dtypes and devices off the engine. Under autocast the weight is cast, the norm is not."""
    if norm.dtype != hidden.dtype:
        return f"the input is {hidden.dtype} and the norm's weight {norm.dtype}"
    if weight.dtype != hidden.dtype and not torch.is_autocast_enabled(hidden.device.type):
        return f"the input is {hidden.dtype} and a weight {weight.dtype}"
    return engine.why_not(hidden)


def _recorded(gate: torch.nn.Module, logits: torch.Tensor) -> torch.Tensor:
    if compat.router_records_probabilities(type(gate)):
        return torch.nn.functional.softmax(logits, dtype=torch.float, dim=-1)
    return logits
