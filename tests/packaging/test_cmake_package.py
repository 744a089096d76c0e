"""`cmake --install` gives headers, the library and a CMake package that another project builds with."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from chat_data import write_chat_model
from finetune_run import write_chats
from tree import BUILD

CONSUMER = pathlib.Path(__file__).parent / "consumer"


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def configure(consumer: pathlib.Path, prefix: pathlib.Path) -> subprocess.CompletedProcess:
    options = ["-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}", f"-DCMAKE_PREFIX_PATH={prefix}"]
    command = ["cmake", "-S", consumer, "-B", consumer / "build", *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(prefix: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Programs made of the installed files alone: sources and build folder stay out of it."""
    consumer = shutil.copytree(CONSUMER, tmp_path_factory.mktemp("project") / "consumer")
    configured = configure(consumer, prefix)
    assert configured.returncode == 0, configured.stderr
    run("cmake", "--build", consumer / "build")
    return consumer / "build"


def random_model(vocab_size: int):
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    return Qwen3MoeForCausalLM(config)


def test_another_project_trains_with_the_installed_package(
    built: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Its one descent step gives the loss and the weights that Transformers' own step gives."""
    import torch
    from transformers import Qwen3MoeForCausalLM

    model = random_model(vocab_size=32)
    model.save_pretrained(tmp_path / "model")
    loss = float(run(built / "consumer", tmp_path / "model", tmp_path / "tuned"))

    expected = model(torch.arange(1, 10)[None], labels=torch.arange(1, 10)[None]).loss
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    tuned = dict(Qwen3MoeForCausalLM.from_pretrained(tmp_path / "tuned").named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(tuned[name], parameter - 0.1 * parameter.grad, rtol=0, atol=1e-6, msg=name)


def test_another_project_runs_a_recipe_as_the_program_does(
    built: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = write_chat_model(tmp_path / "model")
    random_model(json.loads((folder / "config.json").read_text())["vocab_size"]).save_pretrained(folder)
    chats, tokens = write_chats(tmp_path / "chats.jsonl", 12), tmp_path / "tokens"
    run("phalanx", "prepare", "--model", folder, "--data", chats, "--output", tokens)
    recipe = {
        "model": str(folder),
        "data": {"train": [str(tokens)], "sequence_length": 64},
        "output": str(tmp_path / "ours"),
        "train": {"max_steps": 3},
    }
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    run(built / "finetune", tmp_path / "recipe.json")
    run("phalanx", "finetune", "--config", tmp_path / "recipe.json", "--output", tmp_path / "theirs")
    ours, theirs = (tmp_path / name / "model/model.safetensors" for name in ("ours", "theirs"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_another_version_is_refused(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    consumer = shutil.copytree(CONSUMER, tmp_path / "consumer")
    lists = consumer / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("Phalanx 0.1", "Phalanx 99.0"))
    done = configure(consumer, prefix)
    assert done.returncode != 0
    assert "99.0" in done.stderr
