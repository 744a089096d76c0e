"""Puts the engine's pieces into a model whose family the engine does not have.

Found by class and shape of the modules, each tried out on a small random input against the module's own forward. What
gives something else stays as it is, and `phalanx.explain` says so. Other models, also of the same class, are untouched.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from phalanx import engine, modeling, pieces
from phalanx.explanation import Calls, log
from phalanx.head import bind_head, causal_lm_loss, why_not_lazy, within_lazy_logits
from phalanx.lazy_logits import LazyLogits

_TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2e-2}
_TOKENS = 3  # of the input that pieces are tried out on


def patch(model: torch.nn.Module) -> torch.nn.Module:
    """Lets what the engine can compute of `model` run in it in training; gives the model, changed in place.

    A model of the import line with a C++ family runs there already and stays as it is. Throws EngineError.
    """
    if isinstance(model, modeling.CausalLM):
        return model
    engine.load()
    kept: Counter[tuple[str, str, str]] = Counter()
    gpus = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(gpus):
        for module in list(model.modules()):
            if not hasattr(module, "phalanx_calls"):
                _put_into(module, kept)
        _put_into_head(model, kept)
    model.phalanx_kept = kept
    put = Counter(work for module in model.modules() for work in getattr(module, "phalanx_calls", {}))
    log.info(
        "%s has no family in the engine; put in: %s; left as it is: %s",
        type(model).__name__,
        ", ".join(f"{count} {work}" for work, count in put.items()) or "nothing",
        "; ".join(f"{work} of {cls} ({reason})" for work, cls, reason in kept) or "nothing",
    )
    return model


def _put_into(module: torch.nn.Module, kept: Counter) -> None:
    reasons = []
    for piece in (candidates := _candidates(module)):
        reason = _why_not(module, piece)
        if reason is None:
            pieces.put_in(module, piece)
            return
        reasons.append(reason)
    if candidates:
        kept[candidates[0].work, type(module).__name__, reasons[0]] += 1


def _candidates(module: torch.nn.Module) -> Sequence[type[pieces.Piece]]:
    """The pieces of one kind of work of which one may stand for the module, by its looks."""
    children, parameters = set(module._modules), set(module._parameters)
    weight = module._parameters.get("weight")
    if (
        type(module).__name__.endswith("RMSNorm")
        and not children
        and weight is not None
        and weight.dim() == 1
    ):
        return (pieces.RMSNorm, pieces.OffsetRMSNorm)
    if set(pieces.PROJECTIONS) <= children:
        return (pieces.GatedMlp,)
    if {"gate_up_proj", "down_proj"} <= parameters:
        return (pieces.Experts,)
    if pieces.rotary_functions(type(module).forward):
        return (pieces.Rotary,)
    return ()


def _inputs(module: torch.nn.Module, piece: type) -> tuple[torch.Tensor, ...]:
    random = _random(module)
    if issubclass(piece, pieces.RMSNorm):
        return (random(2, _TOKENS, module.weight.shape[0]),)
    if issubclass(piece, pieces.GatedMlp):
        return (random(2, _TOKENS, module.gate_proj.in_features),)
    experts, hidden = module.down_proj.shape[0], module.gate_up_proj.shape[-1]
    indices = torch.arange(2 * _TOKENS, device=module.down_proj.device).reshape(_TOKENS, 2) % experts
    return random(_TOKENS, hidden), indices, random(_TOKENS, 2).abs()


def _why_not(module: torch.nn.Module, piece: type) -> str | None:
    """Why the piece does not stand for the module; None when it gives the same."""
    if "forward" in module.__dict__:
        return "it has a forward of its own"
    if piece is pieces.Rotary:
        return _why_not_rotary(module)
    if any(weight.is_meta for weight in module.parameters()):
        return "it has no memory yet"
    if issubclass(piece, pieces.RMSNorm) and pieces.epsilon_of(module) is None:
        return "it has no epsilon"
    if issubclass(piece, pieces.GatedMlp) and set(module._modules) != {*pieces.PROJECTIONS, "act_fn"}:
        return "it has other parts"
    if issubclass(piece, pieces.Experts) and set(module._parameters) != {"gate_up_proj", "down_proj"}:
        return "it has other parameters"
    own = copy.deepcopy(module) if issubclass(piece, pieces.RMSNorm) else module
    if own is not module:  # a weight of ones or zeros would tell nothing
        own.weight.data = _random(module)(*module.weight.shape)
    if (reason := _by_itself(own, piece)) is not None:
        return reason
    training = own.training
    try:
        for mode in (True, False):
            own.train(mode)
            if (reason := _differs(own, piece, _inputs(own, piece))) is not None:
                return reason
    finally:
        own.train(training)
    return None


def _by_itself(module: torch.nn.Module, piece: type) -> str | None:
    """What the piece would say if it had been put in."""
    twin = copy.copy(module)
    pieces.put_in(twin, piece)
    return twin.why_not_fused("")


def _random(module: torch.nn.Module) -> Callable[..., torch.Tensor]:
    like = next(module.parameters())
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator).to(like)


@torch.no_grad()
def _differs(module: torch.nn.Module, piece: type, inputs: tuple[torch.Tensor, ...]) -> str | None:
    if (reason := engine.why_not(inputs[0])) is not None:
        return reason
    try:
        expected = type(module).forward(module, *inputs)
        found = piece.run(module, *inputs)
    except Exception as error:
        return f"it takes other arguments: {str(error).splitlines()[0]}"
    return _why_not_same(found, expected)


def _why_not_same(found: torch.Tensor, expected: Any) -> str | None:
    if not isinstance(expected, torch.Tensor) or expected.shape != found.shape:
        return "its output is of another form"
    scale = expected.abs().max().item()
    if scale == 0.0:
        return "it gives nothing but zeros"
    error = (found - expected).abs().max().item() / scale
    return None if error <= _TOLERANCES[expected.dtype] else "its mathematics is another"


def _why_not_rotary(module: torch.nn.Module) -> str | None:
    for name, function in pieces.rotary_functions(type(module).forward).items():
        if not callable(function) or not pieces.table_kinds(function):
            return f"the mathematics of {name} is another"
    return None


def _put_into_head(model: torch.nn.Module, kept: Counter) -> None:
    get = getattr(model, "get_output_embeddings", None)
    head = get() if get is not None else None
    if head is None or hasattr(head, "phalanx_calls"):
        return
    reason = _why_not_head(model, head)
    if reason is not None:
        kept["head and loss", type(head).__name__, reason] += 1
        return
    bind_head(head)
    model.loss_function = causal_lm_loss
    within_lazy_logits(model)


def _why_not_head(model: torch.nn.Module, head: torch.nn.Module) -> str | None:
    if type(head) is not torch.nn.Linear or head.bias is not None:
        return "it is no linear layer without a bias"
    if getattr(model, "loss_function", None) is not ForCausalLMLoss:
        return "the model has a loss of its own"
    if "labels" not in inspect.signature(model.forward).parameters:
        return "the model takes no labels"
    if head.weight.is_meta:
        return "it has no memory yet"
    hidden = _random(head)(1, _TOKENS, head.in_features)
    if (reason := why_not_lazy(hidden, head.weight)) is not None:
        return reason
    labels = torch.arange(_TOKENS, device=hidden.device)[None] % head.out_features
    probe = copy.copy(head)
    probe.phalanx_calls = {"head and loss": Calls()}
    with torch.no_grad():
        expected = ForCausalLMLoss(head(hidden), labels, head.out_features)
        found = causal_lm_loss(LazyLogits(probe, hidden), labels, head.out_features)
    return _why_not_same(found.reshape(1), expected.reshape(1).to(found.dtype))
