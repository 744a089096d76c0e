"""`distributed_setup=` and `device_mesh=` of from_pretrained and from_config: how a model is spread over ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

_ONLY_ONE = {
    "tp_size": "tensor parallelism",
    "pp_size": "pipeline parallelism",
    "cp_size": "context parallelism",
    "ep_size": "Expert Parallelism",
}


@dataclass(frozen=True)
class DistributedSetup:
    """How a model is spread over the ranks that torchrun started.

    strategy: `fsdp2`, torch's fully_shard over each layer and the model.
    dp_size: ranks that split the data; None for all.
    dp_replicate_size: copies of the sharded model among them.
    tp_size, pp_size, cp_size, ep_size: 1.
    activation_checkpointing: recompute layers in backward.
    reshard_after_forward: free a layer's gathered parameters between forward and backward.

    Throws ValueError where a value cannot be had.
    """

    strategy: str = "fsdp2"
    dp_size: int | None = None
    dp_replicate_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    ep_size: int = 1
    activation_checkpointing: bool = False
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        if self.strategy != "fsdp2":
            raise ValueError(
                f"distributed_setup: strategy is {self.strategy!r}; there is fsdp2. (For data parallelism without "
                "shards wrap the model in torch.nn.parallel.DistributedDataParallel.)"
            )
        for name, what in _ONLY_ONE.items():
            if getattr(self, name) not in (None, 1):
                raise ValueError(
                    f"distributed_setup: {name} is {getattr(self, name)}; {what} is not there, leave it 1"
                )
        world = _world_size()
        if self.dp_size not in (None, world):
            raise ValueError(
                f"distributed_setup: dp_size is {self.dp_size}, but torchrun started {world} ranks"
            )
        if self.dp_replicate_size < 1 or world % self.dp_replicate_size != 0:
            raise ValueError(
                f"distributed_setup: dp_replicate_size is {self.dp_replicate_size}, which does not divide {world} ranks"
            )

    def mesh(self) -> DeviceMesh | None:
        """All ranks as [copies, shards] or [shards]; None for one rank alone."""
        world, copies = _world_size(), self.dp_replicate_size
        if world == 1:
            return None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if copies == 1:
            return init_device_mesh(device, (world,), mesh_dim_names=("dp_shard",))
        return init_device_mesh(
            device, (copies, world // copies), mesh_dim_names=("dp_replicate", "dp_shard")
        )

    def apply(self, model: torch.nn.Module) -> None:
        if self.activation_checkpointing:
            model.gradient_checkpointing_enable()
        mesh = self.mesh()
        if mesh is not None:
            shard(model, mesh, self.reshard_after_forward)


def create_distributed_setup(options: Mapping[str, Any]) -> DistributedSetup:
    """A setup from a dict, such as `{"strategy": "fsdp2", "dp_replicate_size": 2}`. Throws ValueError."""
    known = [field.name for field in fields(DistributedSetup)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"distributed_setup: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return DistributedSetup(**options)


def shard(model: torch.nn.Module, mesh: DeviceMesh, reshard_after_forward: bool = True) -> None:
    """Shards each decoder layer, then the rest, over a mesh of one dimension or of [copies, shards]."""
    from torch.distributed.fsdp import fully_shard

    names = set(model._no_split_modules or ())
    for module in list(model.modules()):
        if type(module).__name__ in names:
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard_after_forward)


def mesh_to_shard_over(arguments: dict[str, Any]) -> DeviceMesh | None:
    """Takes `device_mesh` out of the arguments, unless it is for Transformers' tensor parallelism."""
    mesh = arguments.get("device_mesh")
    others = (arguments.get(name) for name in ("tp_plan", "tp_size", "distributed_config"))
    if mesh is None or "tp" in (mesh.mesh_dim_names or ()) or any(other is not None for other in others):
        return None
    return arguments.pop("device_mesh")


def _world_size() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))
