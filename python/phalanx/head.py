"""Head and loss in one: in training with labels the head gives lazy logits and the loss runs in the engine."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from phalanx import engine
from phalanx.explanation import Calls
from phalanx.lazy_logits import LazyLogits, as_tensor

_IGNORED = -100
_lazy: ContextVar[bool] = ContextVar("phalanx_lazy_logits", default=False)


@contextlib.contextmanager
def lazy_logits() -> Iterator[None]:
    """Within, heads put their product off."""
    token = _lazy.set(True)
    try:
        yield
    finally:
        _lazy.reset(token)


def within_lazy_logits(model: torch.nn.Module) -> None:
    """Lets the head put its product off whenever `model` is called in training with labels."""
    model.register_forward_pre_hook(_begin, with_kwargs=True)
    model.register_forward_hook(_end, always_call=True)


def _begin(model: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    if not torch.compiler.is_compiling() and model.training and torch.is_grad_enabled():
        position = _position_of_labels(type(model).forward)
        labels = args[position] if position < len(args) else kwargs.get("labels")
        _lazy.set(labels is not None)


def _end(model: torch.nn.Module, args: tuple, output: Any) -> None:
    if not torch.compiler.is_compiling():
        _lazy.set(False)


@functools.cache
def _position_of_labels(forward: Callable) -> int:
    return list(inspect.signature(forward).parameters).index("labels") - 1  # without self


class Linear(torch.nn.Linear):
    """The head of a causal language model. Bears the name of the class it stands for."""

    phalanx_calls: dict[str, Calls]

    def why_not_fused(self, what: str) -> str | None:
        """None when head and loss can run fused."""
        if type(self.weight) not in (torch.nn.Parameter, torch.Tensor):
            return f"the head's weight is a {type(self.weight).__name__}"
        if self.bias is not None:
            return "the head has a bias"
        return None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor | LazyLogits:
        if torch.compiler.is_compiling() or not _lazy.get():
            return super().forward(hidden)
        reason = self.why_not_fused("") or why_not_lazy(hidden, self.weight)
        if reason is not None:
            self.phalanx_calls["head and loss"].fall_back("the head with the loss", reason)
            return super().forward(hidden)
        return LazyLogits(self, hidden)


def bind_head(head: torch.nn.Module) -> None:
    """Makes a plain linear layer a head that can put its product off; leaves anything else alone."""
    if type(head) is torch.nn.Linear:
        head.__class__ = Linear
        head.phalanx_calls = {"head and loss": Calls()}


def causal_lm_loss(
    logits: Any,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = _IGNORED,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Transformers' ForCausalLMLoss, without logits where they are lazy and nobody has read them yet."""
    targets = shift_labels
    if targets is None and labels is not None:
        targets = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    if (
        not isinstance(logits, LazyLogits)
        or logits.computed
        or logits.detached
        or targets.numel() != logits.hidden.shape[:-1].numel()
        or vocab_size != logits.shape[-1]
    ):
        return ForCausalLMLoss(
            as_tensor(logits), labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **kwargs
        )
    targets = targets.reshape(-1).to(logits.device)
    if ignore_index != _IGNORED:
        targets = targets.masked_fill(targets == ignore_index, _IGNORED)
    logits.head.phalanx_calls["head and loss"].fused += 1
    return _mean_loss(logits, targets, num_items_in_batch)


def _mean_loss(logits: LazyLogits, targets: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
    """The sum over labels divided by `items`, by default the number of labels."""
    statistics = torch.float64 if logits.hidden.dtype == torch.float64 else torch.float32
    if items is None:
        items = (targets != _IGNORED).sum()
    share = torch.ones((), dtype=statistics, device=targets.device) / items  # of one label
    with torch.autocast(logits.device.type, logits.autocast, enabled=logits.autocast is not None):
        loss, *_ = torch.ops.phalanx.linear_cross_entropy(
            logits.hidden, logits.weight_tensor(), targets, share.expand(targets.shape)
        )
    return torch.where(share.isfinite(), loss, torch.nan)  # a mean over nothing is no number


def why_not_lazy(hidden: torch.Tensor, weight: torch.Tensor) -> str | None:
    """What keeps head and loss off the engine for this input; None when nothing does."""
    autocast = torch.is_autocast_enabled(hidden.device.type)
    if hidden.dtype != weight.dtype and not autocast:
        return f"the head's input is {hidden.dtype} and its weight {weight.dtype}"
    return engine.why_not(hidden)
