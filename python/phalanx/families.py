"""The families of decoder models whose training runs in the engine: what is particular to each, as a table.

From an entry come same-named subclasses of Transformers' classes, made when a model of the family is first asked for.
They are attributes of this module, so that models can be pickled.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.activations import ACT2FN

from phalanx import compat, engine, halves, modeling
from phalanx.intact import Part, part
from phalanx.loader import loading
from phalanx.routing import Router

_LINEAR = torch.nn.Linear
_SILU = type(ACT2FN["silu"])


def _softmax_router(mlp: torch.nn.Module) -> Router:
    return Router(mlp.gate.top_k, mlp.gate.norm_topk_prob)


def _window_of_attention(self_attn: torch.nn.Module) -> int | None:
    return getattr(self_attn, "sliding_window", None)


def _no_window(self_attn: torch.nn.Module) -> None:
    return None


def _nothing(mlp: torch.nn.Module) -> None:
    return None


@dataclass(frozen=True)
class Family:
    """What is particular to a family; see modeling.DecoderLayer for what its layers have in common."""

    module: str  # of Transformers' models
    prefix: str  # of the names of its classes
    router: Callable[[torch.nn.Module], Router] = _softmax_router  # of the `mlp` of a sparse layer
    why_not_experts: Callable[[torch.nn.Module], str | None] = _nothing  # likewise
    window: Callable[[torch.nn.Module], int | None] = _window_of_attention  # of `self_attn`
    clip_qkv: Callable[[torch.nn.Module], float | None] = _nothing  # likewise
    shared: str | None = None  # name in `mlp` of the expert that every token passes
    shared_gate: str | None = None  # and of the linear layer whose sigmoid scales its output
    moe: str = "SparseMoeBlock"  # class of the `mlp` of a sparse layer, without the prefix
    router_class: str = "TopKRouter"
    dense: bool = True  # some layers can have one gated MLP instead of experts


_FAMILIES = (
    Family("qwen3_moe", "Qwen3Moe"),
    Family("qwen2_moe", "Qwen2Moe", shared="shared_expert", shared_gate="shared_expert_gate"),
    Family(
        "mixtral",
        "Mixtral",
        router=lambda mlp: Router(mlp.gate.top_k, normalize=True),
        why_not_experts=lambda mlp: "noise on the router's input" if mlp.jitter_noise else None,
        window=lambda self_attn: getattr(self_attn.config, "sliding_window", None),
        dense=False,
    ),
    Family(
        "olmoe",
        "Olmoe",
        window=_no_window,
        clip_qkv=lambda self_attn: self_attn.config.clip_qkv,
        dense=False,
    ),
    Family(
        "glm4_moe",
        "Glm4Moe",
        router=compat.grouped_sigmoid_router,
        shared="shared_experts",
        moe="MoE",
        router_class="TopkRouter",
    ),
)


def causal_lm_for(config: type) -> type | None:
    """The bound class for configurations of this class, or None."""
    for family in _FAMILIES:
        if config.__name__ == f"{family.prefix}Config":
            return _classes(family)["ForCausalLM"]
    return None


def __getattr__(name: str) -> type:
    for family in _FAMILIES:
        kind = name.removeprefix(family.prefix)
        if kind != name and kind in modeling.BOUND_KINDS:
            return _classes(family)[kind]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_made: dict[str, dict[str, type]] = {}


def _classes(family: Family) -> dict[str, type]:
    if family.prefix not in _made:
        engine.load()
        _made[family.prefix] = _make_classes(family)
    return _made[family.prefix]


def _make_classes(family: Family) -> dict[str, type]:
    transformers = importlib.import_module(f"transformers.models.{family.module}.modeling_{family.module}")

    def theirs(kind: str) -> type:
        return getattr(transformers, family.prefix + kind)

    def bound(kind: str, mixin: type, **attributes: Any) -> type:
        base = theirs(kind)
        return type(base)(base.__name__, (mixin, base), {"__module__": __name__, **attributes})

    norm, experts = theirs("RMSNorm"), compat.experts_class(transformers, family.prefix)
    feed_forwards = {theirs(family.moe): _experts_half(family, theirs, norm, experts)}
    if family.dense:
        feed_forwards[theirs("MLP")] = _dense_half(theirs("MLP"), norm)
    classes = {
        "RMSNorm": bound("RMSNorm", modeling.RMSNorm, forward=modeling.norm_forward(norm.forward)),
        "DecoderLayer": bound(
            "DecoderLayer",
            modeling.DecoderLayer,
            phalanx_family=family,
            phalanx_attention=_attention_parts(theirs("Attention"), norm),
            phalanx_feed_forwards=feed_forwards,
            forward=modeling.layer_forward(theirs("DecoderLayer").forward),
        ),
        "Model": bound(
            "Model",
            modeling.PreTrained,
            phalanx_base=theirs("Model"),
            forward=modeling.model_forward(theirs("Model").forward),
        ),
    }
    head = theirs("ForCausalLM")
    classes["ForCausalLM"] = bound(
        "ForCausalLM",
        modeling.CausalLM,
        phalanx_base=head,
        phalanx_model=classes["Model"],
        phalanx_layer=classes["DecoderLayer"],
        phalanx_norm=classes["RMSNorm"],
        forward=modeling.causal_lm_forward(head.forward),
        _load_pretrained_model=staticmethod(loading(head._load_pretrained_model)),
    )
    return classes


def _attention_parts(attention: type, norm: type) -> Sequence[Part]:
    return (
        part("input_layernorm", norm),
        part("self_attn", attention),
        *(part(f"self_attn.{kind}_proj", _LINEAR) for kind in "qkvo"),
        part("self_attn.q_norm", norm, optional=True),
        part("self_attn.k_norm", norm, optional=True),
    )


def _mlp_parts(path: str, mlp: type) -> Sequence[Part]:
    linear = (part(f"{path}.{kind}_proj", _LINEAR) for kind in ("gate", "up", "down"))
    return (part(path, mlp), *linear, part(f"{path}.act_fn", _SILU))


def _experts_half(
    family: Family, theirs: Callable[[str], type], norm: type, experts: type
) -> modeling.FeedForward:
    parts = [
        part("post_attention_layernorm", norm),
        part("mlp", theirs(family.moe)),
        part("mlp.gate", theirs(family.router_class)),
        part("mlp.experts", experts),
        part("mlp.experts.act_fn", _SILU),
    ]
    if family.shared is not None:
        parts.extend(_mlp_parts(f"mlp.{family.shared}", theirs("MLP")))
    if family.shared_gate is not None:
        parts.append(part(f"mlp.{family.shared_gate}", _LINEAR))
    return modeling.FeedForward(
        "experts", parts, halves.experts, lambda mlp: mlp.experts.gate_up_proj, family.why_not_experts
    )


def _dense_half(mlp: type, norm: type) -> modeling.FeedForward:
    parts = (part("post_attention_layernorm", norm), *_mlp_parts("mlp", mlp))
    return modeling.FeedForward("mlp", parts, halves.mlp, lambda mlp: mlp.gate_proj.weight)
