"""The program itself: how fast it answers, its help, recipes that are accepted, inspect and plan."""

import json
import re
import time

import pytest

from bad_input import run_phalanx
from tree import ROOT

COMMANDS = ("finetune", "eval", "export", "inspect", "plan", "prepare", "plot", "demo")
IN_TIME = 0.3  # seconds


def fastest(*arguments):
    """Seconds of the best of five runs: the machine may be busy, the program may not."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run_phalanx(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def broken_recipe(job):
    job.write_recipe("optimizer: {lerning_rate: 1}\n")


def broken_config(job):
    job.edit_config(num_experts_per_tok=5)


def broken_data(job):
    job.data.write_text("{broken\n")


@pytest.mark.parametrize("harm", [broken_recipe, broken_config, broken_data])
def test_a_broken_job_is_answered_in_time_and_without_torch(job, harm):
    harm(job)
    assert fastest(*job.command()) < IN_TIME
    done = run_phalanx(*job.command(), LD_DEBUG="files")  # the loader tells every library it maps
    assert done.returncode == 2
    assert "libstdc++" in done.stderr and "libtorch" not in done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["finetune", "--help"], ["--version"], ["finetun"], ["plan", "--modle", "x"]]
)
def test_the_command_line_is_answered_in_time(words):
    assert fastest(*words) < IN_TIME


def test_help_names_every_command_and_the_exit_codes():
    done = run_phalanx("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\w", done.stdout, re.MULTILINE)
    assert "75 stopped by a signal" in done.stdout


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("prepare", "plot", "demo")])
def test_help_of_a_command_has_examples_that_use_its_own_options(command):
    done = run_phalanx(command, "--help")
    assert done.returncode == 0
    options, examples = done.stdout.split("Examples:")
    lines = [line for line in examples.splitlines() if line.startswith(f"  phalanx {command}")]
    assert lines
    for option in re.findall(r"--[a-z-]+", " ".join(lines)):
        assert option in options


def test_version_is_that_of_the_package():
    assert (
        run_phalanx("--version").stdout.strip()
        == "phalanx " + (ROOT / "python/phalanx/version.txt").read_text().strip()
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Usage: phalanx"),
        (["finetnue"], "unknown command 'finetnue'; did you mean 'finetune'?"),
        (["--hepl"], "unknown option '--hepl'; did you mean '--help'?"),
        (["inspect"], "model is missing"),
        (["inspect", "a", "--tensor"], "did you mean '--tensors'?"),
        (["export", "nowhere", "--output", "x"], "nowhere: no such folder; name a run"),
    ],
)
def test_a_wrong_command_line_is_refused(words, says):
    done = run_phalanx(*words)
    assert done.returncode == 2
    assert says in done.stderr


def resolved(job):
    """What the job would run with."""
    done = run_phalanx(*job.command(), "--dry-run", XDG_CACHE_HOME=str(job.folder / "cache"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_recipe_is_read_as_people_write_it(job):
    job.write_recipe(
        "# a comment\n"
        "optimizer: &shared\n"
        "  learning_rate: 1e-4   # a number, although YAML 1.1 has it as text\n"
        "  eps: .5\n"
        "data: {packing: off, on_long: 'truncate', train_on: all}\n"
        "export_model: no\n"
        "train:\n"
        "  max_steps: 010\n"
        "  threads: ~\n"
        "schedule:\n"
    )
    config = resolved(job)
    assert config["optimizer"]["learning_rate"] == 1e-4
    assert config["optimizer"]["eps"] == 0.5
    assert config["data"]["packing"] is False
    assert config["data"]["on_long"] == "truncate"
    assert config["export_model"] is False
    assert config["train"]["max_steps"] == 10
    assert config["train"]["threads"] is None


def test_flags_win_over_set_and_set_over_the_recipe(job):
    job.write_recipe("train: {seed: 1, accumulation: 1, micro_batch_size: 1}\n")
    job.options += ["--set", "train.seed=2", "--set", "train.accumulation=2", "--seed", "3"]
    train = resolved(job)["train"]
    assert (train["seed"], train["accumulation"], train["micro_batch_size"]) == (3, 2, 1)


def test_a_resolved_configuration_is_a_recipe(job):
    first = resolved(job)
    recipe = job.folder / "again.json"
    recipe.write_text(json.dumps(first))
    done = run_phalanx("finetune", "--config", recipe, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == first


def test_several_data_files_and_prepared_folders(job):
    prepared = resolved(job)["data"]["train"][0]
    other = job.folder / "other.jsonl"
    other.write_text('{"question": "a", "answer": "b"}\n')
    job.options += ["--data", prepared, str(other)]
    train = resolved(job)["data"]["train"]
    assert train[0] == prepared and len(train) == 2 and train[1] != prepared


def test_inspect_tells_what_transformers_counts(good_model):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(good_model)
    done = run_phalanx("inspect", good_model, "--json", "--tensors")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["parameters"] == model.num_parameters()
    assert found["mixture"] == {
        "experts": 4,
        "experts_per_token": 2,
        "width": 16,
        "shared_width": 0,
        "layers": 2,
    }
    expert = 3 * 32 * 16
    assert found["active_parameters"] == found["parameters"] - 2 * (4 - 2) * expert
    assert found["stored_bytes"] == {"F32": 4 * model.num_parameters()}
    assert len(found["tensor_list"]) == found["tensors"]
    assert "of which a token uses" in run_phalanx("inspect", good_model).stdout


def test_inspect_lists_tensors_that_are_carried_through(job):
    from safetensors.numpy import load_file, save_file

    path = job.model / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"mtp.norm.weight": tensors["model.norm.weight"]}, path)
    done = run_phalanx("inspect", job.model, "--json")
    assert json.loads(done.stdout)["carried_through"] == ["mtp.norm.weight"]


def test_inspect_reports_problems_after_the_summary(job):
    job.edit_config(num_hidden_layers=3)
    done = run_phalanx("inspect", job.model)
    assert done.returncode == 2
    assert "family" in done.stdout
    assert "missing" in done.stderr and "model.layers.2." in done.stderr


def test_plan_counts_the_bytes_of_each_precision(good_model):
    parameters = json.loads(run_phalanx("inspect", good_model, "--json").stdout)["parameters"]
    per_parameter = {
        "fp32": {"weights": 4, "gradients": 4, "optimizer states": 8},
        "bf16_master": {"weights": 2, "master weights": 4, "gradients": 2, "optimizer states": 8},
        "bf16_stochastic": {"weights": 2, "gradients": 2, "optimizer states": 8},
    }
    for precision, bytes_each in per_parameter.items():
        done = run_phalanx("plan", "--model", good_model, "--precision", precision, "--json")
        plan = json.loads(done.stdout)
        for name, each in bytes_each.items():
            assert plan["bytes"][name] == each * parameters
        assert plan["total_bytes"] == sum(plan["bytes"].values())
        assert plan["fits"]


def test_plan_says_what_would_fit(good_model):
    huge = ["--micro-batch-size", "65536", "--sequence-length", "16384"]
    done = run_phalanx("plan", "--model", good_model, *huge)
    assert done.returncode == 2
    assert "It does not fit." in done.stdout
    assert "It fits with --micro-batch-size 1 --accumulation 65536" in done.stdout


def test_a_missing_model_is_looked_for_on_the_hub(tmp_path):
    """No network here, or a name that does not exist: both end in a message, not in a traceback."""
    cache = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = run_phalanx("plan", "--model", "nobody/no-such-model", **cache)
    assert done.returncode == 2
    assert "nobody/no-such-model: no such folder, and the model cannot be fetched from the hub" in done.stderr
    assert "give a model folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_document_holds_the_fields_and_options_of_the_program():
    document = (ROOT / "docs/command-line.md").read_text()
    assert run_phalanx("finetune", "--help-fields").stdout.strip() in document
    for command in COMMANDS:
        assert f"## phalanx {command}" in document
