"""Reads a checkpoint straight into the parameters, below Transformers' from_pretrained.

Transformers resolves the files, makes the model without memory (on the device `meta`) and finishes what comes
after; in between its `_load_pretrained_model` is replaced. The engine reads a folder only when all of it fits;
whatever is missing, surplus, misshaped, quantised or pickled is Transformers' own matter, with its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from phalanx import compat
from phalanx.explanation import log

_FLOATS = (torch.float32, torch.bfloat16, torch.float64)


def loading(base: Callable) -> Callable:
    """Transformers' `_load_pretrained_model`, with the engine's reader put before it. For a staticmethod."""

    def load_pretrained_model(
        model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        more = [name for name in kwargs if kwargs[name] is not None] or args
        if more or not all(parameter.is_meta for parameter in model.parameters()):
            reason = "an adapter or a part of a model is loaded"
        else:
            reason = _why_not(model, state_dict, checkpoint_files, load_config)
        if reason is None:
            folder = Path(checkpoint_files[0]).parent
            try:
                info = _load(model, folder, load_config)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
            else:
                log.info("%s: weights read by the engine from %s", type(model).__name__, folder)
                return info, None
        log.info("%s: weights read by Transformers: %s", type(model).__name__, reason)
        return base(model, state_dict, checkpoint_files, load_config, *args, **kwargs)

    return load_pretrained_model


def _why_not(model: torch.nn.Module, state_dict: Any, files: Any, config: Any) -> str | None:
    if state_dict is not None or not files:
        return "they are given as a state dict"
    if not all(str(file).endswith(".safetensors") for file in files):
        return "they are not in safetensors files"
    folder = Path(files[0]).parent
    if {Path(file) for file in files} != set(folder.glob("*.safetensors")):
        return "they are not all of the folder's safetensors files"
    if config.hf_quantizer is not None:
        return "they are quantised"
    if config.device_mesh is not None:
        return "they are distributed over a device mesh"
    if compat.has_own_key_mapping(model, config):
        return "a key mapping is given"
    if {str(device) for device in (config.device_map or {}).values()} - {"cpu"}:
        return "they go to other devices than the CPU"
    dtypes = {dtype for _, dtype in _shapes(model, config).values()}
    return None if dtypes <= set(_FLOATS) else f"they are held as {dtypes}"


def _shapes(model: torch.nn.Module, config: Any) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of every tensor to be read. Some may be kept wider than the others."""
    kept = compat.dtypes_kept(config.dtype_plan)
    tied = getattr(model, "all_tied_weights_keys", {})
    state = model.state_dict()
    return {name: (meta.shape, kept(name) or meta.dtype) for name, meta in state.items() if name not in tied}


def _load(model: Any, folder: Path, config: Any) -> Any:
    """Fills the model. Throws RuntimeError, before anything has changed, when the folder does not fit it."""
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    tensors = _allocate(_shapes(model, config))
    unused, per_expert = torch.ops.phalanx.load_checkpoint(
        str(folder), model.config.to_json_string(use_diff=False), list(tensors), list(tensors.values())
    )
    if tied & set(unused):
        raise RuntimeError("the folder has a head of its own although it is tied")
    for name, tensor in tensors.items():
        _put(model, name, tensor)
    model._weight_conversions = compat.conversions_to_undo(config.weight_mapping or [], per_expert)
    mapping = config.weight_mapping or []  # what is too much is named as it would be in the model
    unexpected = {compat.rename_saved_key(name, mapping)[0] for name in unused}
    return compat.loading_info(missing=tied, unexpected=unexpected)


def _allocate(shapes: dict[str, tuple[torch.Size, torch.dtype]]) -> dict[str, torch.Tensor]:
    """Uninitialised tensors; q, k and v of a layer lie side by side, so that their products run as one."""
    tensors: dict[str, torch.Tensor] = {}
    for name, (shape, dtype) in shapes.items():
        if name in tensors:
            continue
        group = [name.replace("q_proj.weight", f"{kind}_proj.weight") for kind in "qkv"]
        if not name.endswith("self_attn.q_proj.weight") or not all(other in shapes for other in group):
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        rows = [shapes[other][0][0] for other in group]
        together = torch.empty((sum(rows), shape[1]), dtype=dtype)
        tensors.update(zip(group, together.split(rows), strict=True))
    return tensors


def _put(model: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    owners = module._parameters if leaf in module._parameters else module._buffers
    if owners is module._parameters:
        tensor = torch.nn.Parameter(tensor, requires_grad=owners[leaf].requires_grad)
    tensor._is_hf_initialized = True
    owners[leaf] = tensor
