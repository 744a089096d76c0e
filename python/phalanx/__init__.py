"""Phalanx fine-tunes Mixture-of-Experts language models: a C++20/CUDA engine with a Hugging Face face.

    from phalanx import AutoModelForCausalLM

Nothing of torch or Transformers is imported before one of the names below is used.
"""

import importlib

_HOMES = {
    "AutoModelForCausalLM": "phalanx.auto",
    "BackendConfig": "phalanx.backend",
    "DistributedSetup": "phalanx.distributed",
    "create_distributed_setup": "phalanx.distributed",
    "explain": "phalanx.explanation",
    "patch": "phalanx.patching",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
