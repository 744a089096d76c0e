"""AutoModelForCausalLM: Transformers' class of this name, which makes models whose training runs in the engine.

Families with a C++ implementation come back as a same-named subclass of Transformers' class; all others as
Transformers makes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

# Name of the configuration class -> module and class, imported at the first use.
_FAMILIES = {"Qwen3MoeConfig": ("phalanx.qwen3_moe", "Qwen3MoeForCausalLM")}


class _Mapping:
    """Transformers' mapping from configuration to model, with our classes laid over it."""

    def __getitem__(self, config: type) -> type:
        theirs = MODEL_FOR_CAUSAL_LM_MAPPING[config]
        module, name = _FAMILIES.get(config.__name__, (None, None))
        if module is None or isinstance(theirs, tuple) or theirs.__name__ != name:
            return theirs  # no family of ours, or a class that somebody has registered
        ours = getattr(importlib.import_module(module), name)
        return ours if issubclass(ours, theirs) else theirs

    def __contains__(self, config: type) -> bool:
        return config in MODEL_FOR_CAUSAL_LM_MAPPING

    def __iter__(self) -> Iterator[type]:
        return iter(MODEL_FOR_CAUSAL_LM_MAPPING)

    def __len__(self) -> int:
        return len(MODEL_FOR_CAUSAL_LM_MAPPING)

    def __getattr__(
        self, name: str
    ) -> Any:  # keys, values, items, register, get of a known key, what later versions add
        return getattr(MODEL_FOR_CAUSAL_LM_MAPPING, name)


class AutoModelForCausalLM(transformers.AutoModelForCausalLM):
    __doc__ = transformers.AutoModelForCausalLM.__doc__
    _model_mapping = _Mapping()
