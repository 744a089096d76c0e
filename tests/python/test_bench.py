"""`python -m phalanx bench` on the CPU: the same losses, a record, and the table made from it."""

import itertools
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file


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


def test_a_whole_step_on_packed_rows(tmp_path):
    """With the optimizer, documents kept apart, activations made again; and gradients that repeat."""
    record = tmp_path / "step.json"
    lengths = [20, 9, 12, 30, 2, 17, 25, 8, 31]
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    shard = {
        "tokens": torch.randint(512, (sum(lengths),), dtype=torch.int32),
        "loss_mask": (torch.arange(sum(lengths)) % 3 > 0).to(torch.uint8),
        "offsets": offsets,
    }
    save_file(shard, tmp_path / "tokens-00000.safetensors")
    common = (
        "--model",
        "tiny",
        "--batch",
        3,
        "--sequence",
        32,
        "--warmup",
        0,
        "--steps",
        1,
        "--data",
        tmp_path,
    )
    bench(
        "step",
        *common,
        "--optimizer",
        "fp32",
        "--recompute",
        "full",
        "--against",
        "transformers",
        "--json",
        record,
    )
    result = json.loads(record.read_text())
    ours, theirs = result["results"]
    assert result["documents"] == 5 and result["tokens"] == 20 + 9 + 12 + 30 + 2
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert "1 distinct gradients" in bench("step", *common, "--repeats", 2).stdout
    short = bench("step", "--model", "tiny", "--batch", 9, "--sequence", 32, "--data", tmp_path, code=2)
    assert "fewer samples" in short.stderr
    assert "needs --optimizer" in bench("step", "--update", "in_backward", code=2).stderr


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
