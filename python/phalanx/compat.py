"""All that differs between the supported versions of Transformers (5.3 and later), in one place."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from transformers import masking_utils
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    build_glob_alternation,
)
from transformers.utils import output_capturing
from transformers.utils.loading_report import LoadStateDictInfo

from phalanx.routing import Router

# The key/value cache, in a layer's and a model's arguments: `past_key_values` until 5.23.
CACHE_ARGUMENTS = ("cache", "past_key_values")


def given_cache(arguments: dict[str, Any]) -> Any:
    """The key/value cache among keyword arguments, or None."""
    for name in CACHE_ARGUMENTS:
        if arguments.get(name) is not None:
            return arguments[name]
    return None


def is_capturing_hook(hook: Callable) -> bool:
    """Whether Transformers installed this forward hook, to record what a module gives."""
    return getattr(hook, "__name__", "") == "output_capturing_hook" and hook.__module__.startswith(
        "transformers."
    )


def causal_mask(
    hidden: torch.Tensor,
    windowed: bool,
    config: Any,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
) -> Any:
    """The mask that Transformers' model makes for its attention when there is no cache. hidden [B, S, H]."""
    make = masking_utils.create_sliding_window_causal_mask if windowed else masking_utils.create_causal_mask
    known = inspect.signature(make).parameters
    arguments = {"config": config, "attention_mask": attention_mask, "position_ids": position_ids}
    arguments["inputs_embeds" if "inputs_embeds" in known else "input_embeds"] = hidden
    arguments[next(name for name in CACHE_ARGUMENTS if name in known)] = None
    if "cache_position" in known and known["cache_position"].default is inspect.Parameter.empty:
        arguments["cache_position"] = torch.arange(hidden.shape[1], device=hidden.device)
    return make(**arguments)


def experts_class(module: ModuleType, prefix: str) -> type:
    """The class of a layer's experts. Those of the DeepSeek kind had another name until 5.12."""
    return getattr(module, f"{prefix}Experts", None) or getattr(module, f"{prefix}NaiveMoe")


def grouped_sigmoid_router(mlp: torch.nn.Module) -> Router:
    """What a router of the DeepSeek kind does. Until 5.12 the layer's `mlp` did it, not its gate."""
    gate = mlp.gate
    routing = mlp if hasattr(mlp, "route_tokens_to_experts") else gate
    return Router(
        routing.top_k,
        routing.norm_topk_prob,
        score="sigmoid",
        scale=routing.routed_scaling_factor,
        num_groups=routing.n_group if routing is mlp else gate.num_group,
        top_groups=routing.topk_group,
        correction_bias=gate.e_score_correction_bias,
        fp32=True,
    )


@functools.cache
def router_records_probabilities(router: type) -> bool:
    """Whether a router of this class gives probabilities as its `router_logits`, as it did until 5.5."""
    return "router_logits = torch.nn.functional.softmax(" in inspect.getsource(router.forward)


def register_recorded_outputs(cls: type) -> None:
    """Lets `output_hidden_states` and the like work for models of this class. The registry goes by the class's text."""
    recorded = getattr(cls, "_can_record_outputs", None)
    if recorded is not None:
        dict.__setitem__(output_capturing._CAN_RECORD_REGISTRY, str(cls), recorded)


def has_own_key_mapping(model: Any, config: Any) -> bool:
    """Whether the caller of from_pretrained renames tensors beyond what the model itself does."""
    return len(config.weight_mapping or []) != len(
        get_model_conversion_mapping(model, None, config.hf_quantizer)
    )


def dtypes_kept(plan: dict[str, torch.dtype] | None) -> Callable[[str], torch.dtype | None]:
    """The dtype in which a tensor of this name is held whatever the model's, by `LoadStateDictConfig.dtype_plan`."""
    if not plan:
        return lambda name: None
    pattern, of_group, _ = build_glob_alternation(list(plan))

    def kept(name: str) -> torch.dtype | None:
        found = pattern.search(name)
        return None if found is None else plan[of_group[found.lastgroup]]

    return kept


def weight_transforms(model: Any) -> list[Any]:
    """The renamings and conversions that lead from the names in files to the model's own, in their order."""
    given = getattr(model, "_weight_conversions", None)
    return get_model_conversion_mapping(model) if given is None else list(given)


def conversions_to_undo(mapping: list[Any], converted: bool) -> list[Any]:
    """What save_pretrained undoes, for files whose tensors were `converted` or not; until 5.3 it undoes all anyway."""
    undoes_all = not hasattr(WeightConverter, "was_used")
    return list(mapping) if converted or undoes_all else []


def rename_saved_key(key: str, transforms: list[Any]) -> tuple[str, WeightConverter | None, str]:
    """The model's name for the tensor `key` of a file, the conversion that led there and its pattern that matched."""
    found, pattern = None, ""
    for transform in transforms:
        if found is not None and isinstance(transform, WeightConverter):
            continue
        key, matched = transform.rename_source_key(key)
        if matched is not None and isinstance(transform, WeightConverter):
            found, pattern = transform, matched
    return key, found, pattern


def stacks_experts(converter: WeightConverter) -> bool:
    """Whether this conversion stacks tensors of experts along dim 0, those of several projections along dim 1."""
    stack, *more = converter.operations
    if not isinstance(stack, MergeModulelist) or stack.dim != 0:
        return False
    if len(converter.source_patterns) == 1:
        return not more
    return len(more) == 1 and isinstance(more[0], Concatenate) and more[0].dim == 1


def loading_info(missing: set[str], unexpected: set[str]) -> LoadStateDictInfo:
    """What a load found, as Transformers reports it."""
    empty = {"error_msgs": list, "conversion_errors": dict}
    values = {field.name: empty.get(field.name, set)() for field in dataclasses.fields(LoadStateDictInfo)}
    return LoadStateDictInfo(**{**values, "missing_keys": missing, "unexpected_keys": unexpected})
