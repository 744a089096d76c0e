"""AutoModelForCausalLM: Transformers' class of this name, which makes models whose training runs in the engine.

Families with a C++ implementation come back as a same-named subclass of Transformers' class; all others as
Transformers makes them, with the pieces that the engine can compute put into the instance (patching.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from phalanx.backend import BackendConfig
from phalanx.distributed import create_distributed_setup, mesh_to_shard_over, shard


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

    @classmethod
    @functools.wraps(transformers.AutoModelForCausalLM.from_pretrained.__func__)
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        return _made_as_asked(super().from_pretrained, args, kwargs)

    @classmethod
    @functools.wraps(transformers.AutoModelForCausalLM.from_config.__func__)
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        return _made_as_asked(super().from_config, args, kwargs)


def _made_as_asked(make: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What `make` gives, with what is asked for beyond Transformers' arguments."""
    from phalanx.patching import patch  # late, as above

    backend = BackendConfig.of(kwargs.pop("backend", None))
    kwargs.update(backend.attention_arguments(kwargs))
    setup = kwargs.pop("distributed_setup", None)
    if isinstance(setup, Mapping):
        setup = create_distributed_setup(setup)
    if setup is not None and kwargs.get("device_mesh") is not None:
        raise ValueError(
            "distributed_setup makes the device mesh; give one of distributed_setup and device_mesh"
        )
    mesh = mesh_to_shard_over(kwargs)
    made = make(*args, **kwargs)
    model = made[0] if isinstance(made, tuple) else made  # with output_loading_info
    backend.apply(model)
    patch(model)
    if setup is not None:
        setup.apply(model)
    elif mesh is not None:
        shard(model, mesh)
    return made
