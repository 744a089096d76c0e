"""Lets load_state_dict take the names that save_pretrained writes, beside those of the model's own parameters.

On disk each expert has its own tensors; the model holds those of a layer as one. Transformers' Trainer resumes by
giving the tensors of the files to `load_state_dict(strict=False)`, file by file, which would leave the experts as
they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from phalanx import compat


class LoadsSavedNames:
    """Mixed into a model class of Transformers."""

    def _load_from_state_dict(
        self, state_dict: dict[str, torch.Tensor], prefix: str, local_metadata: dict, *args: Any
    ) -> None:
        assign = local_metadata.get("assign_to_params_buffers", False)
        rename_saved(self, state_dict, prefix, assign)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


@dataclass(frozen=True)
class _Piece:
    """The tensor `key` of a file, which is `place` of one of the model's tensors."""

    key: str
    place: tuple[Any, ...]
    shape: torch.Size
    total: int  # pieces that make up the whole


@torch.no_grad()
def rename_saved(
    model: torch.nn.Module, state_dict: dict[str, torch.Tensor], prefix: str = "", assign: bool = False
) -> None:
    """Replaces the names of files in `state_dict` by the model's own, all of which begin with `prefix`.

    Experts that are in other files keep the values they have. With `assign`, or for a model without memory, an expert
    tensor must be whole. What fits nothing stays as it is, for load_state_dict to report.
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    foreign = [key for key in state_dict if key.startswith(prefix) and key[len(prefix) :] not in own]
    transforms = compat.weight_transforms(model) if foreign else []
    pieces: dict[str, list[_Piece]] = {}
    for key in foreign:
        name, converter, pattern = compat.rename_saved_key(key[len(prefix) :], transforms)
        if name not in own:
            continue
        if converter is None:
            state_dict[prefix + name] = state_dict.pop(key)
        elif (piece := _piece(key, own[name], converter, pattern)) and piece.shape == state_dict[key].shape:
            pieces.setdefault(name, []).append(piece)
    for name, found in pieces.items():
        _merge(state_dict, prefix + name, own[name], found, assign)


def _piece(key: str, whole: torch.Tensor, converter: Any, pattern: str) -> _Piece | None:
    """Where the tensor `key` belongs: `pattern` is the one of the converter's source patterns that it matches."""
    sources = converter.source_patterns
    if not compat.stacks_experts(converter) or type(whole) not in (torch.Tensor, torch.nn.Parameter):
        return None
    number = re.search(re.escape(pattern).replace(r"\*", r"(\d+)"), key)
    if number is None or int(number[1]) >= whole.shape[0]:
        return None
    rows = whole.shape[1] // len(sources)
    begin = sources.index(pattern) * rows
    shape = torch.Size((rows, *whole.shape[2:]))
    return _Piece(key, (int(number[1]), slice(begin, begin + rows)), shape, whole.shape[0] * len(sources))


def _merge(
    state_dict: dict[str, torch.Tensor], name: str, own: torch.Tensor, pieces: list[_Piece], assign: bool
) -> None:
    whole = own.detach()
    if assign or own.is_meta:
        if len(pieces) != pieces[0].total:
            return
        first = state_dict[pieces[0].key]
        whole = torch.empty(own.shape, dtype=first.dtype, device=first.device)
    for piece in pieces:
        whole[piece.place].copy_(state_dict.pop(piece.key))
    state_dict[name] = whole
