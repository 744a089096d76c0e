"""What the engine needs to know of a layer's router beside its weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Router:
    """The fields of the engine's RouterSpec (src/ops/specs.h)."""

    top_k: int
    normalize: bool  # the weights of a token's experts are divided by their sum
    score: str = "softmax"  # or "sigmoid"
    scale: float = 1.0
    num_groups: int = 1  # of experts, of which only
    top_groups: int = 1  # the best are chosen from
    correction_bias: torch.Tensor | None = None  # [E], added to the scores for the choice of experts alone
    fp32: bool = False  # logits are computed in fp32
