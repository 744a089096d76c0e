"""Turns Transformers' classes of a decoder model into same-named subclasses whose work runs in the engine.

What is particular to a family is in families.py. What is here is common: the forwards of model, layer, norm
and head. Each passes on to Transformers' own forward whenever a cache is used or a compiler is tracing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from phalanx import compat, halves
from phalanx.batch import Batch, make_batch, plain_batch, supervises_padding
from phalanx.explanation import CACHE, Calls
from phalanx.head import bind_head, causal_lm_loss, lazy_logits
from phalanx.intact import Part, why_changed
from phalanx.saved_names import LoadsSavedNames

BOUND_KINDS = ("RMSNorm", "DecoderLayer", "Model", "ForCausalLM")  # classes of a family that are bound
_BATCH = "phalanx_batch"  # how a Batch travels from the model's to the layers' keyword arguments


@dataclass(frozen=True)
class FeedForward:
    """A kind of second half."""

    name: str
    parts: Sequence[Part]
    run: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]  # of the layer and its hidden states
    weight: Callable[[torch.nn.Module], torch.Tensor]  # one weight of `mlp`, whose dtype stands for all
    # What else keeps `mlp` off the engine.
    why_not: Callable[[torch.nn.Module], str | None] = lambda mlp: None


class DecoderLayer:
    """Mixed into a layer class of Transformers. families.py sets what is particular to the family."""

    phalanx_family: Any  # families.Family
    phalanx_attention: Sequence[Part]
    phalanx_feed_forwards: dict[type, FeedForward]  # by the class of `mlp`
    phalanx_calls: dict[str, Calls]
    phalanx_experts: str  # how the experts are computed

    def why_not_fused(self, what: str) -> str | None:
        """What of the module itself keeps the half `what` off the engine; None when nothing does."""
        if what == "attention":
            return halves.why_not_attention(self, self.phalanx_attention)
        feed_forward = self.phalanx_feed_forwards.get(type(self.mlp))
        if feed_forward is None:
            return f"mlp is {type(self.mlp).__module__.split('.')[0]}'s {type(self.mlp).__name__}"
        return why_changed(self, feed_forward.parts) or feed_forward.why_not(self.mlp)


def layer_forward(base: Callable) -> Callable:
    """The forward of a decoder layer: each half fused, or left to Transformers, by itself."""
    names = list(inspect.signature(base).parameters)[2:]  # their order is not the same in all families

    @functools.wraps(base)
    def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        batch = given.pop(_BATCH, None)
        if torch.compiler.is_compiling():
            return base(self, hidden_states, **given)
        if compat.given_cache(given) is not None:
            for calls in self.phalanx_calls.values():
                calls.fall_back("a layer", CACHE)
            return base(self, hidden_states, **given)
        mask = given.pop("attention_mask", None)
        if batch is None:
            batch = _batch_of_layer(hidden_states, mask)
        hidden = _attention_half(self, hidden_states, mask, given, batch)
        return _feed_forward_half(self, hidden)

    return forward


def _attention_half(
    layer: Any, hidden: torch.Tensor, mask: Any, arguments: dict, batch: Batch
) -> torch.Tensor:
    calls = layer.phalanx_calls["attention"]
    reason = (
        batch.reason
        or layer.why_not_fused("attention")
        or halves.why_not_tensors(hidden, layer.input_layernorm.weight, layer.self_attn.q_proj.weight)
    )
    if reason is None:
        calls.fused += 1
        return halves.attention(layer, hidden, arguments["position_embeddings"], batch)
    calls.fall_back("the attention half", reason)
    windowed = layer.phalanx_family.window(layer.self_attn) is not None
    mask = batch.attention_mask(mask, hidden, windowed)
    return halves.attention_of_transformers(layer, hidden, mask, arguments)


def _feed_forward_half(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    ((what, calls),) = ((name, calls) for name, calls in layer.phalanx_calls.items() if name != "attention")
    reason = layer.why_not_fused(what)
    if reason is None:
        feed_forward = layer.phalanx_feed_forwards[type(layer.mlp)]
        reason = halves.why_not_tensors(
            hidden, layer.post_attention_layernorm.weight, feed_forward.weight(layer.mlp)
        )
    if reason is None:
        calls.fused += 1
        return feed_forward.run(layer, hidden)
    calls.fall_back(f"the {what} half", reason)
    return halves.feed_forward_of_transformers(layer, hidden)


def _batch_of_layer(hidden: torch.Tensor, attention_mask: Any) -> Batch:
    """For a layer that somebody calls without its model."""
    if attention_mask is not None:
        return Batch(reason="an attention mask made elsewhere")
    return plain_batch(*hidden.shape[:2], hidden.device)


class RMSNorm:
    """Mixed into the norm after the last layer."""

    phalanx_calls: dict[str, Calls]

    def why_not_fused(self, what: str) -> str | None:
        if type(self.weight) not in (torch.nn.Parameter, torch.Tensor):
            return f"its weight is a {type(self.weight).__name__}"
        return None


def norm_forward(base: Callable) -> Callable:
    """The forward of a norm that stands alone: fused in training."""

    @functools.wraps(base)
    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or not _is_training(self):
            return base(self, hidden_states)
        calls = self.phalanx_calls["norm"]
        reason = self.why_not_fused("norm") or halves.why_not_tensors(hidden_states, self.weight, self.weight)
        if reason is not None:
            calls.fall_back("the last norm", reason)
            return base(self, hidden_states)
        calls.fused += 1
        return torch.ops.phalanx.rms_norm(hidden_states, self.weight, self.variance_epsilon)

    return forward


class PreTrained:
    """Mixed into a model class: what Transformers decides by looking at the class it decides as for its own."""

    phalanx_base: type

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        compat.register_recorded_outputs(cls)

    @classmethod
    def is_custom_code(cls) -> bool:
        return False

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return cls.phalanx_base._can_set_experts_implementation()

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return cls.phalanx_base._can_set_attn_implementation()


def model_forward(base: Callable) -> Callable:
    """The forward of the model without a head: tells the layers which tokens form a document."""
    names = list(inspect.signature(base).parameters)[1:]

    @functools.wraps(base)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if torch.compiler.is_compiling() or compat.given_cache(given) is not None:
            return base(self, **given)
        if given.get("use_cache") is None:
            # Transformers would make a cache even in training; then documents packed in a row would see each other.
            given["use_cache"] = False if _is_training(self) else getattr(self.config, "use_cache", False)
        if not given["use_cache"] and _BATCH not in given and all(map(_is_ours, self.layers)):
            _add_batch(self, given)
        return base(self, **given)

    return forward


def _add_batch(model: Any, given: dict[str, Any]) -> None:
    """Adds the Batch to the arguments and, where the engine needs no mask, puts off making it."""
    inputs = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
    if inputs is None:
        return
    if given.get("output_attentions", getattr(model.config, "output_attentions", False)):
        given[_BATCH] = Batch(reason="attentions are asked for")
        return
    if not given.get("is_causal", getattr(model.config, "is_causal", True)):
        given[_BATCH] = Batch(reason="attention is not causal")
        return
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    batch = make_batch(*inputs.shape[:2], inputs.device, mask, positions)
    if batch.documents is not None:
        batch.mask_arguments = {"config": model.config, "attention_mask": mask, "position_ids": positions}
        # Transformers takes a mask with four dimensions as it is.
        given["attention_mask"] = torch.empty(
            (inputs.shape[0], 1, 0, 0), dtype=torch.bool, device=inputs.device
        )
    given[_BATCH] = batch


class CausalLM(LoadsSavedNames, PreTrained):
    """Mixed into the model class with the head."""

    phalanx_model: type
    phalanx_layer: type
    phalanx_norm: type

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model.__class__ = self.phalanx_model
        for layer in self.model.layers:
            _bind_layer(layer, self.phalanx_layer)
        self.model.norm.__class__ = self.phalanx_norm
        self.model.norm.phalanx_calls = {"norm": Calls()}
        bind_head(self.lm_head)
        self.loss_function = causal_lm_loss

    def set_output_embeddings(self, new_embeddings: torch.nn.Module) -> None:
        super().set_output_embeddings(new_embeddings)
        bind_head(new_embeddings)


def _bind_layer(layer: torch.nn.Module, cls: type) -> None:
    layer.__class__ = cls
    feed_forward = layer.phalanx_feed_forwards[type(layer.mlp)]
    layer.phalanx_calls = {"attention": Calls(), feed_forward.name: Calls()}
    layer.phalanx_experts = "auto"


def causal_lm_forward(base: Callable) -> Callable:
    """The forward with head and loss: in training with labels the logits are lazy."""
    names = list(inspect.signature(base).parameters)[1:]

    @functools.wraps(base)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _is_training(self):
            return base(self, *args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        labels = given.get("labels")
        if labels is None:
            return base(self, **given)
        shifted = given.get("shift_labels")
        eager = self.config._attn_implementation == "eager"
        if supervises_padding(
            given.get("attention_mask"), labels[..., 1:] if shifted is None else shifted, eager
        ):
            given[_BATCH] = Batch(reason="labels on padding tokens")
        with lazy_logits():
            return base(self, **given)

    return forward


def _is_training(module: torch.nn.Module) -> bool:
    return module.training and torch.is_grad_enabled()


def _is_ours(layer: torch.nn.Module) -> bool:
    return isinstance(layer, DecoderLayer)
