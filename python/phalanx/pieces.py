"""The engine's pieces for single modules of any model: norm, gated MLP, experts, rotary embedding.

A piece is mixed into the class of one module of Transformers, whose name the subclass keeps. It computes in the engine
where gradients are recorded and nothing speaks against it; otherwise the module's own forward runs.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from transformers.activations import ACT2FN

from phalanx import engine
from phalanx.explanation import Calls
from phalanx.intact import PLAIN_TENSORS, Part, part, why_changed

_operators = torch.ops.phalanx
_ACTIVATION = part("act_fn", type(ACT2FN["silu"]))
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Piece:
    """Mixed into a module's class. `run` is the forward in the engine."""

    work: ClassVar[str]  # its name in an explanation
    parts: ClassVar[tuple[Part, ...]] = ()  # submodules that must be as they are now
    phalanx_base: ClassVar[type]
    phalanx_piece: ClassVar[type]
    phalanx_forward: ClassVar[Callable]  # of the base, when the piece was put in
    phalanx_calls: dict[str, Calls]

    def why_not_fused(self, what: str) -> str | None:
        """What of the module itself keeps it off the engine; None when nothing does."""
        if self.phalanx_base.forward is not type(self).phalanx_forward:
            return f"there is another forward for all {self.phalanx_base.__name__}"
        for weight in self._parameters.values():
            if type(weight) not in PLAIN_TENSORS:
                return f"it holds a {type(weight).__name__}"
        return why_changed(self, self.parts) if self.parts else None

    def why_not_now(self, x: torch.Tensor, *more: Any) -> str | None:
        """What of these arguments of `run` does."""
        return engine.why_not(x)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self.phalanx_base.forward(self, *args, **kwargs)
        reason = "it is called with names of arguments" if kwargs else self.why_not_fused("")
        reason = reason or self.why_not_now(*args)
        calls = self.phalanx_calls[self.work]
        if reason is not None:
            calls.fall_back(f"the {self.work} of a {type(self).__name__}", reason)
            return self.phalanx_base.forward(self, *args, **kwargs)
        calls.fused += 1
        return self.run(*args)

    def __reduce_ex__(self, protocol: int) -> tuple:
        _, _, *rest = super().__reduce_ex__(protocol)
        return _empty, (self.phalanx_base, self.phalanx_piece), *rest


def _empty(base: type, piece: type) -> torch.nn.Module:
    cls = with_piece(base, piece)
    return cls.__new__(cls)


@functools.cache
def with_piece(base: type, piece: type) -> type:
    """The subclass of `base`, of the same name, that has the piece."""
    fields = {
        "__module__": base.__module__,
        "__doc__": base.__doc__,
        "phalanx_base": base,
        "phalanx_piece": piece,
        "phalanx_forward": base.forward,
    }
    return type(base)(base.__name__, (piece, base), fields)


def put_in(module: torch.nn.Module, piece: type) -> None:
    module.phalanx_calls = {piece.work: Calls()}
    module.__class__ = with_piece(type(module), piece)


def _why_not_dtypes(x: torch.Tensor, weight: torch.Tensor) -> str | None:
    if weight.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        return f"the input is {x.dtype} and a weight {weight.dtype}"
    return engine.why_not(x)


def epsilon_of(norm: torch.nn.Module) -> float | None:
    """Of an RMSNorm, by either of the names that are in use; None when it has none."""
    for name in ("variance_epsilon", "eps"):
        if isinstance(epsilon := getattr(norm, name, None), float):
            return epsilon
    return None


class RMSNorm(Piece):
    """weight * x / rms(x). x [..., H]."""

    work = "norm"

    def why_not_now(self, x: torch.Tensor, *more: Any) -> str | None:
        if self.weight.dtype != x.dtype:
            return f"the input is {x.dtype} and the weight {self.weight.dtype}"
        return engine.why_not(x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return _operators.rms_norm(x, self.weight, epsilon_of(self))


class OffsetRMSNorm(RMSNorm):
    """(1 + weight) * x / rms(x), as Gemma has it."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return _operators.rms_norm(x, 1 + self.weight, epsilon_of(self))


class GatedMlp(Piece):
    """down(silu(gate(x)) * up(x)). x [..., H]."""

    work = "mlp"
    parts = (*(part(name, torch.nn.Linear) for name in PROJECTIONS), _ACTIVATION)

    def why_not_fused(self, what: str) -> str | None:
        for name in PROJECTIONS:
            if getattr(getattr(self, name, None), "bias", None) is not None:
                return f"{name} has a bias"
        return super().why_not_fused(what)

    def why_not_now(self, x: torch.Tensor, *more: Any) -> str | None:
        return _why_not_dtypes(x, self.gate_proj.weight)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return _operators.gated_mlp(x, *(getattr(self, name).weight for name in PROJECTIONS))


class Experts(Piece):
    """All experts of a layer with SwiGLU, for a given choice: x [T, H], indices and weights [T, K]."""

    work = "experts"
    parts = (_ACTIVATION,)

    def why_not_fused(self, what: str) -> str | None:
        if self._forward_pre_hooks:
            return "it has a hook"  # expert parallelism hands it experts that are elsewhere
        return super().why_not_fused(what)

    def why_not_now(self, x: torch.Tensor, *more: Any) -> str | None:
        return _why_not_dtypes(x, self.gate_up_proj)

    def run(self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return _operators.experts(x, indices, weights.to(x.dtype), self.gate_up_proj, self.down_proj, "auto")


_rope_calls: ContextVar[Calls] = ContextVar("phalanx_rope_calls")


class Rotary(Piece):
    """Attention of Transformers, with its functions of ROTARY replaced where it looks them up."""

    work = "rope"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self.phalanx_base.forward(self, *args, **kwargs)
        calls = self.phalanx_calls[self.work]
        if (reason := self.why_not_fused("")) is not None:
            calls.fall_back(f"the rope of a {type(self).__name__}", reason)
            return self.phalanx_base.forward(self, *args, **kwargs)
        token = _rope_calls.set(calls)
        try:
            return _with_rotary(self.phalanx_base.forward)(self, *args, **kwargs)
        finally:
            _rope_calls.reset(token)

    def why_not_fused(self, what: str) -> str | None:
        if self.phalanx_base.forward is not type(self).phalanx_forward:
            return f"there is another forward for all {self.phalanx_base.__name__}"
        return None


def rotary_functions(forward: Callable) -> dict[str, Callable]:
    """By name, the functions that rotate q and k and that this forward looks up in its module."""
    function = innermost(forward)
    named = (name for name in function.__code__.co_names if name.startswith("apply_rotary_pos_emb"))
    return {name: function.__globals__[name] for name in named if name in function.__globals__}


def innermost(function: Callable) -> Callable:
    """What decorators have been put around."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


@functools.cache
def _with_rotary(forward: Callable) -> Callable:
    """A copy of `forward`, which no other model uses, that rotates in the engine."""
    inner = innermost(forward)
    replaced = {name: rotating(function) for name, function in rotary_functions(forward).items()}
    return _copied(forward, inner, {**inner.__globals__, **replaced})


def _copied(function: Any, inner: Callable, globals_: dict[str, Any]) -> Callable:
    """`function` with all its decorators around another `inner`, one with these globals."""
    cells = function.__closure__
    if function is not inner:
        around = function.__wrapped__
        cells = tuple(
            types.CellType(_copied(around, inner, globals_)) if cell.cell_contents is around else cell
            for cell in cells or ()
        )
        globals_ = function.__globals__
    copy = types.FunctionType(function.__code__, globals_, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@functools.cache
def rotating(original: Callable) -> Callable:
    """The same function, in the engine for tables of a kind that `table_kinds` has found to be the same."""
    kinds = table_kinds(original)

    @functools.wraps(original)
    def rotate(q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        calls = _rope_calls.get()
        reason = (
            "an argument beside q, k, cos and sin" if args or kwargs else _why_not_rotate(q, k, cos, kinds)
        )
        if reason is not None:
            calls.fall_back("rope", reason)
            return original(q, k, cos, sin, *args, **kwargs)
        calls.fused += 1
        return rotate_in_engine(q, k, cos, sin, _kind(q, cos, kinds))

    return rotate


def _why_not_rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, kinds: frozenset[str]) -> str | None:
    if q.dim() != 4 or k.dim() != 4 or cos.dim() != 3 or cos.shape[1] != q.shape[2]:
        return "q, k or cos of another shape"
    if not q.dtype == k.dtype == cos.dtype:
        return f"q is {q.dtype}, k {k.dtype} and cos {cos.dtype}"
    if _kind(q, cos, kinds) is None:
        return "a table of another width"
    return engine.why_not(q)


def _kind(q: torch.Tensor, cos: torch.Tensor, kinds: frozenset[str]) -> str | None:
    """Which of the `kinds` is meant by a table of this width."""
    fitting = ("whole", "interleaved") if cos.shape[-1] == q.shape[-1] else ("part", "half")
    return next((kind for kind in fitting if kind in kinds), None)


def _pairs_apart(x: torch.Tensor) -> torch.Tensor:
    """[..., a0 b0 a1 b1 ...] -> [..., a0 a1 ... b0 b1 ...]"""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def rotate_in_engine(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, h, S, d], k [B, g, S, d]; cos, sin [B or 1, S, D] of a kind of `table_kinds`."""
    if kind == "interleaved":
        q, k = _pairs_apart(q), _pairs_apart(k)
    tables = []
    for table in (cos, sin):
        half = table if kind == "half" else table[..., : table.shape[-1] // 2]
        wide = half if half.dtype == torch.float64 else half.float()
        tables.append(wide.expand(q.shape[0], -1, -1).reshape(-1, half.shape[-1]).contiguous())
    return _operators.rope(q, k, *tables)


@functools.cache
def table_kinds(original: Callable) -> frozenset[str]:
    """For which tables of cosines the engine gives what `original` gives, tried out on random numbers.

    "whole": as wide as a head, its halves alike; "interleaved": likewise, but neighbours in a head turn together;
    "part": narrower than a head, the rest of which stays; "half": one of the halves.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 3, 8, generator=generator) for heads in (4, 2))
    found = set()
    for kind, width in (("whole", 8), ("interleaved", 8), ("part", 4), ("half", 4)):
        columns = width if kind == "half" else width // 2
        angle = torch.randn(2, 3, columns, generator=generator)
        table = angle if kind == "half" else torch.cat([angle, angle], -1)
        try:
            expected = original(q, k, table.cos(), table.sin())
        except (RuntimeError, TypeError):
            continue  # it takes no such table
        ours = rotate_in_engine(q, k, table.cos(), table.sin(), kind)
        if all(
            a.shape == b.shape and torch.allclose(a, b, atol=1e-6)
            for a, b in zip(ours, expected, strict=True)
        ):
            found.add(kind)
    return frozenset(found)
