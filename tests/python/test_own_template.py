"""Training with a chat template that is not the tokenizer's own, and what the exported model is made of."""

import json
import subprocess

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from bad_input import GOOD_ROW, run_phalanx
from chat_data import CHATML


@pytest.fixture
def run(job):
    """A finished run on a model whose tokenizer has no template."""
    (job.model / "chat_template.jinja").unlink()
    template = job.folder / "own.jinja"
    template.write_text(CHATML)
    job.options += ["--chat-template", str(template), "--max-steps", "1"]
    subprocess.run(["phalanx", *job.command()], check=True)
    return job


def test_the_trained_model_has_the_template_it_was_trained_with(run):
    exported = run.folder / "exported"
    assert run_phalanx("export", run.output, "--output", exported).returncode == 0
    for folder in (run.output / "model", exported):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = tokenizer.apply_chat_template(GOOD_ROW["messages"], tokenize=False)
        assert text == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
    data = ("--data", run.data, "--sequence-length", "64")
    measured = run_phalanx("eval", "--model", exported, *data)
    assert measured.returncode == 0, measured.stderr
    assert "supervised tokens 16" in measured.stdout  # 8 rows of one digit and the end of the turn


def test_export_cuts_the_weights_as_asked(run):
    exported = run.folder / "exported"
    size = ("--max-shard-size", "20KB")
    assert run_phalanx("export", run.output, "--output", exported, *size).returncode == 0
    index = json.loads((exported / "model.safetensors.index.json").read_text())["weight_map"]
    files = set(index.values())
    assert len(files) > 2
    for name in files:
        with safe_open(exported / name, "pt") as file:
            tensors = [file.get_tensor(key) for key in file.keys()]  # noqa: SIM118
        assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors) <= 20_000


@pytest.mark.parametrize("size", ["5GBs", "0GB", "-1GB", "5TB", "much", "GB"])
def test_a_shard_size_that_is_none(tmp_path, size):
    done = run_phalanx("export", tmp_path, "--output", tmp_path / "out", "--max-shard-size=" + size)
    assert done.returncode == 2
    assert f"--max-shard-size is '{size}'" in done.stderr and "for example 5GB" in done.stderr


def test_a_template_that_is_not_there(job):
    job.options += ["--chat-template", str(job.folder / "none.jinja")]
    done = run_phalanx(*job.command())
    assert done.returncode == 2
    assert f"{job.folder}/none.jinja" in done.stderr and "--chat-template" in done.stderr
    assert not job.output.exists()
