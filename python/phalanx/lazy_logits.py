"""Logits that are computed when somebody reads them.

In training with labels the loss runs without them: [tokens, vocabulary] would be the largest tensor of the step. What
a model then returns as `logits` answers questions about shape and dtype by itself and becomes the real tensor, with
its gradient, at any other use. It is no torch.Tensor: wrappers such as DDP look for tensors among the outputs and
would compute it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree


class LazyLogits:
    """The product of `hidden` [..., H] with the head's weight [V, H]."""

    def __init__(
        self,
        head: torch.nn.Linear,
        hidden: torch.Tensor,
        dtype: torch.dtype | None = None,
        detached: bool = False,
    ) -> None:
        device = hidden.device.type
        self.head = head
        self.hidden = hidden
        self.weight = head.weight
        self.autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.dtype = dtype or self.autocast or hidden.dtype
        self.detached = detached
        self._tensor: torch.Tensor | None = None

    @property
    def computed(self) -> bool:
        return self._tensor is not None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.hidden.shape[:-1], self.weight.shape[0]))

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    @property
    def ndim(self) -> int:
        return self.hidden.ndim

    @property
    def requires_grad(self) -> bool:
        return not self.detached

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        return True

    def contiguous(self) -> LazyLogits:
        return self

    def float(self) -> LazyLogits | torch.Tensor:
        return self.to(torch.float32)

    def to(self, *args: Any, **kwargs: Any) -> LazyLogits | torch.Tensor:
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.dtype) and not self.computed:
            return self._like(args[0], self.detached)
        return self.tensor().to(*args, **kwargs)

    def detach(self) -> LazyLogits | torch.Tensor:
        return self.tensor().detach() if self.computed else self._like(self.dtype, True)

    def weight_tensor(self) -> torch.Tensor:
        """The head's weight; gathered again when FSDP has freed it since (the head is a unit of its own)."""
        if self.weight.untyped_storage().size() > 0:
            return self.weight
        from torch.distributed.tensor import Partial

        return self.head.weight.full_tensor(grad_placements=[Partial("avg")])

    def tensor(self) -> torch.Tensor:
        """The logits [..., V], computed at the first call."""
        if self._tensor is None:
            device = self.hidden.device.type
            with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
                logits = torch.nn.functional.linear(self.hidden, self.weight_tensor()).to(self.dtype)
            self._tensor = logits.detach() if self.detached else logits
        return self._tensor

    def _like(self, dtype: torch.dtype, detached: bool) -> LazyLogits:
        other = LazyLogits(self.head, self.hidden, dtype, detached)
        other.autocast = self.autocast
        other.weight = self.weight
        return other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return func(*_pytree.tree_map(as_tensor, args), **_pytree.tree_map(as_tensor, kwargs or {}))

    def __repr__(self) -> str:
        return f"LazyLogits(shape={tuple(self.shape)}, dtype={self.dtype}, computed={self.computed})"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        return iter(self.tensor())

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tensor().detach().__array__(*args, **kwargs)

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        return self.tensor().detach().clone()

    def __reduce__(self) -> tuple:
        return _identity, (self.tensor().detach(),)

    __hash__ = object.__hash__


def as_tensor(value: Any) -> Any:
    """The tensor behind lazy logits; anything else as it is."""
    return value.tensor() if isinstance(value, LazyLogits) else value


def _identity(value: Any) -> Any:
    return value


def _forward_operator(name: str) -> None:
    @functools.wraps(getattr(torch.Tensor, name))
    def operator(self: LazyLogits, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*map(as_tensor, args))

    setattr(LazyLogits, name, operator)


for _name in (
    "getitem setitem add radd sub rsub mul rmul truediv rtruediv floordiv mod pow rpow neg abs matmul rmatmul "
    "lt le gt ge eq ne bool float int"
).split():
    _forward_operator(f"__{_name}__")
