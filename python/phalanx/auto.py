"""AutoModelForCausalLM: Transformers' class of this name, which makes models whose training runs in the engine.

Families with a C++ implementation come back as a same-named subclass of Transformers' class; all others as
Transformers makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING


class _Mapping:
    """Transformers' mapping from configuration to model, with our classes laid over it."""

    def __getitem__(self, config: type) -> type:
        from phalanx.families import causal_lm_for  # late: `import phalanx` is to cost little

        theirs, ours = MODEL_FOR_CAUSAL_LM_MAPPING[config], causal_lm_for(config)
        # A class that somebody has registered stays.
        bound = ours is not None and isinstance(theirs, type) and issubclass(ours, theirs)
        return ours if bound else theirs

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
