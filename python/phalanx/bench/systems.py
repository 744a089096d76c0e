"""The systems that are measured. Each builds the same model with the same weights and gives its loss."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from phalanx import engine
from phalanx.bench.batches import Batch
from phalanx.bench.shapes import fill
from phalanx.errors import UserError

ADAMW = dict(lr=1e-6, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


@dataclass
class Setting:
    """What a system is to run."""

    config: dict
    batch: Batch
    sequence: int
    device: str
    experts: str  # the engine's
    states: str  # of the optimizer: none (forward and backward alone), fp32, bf16 or 8bit
    in_backward: bool
    recompute: str  # none, selective or full


class Phalanx:
    """The C++ model through torch.classes.phalanx.CausalLM."""

    name = "phalanx"

    def __init__(self, setting: Setting):
        engine.load()
        config = setting.config
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            self.model = torch.classes.phalanx.CausalLM(
                folder, config["dtype"], setting.experts, None, torch.device(setting.device), False,
                setting.recompute,
            )  # fmt: skip
        self.parameters = dict(self.model.parameters().items())
        for name, parameter in self.parameters.items():
            fill(name, parameter)
        self.batch = setting.batch  # on the CPU, so that nothing waits for the device
        self.optimizer = None
        if setting.states != "none":
            beta1, beta2 = ADAMW["betas"]
            self.optimizer = torch.classes.phalanx.AdamW(
                self.model, ADAMW["lr"], beta1, beta2, ADAMW["eps"], ADAMW["weight_decay"], setting.states,
                setting.in_backward, 0,
            )  # fmt: skip

    def loss(self) -> torch.Tensor:
        return self.model.forward(self.batch.tokens, self.batch.labels, self.batch.lengths)["loss"]

    def update(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step(1.0)

    def versions(self) -> dict:
        version = Path(__file__).parents[1] / "version.txt"
        return {"phalanx": version.read_text().strip()}


class Transformers:
    """Transformers with its grouped experts and SDPA attention."""

    name = "transformers"

    def __init__(self, setting: Setting):
        if setting.in_backward or setting.states == "8bit":
            raise UserError(
                f"{self.name} has no 8-bit states and no update within backward: leave --against out"
            )
        self.prepare()
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.initialization import no_init_weights

        config, device = setting.config, setting.device
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
        if setting.recompute != "none":
            self.model.gradient_checkpointing_enable()
        ids, labels, positions = setting.batch.padded(setting.sequence)
        self.inputs = dict(input_ids=ids.to(device), labels=labels.to(device), use_cache=False)
        if any(len(row) > 1 for row in setting.batch.rows):
            self.inputs["position_ids"] = positions.to(device)
        self.optimizer = None
        if setting.states != "none":
            # The states have the dtype of the parameters.
            if setting.states != {"bfloat16": "bf16", "float32": "fp32"}[config["dtype"]]:
                raise UserError(f"torch keeps the states of {config['dtype']} weights in {config['dtype']}")
            fused = device == "cuda"
            self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=fused, **ADAMW)

    def prepare(self) -> None:
        """Patches of a system built on this one."""

    def loss(self) -> torch.Tensor:
        return self.model(**self.inputs).loss

    def update(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()

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
