"""The ranks of a distributed run: their groups, and what each of them does."""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from phalanx import engine
from phalanx.errors import NOT_ACCEPTABLE

_PR_SET_PDEATHSIG = 1  # the launcher's end is ours


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


def main(config_file: str) -> int:
    """One rank of a training run that `phalanx.launch` has started: its place is in torchrun's variables."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["PHALANX_LAUNCHER"]):
        return 1  # it has ended already
    try:
        code, message = train(Path(config_file).read_text())
    except engine.EngineError as error:
        code, message = NOT_ACCEPTABLE, str(error)
    if message and (path := os.environ.get("PHALANX_ERROR_FILE")):
        Path(path).write_text(message)
    return code


def train(config: str) -> tuple[int, str]:
    """Trains as the resolved configuration says; every rank calls it. -> (exit code, what went wrong)."""
    resolved = json.loads(config)
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds()))
    if resolved["train"]["threads"] is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))
    engine.load()
    try:
        groups = make_groups(resolved["distributed"]["ep_size"])
        dist.barrier()  # no rank may fail and leave while others still look for it
        return torch.ops.phalanx.finetune_rank(config, groups)
    finally:
        dist.destroy_process_group()


def run_under_torchrun(program: Path, arguments: list[str]) -> int:
    """`torchrun ... -m phalanx finetune ARGUMENTS`: the first rank lets the program check and lock everything."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds()))
    rank, world = dist.get_rank(), dist.get_world_size()
    with tempfile.TemporaryDirectory() as folder:
        handover = Path(folder) / "config.json"
        checked, code = None, 0
        if rank == 0:
            checked = subprocess.Popen(
                [str(program), *arguments, "--ranks", str(world)],
                env={**os.environ, "PHALANX_HANDOVER": str(handover), "PHALANX_PYTHON": sys.executable},
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            while checked.poll() is None and not handover.exists():
                time.sleep(0.05)
            code = checked.poll() or 0
        given = [(code, handover.read_text() if handover.exists() else None)]
        dist.broadcast_object_list(given)
        code, config = given[0]
        if config is None:
            return code  # refused, or a dry run: the program has said why
        code, message = train(config)
        if message:
            print(f"phalanx: error: rank {rank}: {message}", file=sys.stderr)
        if checked is not None:
            checked.stdin.close()
            checked.wait()
        return code


def timeout_seconds() -> int:
    """After which a rank that takes no part in a collective call is given up."""
    return int(os.environ.get("PHALANX_RANK_TIMEOUT", "1800"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
