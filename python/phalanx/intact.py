"""Whether a half of a decoder layer is still what Transformers built, so that the engine may compute it.

A half is described by its parts: submodules with the class each must have. Looked at anew in every forward pass,
because adapters, hooks and wrappers come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules import module as torch_module

from phalanx import compat

# A plain Tensor stands where FSDP keeps the parameter elsewhere, None for a bias that is not there.
PLAIN_TENSORS = frozenset({torch.nn.Parameter, torch.Tensor, type(None)})


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
    if torch_module._has_any_global_hook():
        return "a hook on all modules"
    known = _intact.setdefault(layer, {})
    found = known.get(id(parts))  # the tuple of a family, which stays
    if found is not None and all(map(_is_unchanged, found)):
        return None
    found = [_find(layer, expected) for expected in parts]
    for module in found:
        if reason := _why_part_changed(module):
            return f"{'.'.join(module.part.path)} {reason}"
    known[id(parts)] = found
    return None


class _Found:
    """Where a part was found, so that the next look is short."""

    __slots__ = ("cls", "fields", "forward", "module", "name", "part", "siblings")

    def __init__(self, siblings: dict[str, Any], name: str, module: Any, part: Part) -> None:
        self.siblings, self.name, self.module, self.part = siblings, name, module, part
        self.cls, self.forward = part.cls, part.forward
        self.fields = None if module is None else module.__dict__


# Keyed by the layer, and not kept in it: a copy of a layer has parts of its own.
_intact: WeakKeyDictionary[torch.nn.Module, dict[int, list[_Found]]] = WeakKeyDictionary()


def _find(layer: torch.nn.Module, part: Part) -> _Found:
    siblings, module = {}, layer
    for name in part.path:
        siblings = {} if module is None else module._modules
        module = siblings.get(name)
    return _Found(siblings, part.path[-1], module, part)


def _is_unchanged(found: _Found) -> bool:
    """Says quickly what _why_part_changed says in words, of a part that was intact once."""
    module, fields, cls = found.module, found.fields, found.cls
    if found.siblings.get(found.name) is not module:
        return False
    if fields is None:  # an optional part that is not there
        return True
    if type(module) is not cls or cls.forward is not found.forward or "forward" in fields:
        return False
    if fields["_forward_pre_hooks"] or fields["_backward_hooks"] or fields["_backward_pre_hooks"]:
        return False
    if fields["_forward_hooks"] and not all(map(compat.is_capturing_hook, fields["_forward_hooks"].values())):
        return False
    return PLAIN_TENSORS.issuperset(map(type, fields["_parameters"].values()))


def _why_part_changed(found: _Found) -> str | None:
    module, expected = found.module, found.part
    if module is None:
        return None if expected.optional else "is gone"
    cls = type(module)
    if cls is not expected.cls:
        return f"is {cls.__module__.split('.')[0]}'s {cls.__name__}"
    if cls.forward is not expected.forward:
        return f"has another forward for all {cls.__name__}"
    if "forward" in found.fields:
        return "has a forward of its own"
    if not _is_unchanged(found):
        odd = [type(p).__name__ for p in found.fields["_parameters"].values() if type(p) not in PLAIN_TENSORS]
        return f"holds a {odd[0]}" if odd else "has a hook"
    return None
