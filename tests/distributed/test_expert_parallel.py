"""Experts spread over ranks compute what one device computes. A test starts its ranks once, with all cases inside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"


def torchrun(script, world, *arguments, timeout=300):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    paths = os.pathsep.join([str(SUPPORT), os.environ["PYTHONPATH"]])
    return subprocess.run(
        [*command, str(HERE / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_gradient_is_that_of_one_device(world):
    run = torchrun("gradient_cases.py", world)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert "compared " in run.stdout
