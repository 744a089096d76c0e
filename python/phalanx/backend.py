"""`backend=` of from_pretrained and from_config: which implementation computes what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

# What there is beside "auto", which lets the engine choose.
_CHOICES = {
    "attn": ("sdpa", "eager"),
    "linear": ("torch",),
    "rms_norm": ("phalanx",),
    "experts": ("eager", "batched_mm", "grouped_mm", "phalanx"),
    "dispatcher": ("local",),
}


@dataclass(frozen=True)
class BackendConfig:
    """Names an implementation per kind of work; "auto" everywhere by default.

    attn: `sdpa` or `eager`, as Transformers' attn_implementation; the engine computes the mathematics of either.
    linear: `torch`, torch's matrix products.
    rms_norm: `phalanx`, the engine's.
    experts: `eager` (one expert after the other), `batched_mm`, `grouped_mm` (torch's) or `phalanx` (own, for Hopper).
        Whether the device has it is known, and an error, in the first forward pass.
    dispatcher: `local`, every rank holds all experts.

    Throws ValueError for a name that there is not; the message lists those that there are.
    """

    attn: str = "auto"
    linear: str = "auto"
    rms_norm: str = "auto"
    experts: str = "auto"
    dispatcher: str = "auto"

    def __post_init__(self) -> None:
        for field in fields(self):
            name, known = getattr(self, field.name), ("auto", *_CHOICES[field.name])
            if name not in known:
                raise ValueError(f"backend: {field.name} is {name!r}; there are {', '.join(known)}")

    @classmethod
    def of(cls, given: BackendConfig | Mapping[str, str] | None) -> BackendConfig:
        """From what a caller writes. Throws TypeError or ValueError."""
        if given is None or isinstance(given, BackendConfig):
            return given or cls()
        if not isinstance(given, Mapping):
            raise TypeError(f"backend is a {type(given).__name__}; expected a BackendConfig or a dict")
        if unknown := sorted(set(given) - set(_CHOICES)):
            raise ValueError(f"backend: there is no {', '.join(unknown)}; there are {', '.join(_CHOICES)}")
        return cls(**given)

    def attention_arguments(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """What from_pretrained is told beside its `arguments`. Throws ValueError where they say something else."""
        if self.attn == "auto":
            return {}
        asked = arguments.get("attn_implementation")
        if asked not in (None, self.attn):
            raise ValueError(
                f"backend: attn is {self.attn!r}, but attn_implementation is {asked!r}; give one of them"
            )
        return {"attn_implementation": self.attn}

    def apply(self, model: torch.nn.Module) -> None:
        """Tells the layers of the model. Throws ValueError for a model that the engine does not compute."""
        layers = [module for module in model.modules() if hasattr(module, "phalanx_experts")]
        if not layers and self != BackendConfig(attn=self.attn):
            chosen = [name for name in _CHOICES if name != "attn" and getattr(self, name) != "auto"]
            raise ValueError(
                f"backend: {', '.join(chosen)} cannot be chosen for a {type(model).__name__}, which runs on "
                "Transformers' path; leave it auto"
            )
        for layer in layers:
            layer.phalanx_experts = self.experts
