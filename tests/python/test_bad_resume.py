"""What must not be resumed, and what a finished run leaves behind."""

import json

import pytest

from bad_input import GOOD_ROW, run_phalanx


@pytest.fixture
def run(job):
    """A run of three steps with a checkpoint at each."""
    job.options += ["--max-steps", "3", "--save-every", "1", "--set", "checkpoint.keep_last=9"]
    done = run_phalanx(*job.command())
    assert done.returncode == 0, done.stderr
    return job


def resume(run, *options, expected=2):
    done = run_phalanx(*run.command(), "--max-steps", "5", *options)
    assert done.returncode == expected, done.stderr
    return done.stderr


def checkpoint(run, step):
    return run.output / "checkpoints" / f"step-{step:08d}"


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_finished_run_holds_no_lock(run):
    assert sorted(path.name for path in run.output.iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "model",
    ]
    resume(run, expected=0)


def test_metrics_hold_every_step_whatever_is_printed(job):
    job.options += ["--max-steps", "5", "--log-every", "4"]
    done = run_phalanx(*job.command())
    lines = [json.loads(line) for line in (job.output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5]
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("step ")] == [
        "4/5",
        "5/5",
    ]


def test_changed_data_are_named(run):
    run.write_rows([GOOD_ROW] * 9)
    message = resume(run)
    assert f"{run.data}: has changed since the checkpoint was saved: its SHA-256 was" in message
    assert "put the old data back, or start anew in another output folder" in message


def test_data_prepared_in_another_way_are_told_apart(run):
    (run.model / "special_tokens_map.json").write_text("{}")
    message = resume(run)
    assert "the data files are those of the checkpoint, but they were prepared in another way" in message


def test_a_changed_model_is_named(run):
    run.edit_config(rope_theta=123.0)
    message = resume(run)
    assert f"{run.model}/config.json: has changed since {checkpoint(run, 3)} was saved" in message
    assert "put the old file back" in message


def test_of_damaged_checkpoints_the_newest_whole_one_is_named(run):
    flip_a_bit(checkpoint(run, 3) / "optimizer.safetensors")
    flip_a_bit(checkpoint(run, 2) / "model.safetensors")
    message = resume(run)
    assert f"{checkpoint(run, 3)}/optimizer.safetensors: tensor" in message and "is damaged" in message
    assert f"the newest older checkpoint that is whole: --resume {checkpoint(run, 1)}" in message
    resume(run, "--resume", str(checkpoint(run, 1)), expected=0)


def test_damaged_progress_names_the_newest_whole_checkpoint(run):
    flip_a_bit(checkpoint(run, 3) / "progress.json")
    message = resume(run)
    assert f"{checkpoint(run, 3)}/progress.json is damaged" in message
    assert f"--resume {checkpoint(run, 2)}" in message
    (checkpoint(run, 3) / "manifest.json").unlink()
    message = resume(run)
    assert f"{checkpoint(run, 3)}/manifest.json" in message and f"--resume {checkpoint(run, 2)}" in message


def test_no_checkpoint_is_whole(run):
    for step in (1, 2, 3):
        flip_a_bit(checkpoint(run, step) / "model.safetensors")
    assert "no older checkpoint is whole: start anew in another output folder" in resume(run)


@pytest.mark.parametrize("name", ["empty", "model"])
def test_export_of_what_is_no_run(job, name):
    source = job.folder / name
    source.mkdir(exist_ok=True)
    done = run_phalanx("export", source, "--output", job.folder / "out")
    assert done.returncode == 2
    assert f"{source}: is neither a run with a checkpoint" in done.stderr
    assert "name the --output of a finetune" in done.stderr
    assert not (job.folder / "out").exists()
