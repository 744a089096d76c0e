"""The groups of ranks of a distributed run, as the engine wants them."""

from __future__ import annotations

import torch.distributed as dist


def make_groups(ep_size: int) -> list[str]:
    """Names of three groups: all ranks, those that hold all experts together, those that hold the same experts.

    Experts are spread over `ep_size` neighbouring ranks. Collective: every rank of the default group calls it.
    Throws ValueError when ep_size does not divide the number of ranks.
    """
    world = dist.get_world_size()
    if ep_size < 1 or world % ep_size != 0:
        raise ValueError(f"ep_size is {ep_size}, with {world} ranks; it must divide their number")
    experts, _ = dist.new_subgroups_by_enumeration(
        [list(range(first, first + ep_size)) for first in range(0, world, ep_size)]
    )
    replicas, _ = dist.new_subgroups_by_enumeration(
        [list(range(first, world, ep_size)) for first in range(ep_size)]
    )
    return [group.group_name for group in (dist.group.WORLD, experts, replicas)]
