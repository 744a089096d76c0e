"""Whether a half of a decoder layer is still what Transformers built, so that the engine may compute it.

A half is described by its parts: submodules with the class each must have. Looked at anew in every forward pass,
because adapters, hooks and wrappers come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.modules import module as torch_module

from phalanx import compat

_PLAIN_TENSORS = (
    torch.nn.Parameter,
    torch.Tensor,
)  # a plain Tensor stands where FSDP keeps the parameter elsewhere
_HOOKS_OF_USERS = ("_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Part:
    """A submodule of a layer as Transformers makes it."""

    path: tuple[str, ...]
    cls: type
    forward: Callable  # of the class, at the time Phalanx was imported
    optional: bool = False  # some models of the family do without


def part(path: str, cls: type, optional: bool = False) -> Part:
    return Part(tuple(path.split(".")), cls, cls.forward, optional)


def why_changed(layer: torch.nn.Module, parts: Sequence[Part]) -> str | None:
    """What is not as Transformers made it, in words; None when all parts are intact."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "a hook on all modules"
    for expected in parts:
        module = _find(layer, expected.path)
        if module is None:
            if expected.optional:
                continue
            return f"{'.'.join(expected.path)} is gone"
        reason = _why_module_changed(module, expected)
        if reason is not None:
            return f"{'.'.join(expected.path)} {reason}"
    return None


def _find(module: torch.nn.Module | None, path: tuple[str, ...]) -> torch.nn.Module | None:
    for name in path:
        if module is not None:
            module = module._modules.get(name)
    return module


def _why_module_changed(module: torch.nn.Module, expected: Part) -> str | None:
    cls = type(module)
    if cls is not expected.cls:
        return f"is {cls.__module__.split('.')[0]}'s {cls.__name__}"
    if cls.forward is not expected.forward:
        return f"has another forward for all {cls.__name__}"
    fields = module.__dict__
    if "forward" in fields:
        return "has a forward of its own"
    for name in _HOOKS_OF_USERS:
        if fields[name]:
            return "has a hook"
    for hook in fields["_forward_hooks"].values():
        if not compat.is_capturing_hook(hook):
            return "has a hook"
    for parameter in fields["_parameters"].values():
        if parameter is not None and type(parameter) not in _PLAIN_TENSORS:
            return f"holds a {type(parameter).__name__}"
    return None
