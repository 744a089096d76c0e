"""The systems that are measured. Each builds the same model with the same weights and gives its loss."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import tempfile
from pathlib import Path

import torch

from phalanx import engine
from phalanx.bench.shapes import fill

IGNORED = -100


class Phalanx:
    """The C++ model through torch.classes.phalanx.CausalLM."""

    name = "phalanx"

    def __init__(self, config: dict, tokens: torch.Tensor, device: str, experts: str):
        engine.load()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            self.model = torch.classes.phalanx.CausalLM(
                folder, config["dtype"], experts, None, torch.device(device), False
            )
        self.parameters = dict(self.model.parameters().items())
        for name, parameter in self.parameters.items():
            fill(name, parameter)
        rows, length = tokens.shape
        self.tokens = tokens.reshape(-1)  # on the CPU, so that nothing waits for the device
        self.labels = torch.cat([tokens[:, 1:], torch.full((rows, 1), IGNORED)], dim=1).reshape(-1)
        self.lengths = [length] * rows

    def loss(self) -> torch.Tensor:
        return self.model.forward(self.tokens, self.labels, self.lengths)["loss"]

    def versions(self) -> dict:
        version = Path(__file__).parents[1] / "version.txt"
        return {"phalanx": version.read_text().strip()}


class Transformers:
    """Transformers with its grouped experts and SDPA attention."""

    name = "transformers"

    def __init__(self, config: dict, tokens: torch.Tensor, device: str, experts: str):
        self.prepare()
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.initialization import no_init_weights

        values = dict(config)
        model_config = AutoConfig.for_model(values.pop("model_type"), **values)
        with torch.device(device), no_init_weights():
            self.model = AutoModelForCausalLM.from_config(
                model_config,
                dtype=getattr(torch, config["dtype"]),
                attn_implementation="sdpa",
                experts_implementation="grouped_mm",
            )
        self.model.train()
        self.parameters = dict(self.model.named_parameters())
        for name, parameter in self.parameters.items():
            fill(name, parameter)
        self.tokens = tokens.to(device)

    def prepare(self) -> None:
        """Patches of a system built on this one."""

    def loss(self) -> torch.Tensor:
        return self.model(input_ids=self.tokens, labels=self.tokens, use_cache=False).loss

    def versions(self) -> dict:
        return {"transformers": importlib.metadata.version("transformers")}


class Liger(Transformers):
    """Transformers with Liger's kernels: experts, norm, RoPE, fused linear cross-entropy."""

    name = "liger"

    def prepare(self) -> None:
        from liger_kernel.transformers import apply_liger_kernel_to_qwen3_moe

        apply_liger_kernel_to_qwen3_moe()

    def versions(self) -> dict:
        return {**super().versions(), "liger_kernel": importlib.metadata.version("liger_kernel")}


# Liger changes Transformers for the rest of the process: it comes last.
SYSTEMS = {system.name: system for system in (Phalanx, Transformers, Liger)}


def free(system: object) -> None:
    """Gives the memory of a system back, the caching allocator's included."""
    vars(system).clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
