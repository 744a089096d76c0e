"""Which tokens of a batch [B, S] form a document, worked out once per forward pass of the model.

The engine takes documents end to end. A row of the batch is a document; a row of packed documents is several,
told apart by their position ids, as Transformers tells them. Leading padding is set apart and gets no attention.
Trailing padding stays with its row: no earlier token sees it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from phalanx import compat


@dataclass
class Batch:
    """What every layer of one forward pass is told. `reason` says why attention cannot run fused, or is None."""

    documents: Any = None  # torch.classes.phalanx.Documents
    reason: str | None = None
    mask_arguments: dict[str, Any] | None = None  # for the mask that a layer on Transformers' path needs
    _masks: dict[bool, Any] = field(default_factory=dict)  # by whether there is a sliding window
    _rope: dict[int, tuple[Any, torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def attention_mask(self, given: Any, hidden: torch.Tensor, windowed: bool) -> Any:
        """The mask for Transformers' attention: the one given, unless making it was put off."""
        if self.mask_arguments is None:
            return given
        if windowed not in self._masks:
            self._masks[windowed] = compat.causal_mask(hidden, windowed, **self.mask_arguments)
        return self._masks[windowed]

    def rope(self, position_embeddings: tuple[torch.Tensor, torch.Tensor], rows: int) -> tuple:
        """Cosines and sines [B * S, D / 2] of Transformers' [B or 1, S, D], whose two halves are alike."""
        cos, sin = position_embeddings
        known = self._rope.get(id(cos))
        if known is None or known[0] is not cos:
            known = (cos, _half_table(cos, rows), _half_table(sin, rows))
            self._rope[id(cos)] = known
        return known[1:]


def _half_table(table: torch.Tensor, rows: int) -> torch.Tensor:
    half = table[..., : table.shape[-1] // 2]
    wide = half if half.dtype == torch.float64 else half.float()
    return wide.expand(rows, -1, -1).reshape(-1, half.shape[-1]).contiguous()


def plain_batch(rows: int, length: int, device: torch.device) -> Batch:
    """Rows without padding, each one document."""
    return Batch(_documents([length] * rows, device))


def make_batch(
    rows: int,
    length: int,
    device: torch.device,
    attention_mask: Any,
    position_ids: torch.Tensor | None,
) -> Batch:
    """Reads mask and positions as Transformers does: positions tell documents apart only where no mask is given."""
    if rows * length == 0:
        return Batch(reason="an empty batch")
    if attention_mask is not None:
        return _masked_batch(rows, length, device, attention_mask)
    if position_ids is None:
        return plain_batch(rows, length, device)
    return _packed_batch(rows, length, device, position_ids)


def _masked_batch(rows: int, length: int, device: torch.device, mask: Any) -> Batch:
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return Batch(reason="an attention mask that is not [batch, tokens]")
    if tuple(mask.shape) != (rows, length):
        return Batch(reason="an attention mask of another shape than the tokens")
    real = mask.to(dtype=torch.bool, device="cpu")
    if bool(real.all()):
        return plain_batch(rows, length, device)
    starts = real & ~torch.nn.functional.pad(real, (1, 0))[:, :-1]
    if bool((starts.sum(1) > 1).any()):
        return Batch(reason="an attention mask with holes")
    leading = (real.cumsum(1) == 0).sum(1).tolist()  # a row without any token is padding throughout
    lengths: list[int] = []
    padding: list[torch.Tensor] = []
    for row, pads in enumerate(leading):
        lengths.extend(part for part in (pads, length - pads) if part > 0)
        padding.append(torch.arange(row * length, row * length + pads))
    return Batch(_documents(lengths, device, torch.cat(padding) if any(leading) else None))


def _packed_batch(rows: int, length: int, device: torch.device, position_ids: torch.Tensor) -> Batch:
    if position_ids.dim() != 2 or position_ids.shape[1] != length or position_ids.shape[0] not in (1, rows):
        return Batch(reason="position ids that are not [batch, tokens]")
    steps = position_ids.to("cpu").diff(dim=1) != 1
    if not bool(steps.any()):
        return plain_batch(rows, length, device)
    lengths: list[int] = []
    for row in steps.expand(rows, -1):
        borders = [0, *(row.nonzero().flatten() + 1).tolist(), length]
        lengths.extend(end - begin for begin, end in itertools.pairwise(borders))
    return Batch(_documents(lengths, device))


def _documents(lengths: list[int], device: torch.device, padding: torch.Tensor | None = None) -> Any:
    on_device = None if padding is None else padding.to(device)
    return torch.classes.phalanx.Documents(lengths, device, on_device)


def supervises_padding(attention_mask: Any, targets: torch.Tensor, leading_too: bool) -> bool:
    """Whether a padding token is asked to predict something, so that it matters what it sees.

    `targets` [B, S or S - 1] are the labels of the next token. With Transformers' `eager` attention it matters for
    leading padding too; its other implementations give such tokens no attention, as ours.
    """
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.dim() != 2:
        return False
    if targets.dim() != 2 or targets.shape[0] != attention_mask.shape[0]:
        return False
    real = attention_mask[:, : targets.shape[1]].bool()
    padding = ~real if leading_too else ~real & (real.cumsum(1) > 0)
    return bool((padding & (targets[:, : real.shape[1]] != -100).to(padding.device)).any())
