"""What runs in the engine and what on Transformers' path, and why."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

import torch

log = logging.getLogger("phalanx")

# Generation and evaluation keep Transformers' path by design; saying so in the log would be noise.
CACHE = "a key/value cache is used"
_logged: set[tuple[str, str]] = set()


@dataclass
class Calls:
    """Calls of one kind of work in one module: how many ran fused, how many did not, by reason."""

    fused: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)

    def fall_back(self, what: str, reason: str) -> None:
        self.fallbacks[reason] += 1
        if reason != CACHE and (what, reason) not in _logged:
            _logged.add((what, reason))
            log.warning("%s runs on Transformers' path: %s", what, reason)


@dataclass(frozen=True)
class Row:
    """One line of an explanation."""

    name: str  # of the module and its work: "model.layers.0 attention"
    calls: Calls
    reason: str | None  # what of the module itself keeps it off the engine now


class Explanation:
    """The rows of a model. Printing it shows them; `fused` and `fallen_back` sum up the calls.

    `kept` counts the modules of a model without a C++ family that look like the engine's work and are not, by the kind
    of work, the module's class and the reason.
    """

    def __init__(self, rows: list[Row], kept: Counter[tuple[str, str, str]] | None = None) -> None:
        self.rows = rows
        self.kept = kept or Counter()

    @property
    def fused(self) -> int:
        return sum(row.calls.fused for row in self.rows)

    @property
    def fallen_back(self) -> int:
        return sum(row.calls.fallbacks.total() for row in self.rows)

    def reasons(self) -> Counter[str]:
        return sum((row.calls.fallbacks for row in self.rows), Counter())

    def reset(self) -> None:
        for row in self.rows:
            row.calls.fused = 0
            row.calls.fallbacks.clear()

    def __str__(self) -> str:
        left = [
            f"{work} of {count} {cls} is left to Transformers: {reason}"
            for (work, cls, reason), count in self.kept.items()
        ]
        if not self.rows:
            return "\n".join(["nothing of this model runs in the engine", *left])
        width = max(len(row.name) for row in self.rows)
        lines = [f"{row.name:<{width}}  {_in_words(row)}" for row in self.rows] + left
        return "\n".join([*lines, f"calls: {self.fused} fused, {self.fallen_back} on Transformers' path"])

    __repr__ = __str__


def explain(model: torch.nn.Module) -> Explanation:
    """Per half of a layer, norm and head of `model`: what ran where in its forward passes so far, and why."""
    rows = []
    kept: Counter[tuple[str, str, str]] = Counter()
    for name, module in model.named_modules():
        kept.update(module.__dict__.get("phalanx_kept", {}))
        for what, calls in getattr(module, "phalanx_calls", {}).items():
            rows.append(Row(f"{name} {what}".strip(), calls, module.why_not_fused(what)))
    return Explanation(rows, kept)


def _in_words(row: Row) -> str:
    now = "fused" if row.reason is None else f"Transformers' ({row.reason})"
    counts = [f"fused {row.calls.fused}"] if row.calls.fused else []
    counts += [f"Transformers' {count} ({reason})" for reason, count in row.calls.fallbacks.items()]
    return f"{now}; calls so far: {', '.join(counts) or 'none'}"
