"""Options, output folders and jobs that cannot be.

What is wrong with a job is said at once, with file, place, cause and cure, before torch is loaded and before
anything is written. One case a row of the tables; every one goes through the real program.
"""

import fcntl
import json
import os
import socket

import pytest

from bad_input import Case, options, run_phalanx

OPTION_CASES = [
    Case(
        "option-misspelt",
        options("--lerning-rate", "1"),
        ("'--lerning-rate'", "did you mean '--learning-rate'?", "--help"),
    ),
    Case(
        "option-value",
        options("--learning-rate", "fast"),
        ("--learning-rate: optimizer.learning_rate", '"fast"', "(0, 1]"),
    ),
    Case("option-no-value", options("--seed"), ("--seed", "required", "--help")),
    Case("option-stray", options("--seed", "1", "2"), ("'2'", "option was expected", "--help")),
    Case("set-field", options("--set", "train.sed=1"), ("--set train.sed=1", "did you mean 'train.seed'?")),
    Case("set-form", options("--set", "train.seed"), ("--set train.seed", "write for example --set")),
    Case(
        "sequence-too-long",
        options("--sequence-length", "129"),
        (
            "{model}/config.json",
            "max_position_embeddings is 128",
            "data.sequence_length = 129",
            "--sequence-length 128 or less",
        ),
    ),
    Case(
        "memory",
        options("--sequence-length", "128", "--micro-batch-size", "65536", "--accumulation", "2"),
        (
            "memory: the run needs",
            "are left",
            "activations",
            "it fits with --micro-batch-size 1 --accumulation 131072",
        ),
    ),
    Case("model-not-set", options("--model", ""), ("model is not set", "write `--model TEXT`")),
    Case(
        "model-missing",
        options("--model", "{folder}/none"),
        ("{folder}/none", "no such folder", "config.json"),
    ),
    Case(
        "model-not-in-cache", options("--model", "nobody/nothing"), ("nobody/nothing", "cache", "hf download")
    ),
]


def output_is_file(job):
    job.output.write_text("mine")


def output_below_file(job):
    (job.folder / "note").write_text("mine")
    job.options += ["--output", str(job.folder / "note" / "run")]


def output_foreign(job):
    job.output.mkdir()
    (job.output / "thesis.tex").write_text("mine")


def output_of_another_run(job, **changes):
    """What `phalanx finetune` leaves behind, with a checkpoint."""
    asked = ["--dry-run", "--model", str(job.model), "--data", str(job.data), "--output", str(job.output)]
    done = run_phalanx(
        "finetune", *asked, "--sequence-length", "64", XDG_CACHE_HOME=str(job.folder / "cache")
    )
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)
    config["data"]["train"] = [str(job.data)]
    (job.output / "checkpoints" / "step-00000001").mkdir(parents=True)
    (job.output / "config.json").write_text(json.dumps(config))


def output_of_other_values(job):
    output_of_another_run(job)
    job.options += ["--seed", "5", "--epochs", "3"]


def output_never_resumed(job):
    output_of_another_run(job)
    job.options += ["--resume", "never"]


OUTPUT_CASES = [
    Case("output-file", output_is_file, ("{output}", "is a file", "choose another --output")),
    Case("output-below-file", output_below_file, ("{folder}/note", "is a file", "choose another --output")),
    Case(
        "output-unwritable",
        options("--output", "/proc/phalanx-run"),
        ("/proc", "cannot be written", "--output"),
    ),
    Case(
        "output-foreign", output_foreign, ("{output}", "holds no run of phalanx", "choose another --output")
    ),
    Case(
        "output-other-run",
        output_of_other_values,
        (
            "{output}/config.json",
            "train.seed: the run has 0, this command 5",
            "choose another --output",
        ),
    ),
    Case("output-never", output_never_resumed, ("{output}", "holds checkpoints", "--resume never")),
]


def loop_at(option):
    """A path that cannot be looked at: root may enter every folder, but follows no link to itself."""

    def harm(job):
        loop = job.folder / "loop"
        loop.symlink_to(loop)
        job.options += [option, str(loop)]

    return harm


PATH_CASES = [
    Case(
        f"loop-{option}",
        loop_at(option),
        ("{folder}/loop", "Too many levels of symbolic links", "check the path"),
    )
    for option in ("--data", "--output")
] + [
    Case("data-device", options("--data", "/dev/null"), ("/dev/null", "no regular file", "with --data")),
]


@pytest.mark.parametrize("case", [*OPTION_CASES, *OUTPUT_CASES, *PATH_CASES], ids=lambda case: case.name)
def test_bad_job_is_refused(case, job):
    case.check(job)


def test_the_unharmed_job_is_accepted(job):
    """Otherwise every case above would prove nothing."""
    done = run_phalanx(*job.command(), "--dry-run", XDG_CACHE_HOME=str(job.folder / "cache"))
    assert done.returncode == 0, done.stderr
    resolved = json.loads(done.stdout)
    assert resolved["data"]["sequence_length"] == 64
    assert os.path.exists(os.path.join(resolved["data"]["train"][0], "manifest.json"))
    assert not job.output.exists()


def test_a_second_job_names_the_first(job):
    job.output.mkdir()
    (job.output / "config.json").write_text("{}")
    with open(job.output / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        lock.flush()
        says = (
            str(job.output),
            f"process {os.getpid()}",
            f"host {socket.gethostname()}",
            "choose another --output",
        )
        Case("locked", lambda _: None, says).check(job)


def test_a_lock_left_by_a_dead_job_is_no_lock(job):
    job.output.mkdir()
    (job.output / "config.json").write_text("{}")
    (job.output / "lock").write_text('{"pid": 1, "host": "gone"}')
    done = run_phalanx(*job.command(), "--dry-run", XDG_CACHE_HOME=str(job.folder / "cache"))
    assert done.returncode == 0, done.stderr


def test_values_that_may_differ_are_listed(job):
    job.options += ["--max-steps", "1"]
    assert run_phalanx(*job.command()).returncode == 0
    job.options += ["--learning-rate", "0.5"]
    done = run_phalanx(*job.command(), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "optimizer.learning_rate: the run has 1e-05, this command 0.5" in done.stderr
