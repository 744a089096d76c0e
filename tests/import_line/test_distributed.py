"""Several ranks equal one, in the engine: DDP, FSDP2, DistributedConfig, Accelerate and Trainer under torchrun."""

import json
import os
import pathlib
import subprocess
import sys

import distributed_cases
import pytest

SCRIPT = pathlib.Path(distributed_cases.__file__)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of all cases, on both ranks, from one run of torchrun."""
    report = tmp_path_factory.mktemp("distributed") / "report.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(report)],
        cwd=SCRIPT.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return dict(map(json.loads, report.read_text().splitlines()))


@pytest.mark.parametrize("name", distributed_cases.CASES)
def test_two_ranks_equal_one(outcomes, name):
    for outcome in outcomes[name]:
        if outcome is not None and not outcome.startswith("Traceback"):
            pytest.skip(outcome)
        assert outcome is None, outcome
