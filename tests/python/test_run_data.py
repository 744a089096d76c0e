"""Prepared data that a run cannot use, or uses in part: said before anything is loaded or written."""

import json

import pytest

from bad_input import GOOD_ROW, Case, run_phalanx


def chat(answer_words):
    return {"messages": [GOOD_ROW["messages"][0], {"role": "assistant", "content": " 7" * answer_words}]}


def prepare(job, rows, model=None):
    """The rows as token shards, which the job then takes."""
    job.write_rows(rows)
    prepared = job.folder / "prepared"
    done = run_phalanx("prepare", "--model", model or job.model, "--data", job.data, "--output", prepared)
    assert done.returncode == 0, done.stderr
    job.options += ["--data", str(prepared)]
    return prepared


def other_vocabulary(job):
    prepare(job, [GOOD_ROW] * 4)
    weights = job.model / "model.safetensors"
    assert weights.exists()
    shrink_vocabulary(job.model, 40)


def shrink_vocabulary(model, size):
    from safetensors.torch import load_file, save_file

    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    tensors = load_file(model / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:size].clone()
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


def too_long(job):
    prepare(job, [GOOD_ROW, chat(100)])
    job.options += ["--on-long", "error"]


def all_too_long(job):
    prepare(job, [chat(100)] * 3)


def all_held_out(job):
    prepare(job, [GOOD_ROW] * 8)
    job.options += ["--validation-fraction", "0.99"]


CASES = [
    Case(
        "vocabulary",
        other_vocabulary,
        (
            "{folder}/prepared/shard-00000.safetensors",
            "({data}:1), position",
            "vocabulary of 40",
            "own tokenizer",
        ),
    ),
    Case("on-long-error", too_long, ("{data}:2", "more than sequence_length 64", "data.on_long to drop")),
    Case(
        "all-too-long",
        all_too_long,
        ("{folder}/prepared", "all 3 are longer than data.sequence_length 64", "--on-long truncate"),
    ),
    Case(
        "all-held-out",
        all_held_out,
        (
            "{folder}/prepared",
            "of 8 samples none is left for training",
            "validation_fraction 0.99",
            "lower it",
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_data_that_cannot_be_used(case, job):
    case.check(job)


def test_what_is_dropped_or_cut_is_counted(job):
    job.edit_config(max_position_embeddings=1024)
    prepare(job, [GOOD_ROW] * 5 + [chat(100)] * 2)
    dropped = run_phalanx(*job.command(), "--dry-run")
    longest = json.loads((job.folder / "prepared" / "manifest.json").read_text())["counts"]["longest"]
    assert longest > 64
    assert "training data: 5 samples" in dropped.stderr
    assert (
        f"dropped 2 of 7 samples longer than 64 tokens; --sequence-length {longest} keeps all"
        in dropped.stderr
    )
    cut = run_phalanx(*job.command(), "--dry-run", "--on-long", "truncate")
    assert "training data: 7 samples" in cut.stderr
    assert f"cut 2 of 7 samples to 64 tokens; --sequence-length {longest} keeps all" in cut.stderr
    whole = run_phalanx(*job.command(), "--dry-run", "--sequence-length", str(longest))
    assert "training data: 7 samples" in whole.stderr
    assert "dropped" not in whole.stderr and "cut" not in whole.stderr


def test_eval_counts_what_it_leaves_out(job):
    prepared = prepare(job, [GOOD_ROW] * 5 + [chat(100)] * 2)
    done = run_phalanx("eval", "--model", job.model, "--data", prepared, "--sequence-length", "64")
    assert done.returncode == 0, done.stderr
    assert "validation data: 5 samples" in done.stderr
    assert "dropped 2 of 7 samples longer than 64 tokens" in done.stderr
    assert done.stdout.strip().endswith("samples 5  dropped 2")


def test_metrics_tell_what_was_left_out(job):
    prepare(job, [GOOD_ROW] * 5 + [chat(100)] * 2)
    longest = json.loads((job.folder / "prepared" / "manifest.json").read_text())["counts"]["longest"]
    job.options += ["--max-steps", "3", "--save-every", "2"]
    for _ in range(2):  # the second time nothing is left to do
        assert run_phalanx(*job.command()).returncode == 0
    lines = [json.loads(line) for line in (job.output / "metrics.jsonl").read_text().splitlines()]
    assert [line for line in lines if "samples" in line] == [
        {
            "step": 1,
            "samples": 5,
            "dropped_samples": 2,
            "truncated_samples": 0,
            "longest_sample": longest,
        }
    ]


def test_a_run_that_fails_before_its_first_step_leaves_nothing(job):
    """The engine is missing: found after the output folder was made."""
    prepare(job, [GOOD_ROW] * 5)
    missing = job.folder / "libphalanx_torch-2.11.so"
    done = run_phalanx(*job.command(), PHALANX_LIBRARY=str(missing))
    assert done.returncode == 1
    assert str(missing) in done.stderr
    assert not job.output.exists()
