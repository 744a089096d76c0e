"""`python -m phalanx bench` on the CPU: the same losses, a record, and the table made from it."""

import json
import subprocess
import sys

import pytest


def bench(*arguments, code=0):
    run = subprocess.run(
        [sys.executable, "-m", "phalanx", "bench", *map(str, arguments)], capture_output=True, text=True
    )
    assert run.returncode == code, run.stdout + run.stderr
    return run


def test_a_step_beside_transformers(tmp_path):
    record = tmp_path / "step.json"
    few = ("--batch", 2, "--sequence", 32, "--warmup", 0, "--steps", 2)
    run = bench("step", "--model", "tiny", *few, "--against", "transformers", "--json", record)
    assert "x transformers" in run.stdout
    ours, theirs = json.loads(record.read_text())["results"]
    assert (ours["system"], theirs["system"]) == ("phalanx", "transformers")
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["tokens_per_second"] == pytest.approx(64 / ours["step_ms"] * 1e3)
    assert "one layer" in bench("table", record).stdout


def test_the_recorded_step_adds_up():
    from phalanx.bench.breakdown import breakdown
    from tree import ROOT

    record = json.loads((ROOT / "benchmarks/results/step/batch4.json").read_text())
    result = record["results"][0]
    in_layers, in_head, other = breakdown(record, result)
    whole = 24 * sum(part.ms for part in in_layers) + sum(part.ms for part in in_head) + other
    assert whole == pytest.approx(sum(kernel["ms"] for kernel in result["kernels"]))
    assert all(part.ms > 0 for part in in_layers + in_head)
    assert other < 0.02 * whole


def test_what_cannot_be_compared_is_refused():
    assert "expected" in bench("step", "--against", "nobody", code=2).stderr
    assert "name the record" in bench("table", code=2).stderr
