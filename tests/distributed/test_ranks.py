"""`phalanx finetune` on several ranks of this machine: one rank's losses and weights, whatever the layout; faults."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from chat_data import write_chat_model
from finetune_run import checkpoint, finetune, finetune_command, losses, metrics, write_chats

CONFIG = dict(
    hidden_size=32,
    intermediate_size=48,
    moe_intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=6,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    max_position_embeddings=256,
    initializer_range=0.1,
)
FIELDS = dict(schedule__kind="constant", train__threads=1, train__max_steps=4, checkpoint__every_steps=2)
RANKS = [
    dict(distributed__ranks=2, distributed__ep_size=2, train__accumulation=2),
    dict(distributed__ranks=4, distributed__ep_size=4, train__accumulation=1),
    dict(distributed__ranks=4, distributed__ep_size=2, train__accumulation=1),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_chat_model(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3_moe", vocab_size=len(AutoTokenizer.from_pretrained(folder)), **CONFIG
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    chats = write_chats(folder / "chats.jsonl", 60)
    command = ["phalanx", "prepare", "--model", model, "--data", chats, "--output", folder / "tokens"]
    subprocess.run(command, check=True)
    return folder / "tokens"


@pytest.fixture(scope="module")
def one_rank(model, data, tmp_path_factory):
    """Four steps on one rank, of four micro-batches each."""
    output = tmp_path_factory.mktemp("one") / "run"
    finetune(model, data, output, **FIELDS, train__accumulation=4, train__router_aux_loss_coef=0.01)
    return output


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_run(found, expected):
    for name in ("loss", "grad_norm", "aux_loss", "tokens", "supervised_tokens", "expert_load"):
        values = [[line[name] for line in metrics(run) if name in line] for run in (found, expected)]
        assert len(values[1]) == 4 and values[0] == pytest.approx(values[1], rel=1e-4), name
    first = [
        next(line["grad_norm"] for line in metrics(run) if "grad_norm" in line) for run in (found, expected)
    ]
    assert first[0] == pytest.approx(first[1], rel=1e-6)
    theirs = weights(expected / "model")
    mine = weights(found / "model")
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (mine[name] - tensor).abs().max() <= 1e-3 * tensor.abs().max(), name


@pytest.mark.parametrize(
    "layout",
    [pytest.param(layout, marks=[] if layout is RANKS[2] else pytest.mark.slow) for layout in RANKS],
    ids=lambda layout: "-".join(str(v) for v in layout.values()),
)
def test_a_run_equals_that_of_one_rank(model, data, one_rank, tmp_path, layout):
    finetune(model, data, tmp_path / "run", **FIELDS, **layout, train__router_aux_loss_coef=0.01)
    assert_same_run(tmp_path / "run", one_rank)


def test_goes_on_with_another_number_of_ranks(model, data, one_rank, tmp_path):
    """4 ranks, then 1, then 2: the same run, and a checkpoint holds the whole model whoever wrote it."""
    output = tmp_path / "run"
    fields = {**FIELDS, "train__router_aux_loss_coef": 0.01}
    finetune(model, data, output, **{**fields, "train__max_steps": 2}, **RANKS[1])
    found, expected = (weights(checkpoint(run, 2)) for run in (output, one_rank))
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in expected.items()}
    shutil.rmtree(output / "model")
    finetune(model, data, output, **{**fields, "train__max_steps": 3}, train__accumulation=4)
    finetune(model, data, output, **fields, **RANKS[0])
    assert_same_run(output, one_rank)


def test_ranks_use_the_engine_of_the_program(model, data, tmp_path, monkeypatch):
    monkeypatch.delenv("PHALANX_LIBRARY")
    finetune(model, data, tmp_path / "run", **{**FIELDS, "train__max_steps": 1}, **RANKS[0])


@pytest.mark.slow
def test_the_same_job_gives_the_same_bits(model, data, tmp_path):
    runs = [tmp_path / "first", tmp_path / "second"]
    for output in runs:
        finetune(model, data, output, **FIELDS, **RANKS[0])
    assert losses(runs[0]) == losses(runs[1])
    first, second = (weights(run / "model") for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_torchrun_starts_the_ranks(model, data, one_rank, tmp_path):
    command = finetune_command(
        model, data, tmp_path / "run", **FIELDS, train__accumulation=2, train__router_aux_loss_coef=0.01
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    run = subprocess.run(
        [*torchrun, *map(str, command), "--ep-size", "2"], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert_same_run(tmp_path / "run", one_rank)


def ranks_of(program):
    """Process ids of the ranks, children of the launcher that `program` has started."""

    def children(pid):
        return [
            int(child)
            for child in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True).stdout.split()
        ]

    return [rank for launcher in children(program.pid) for rank in children(launcher)]


def test_a_killed_rank_ends_all(model, data, tmp_path):
    output = tmp_path / "run"
    command = finetune_command(model, data, output, **{**FIELDS, "train__max_steps": 100000}, **RANKS[0])
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while program.stdout.readline().split()[:1] != ["step"]:
        assert program.poll() is None, program.stderr.read()
    ranks = ranks_of(program)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    killed = time.monotonic()
    _, errors = program.communicate(timeout=30)
    assert time.monotonic() - killed < 5
    assert program.returncode == 128 + signal.SIGKILL
    assert "rank 1 on " in errors and "SIGKILL" in errors
    assert not any(os.path.exists(f"/proc/{rank}") for rank in ranks)
    assert not (output / "lock").exists()


def test_a_signal_saves_on_all_ranks(model, data, tmp_path):
    output = tmp_path / "run"
    command = finetune_command(model, data, output, **{**FIELDS, "train__max_steps": 100000}, **RANKS[0])
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while program.stdout.readline().split()[:1] != ["step"]:
        assert program.poll() is None, program.stderr.read()
    program.send_signal(signal.SIGTERM)
    said, errors = program.communicate(timeout=60)
    assert program.returncode == 75, said + errors
    assert "stopped by a signal after step" in said


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (
            dict(distributed__ranks=4, distributed__ep_size=3),
            ["distributed.ep_size", "found 3", "4 ranks", "divide"],
        ),
        (dict(distributed__ranks=8, distributed__ep_size=8), ["ep_size is 8", "6 experts", "lower ep_size"]),
        (
            dict(distributed__ranks=2, optimizer__update="in_backward_twice"),
            ["optimizer.update", "after_backward"],
        ),
    ],
    ids=str,
)
def test_a_layout_that_cannot_be_is_refused(model, data, tmp_path, layout, words):
    run = finetune(model, data, tmp_path / "run", expected=2, **{**FIELDS, **layout})
    assert all(word in run.stderr for word in words), run.stderr
