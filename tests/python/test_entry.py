"""`python -m phalanx`: which commands run in Python, and how the program is found."""

import os
import subprocess
import sys

import pytest

from tree import ROOT


def phalanx(*arguments, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "PHALANX_BIN"}
    command = [sys.executable, "-m", "phalanx", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=kept | environment)


def fake_program(folder):
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "phalanx"
    program.write_text('#!/bin/sh\necho "$0 $* with $PHALANX_PYTHON"\nexit 7\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("command", ["prepare", "plot", "demo"])
def test_python_commands_have_help_with_examples(command):
    done = phalanx(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: phalanx {command}")
    assert f"examples:\n  phalanx {command}" in done.stdout


def test_other_commands_become_the_program(tmp_path):
    program = fake_program(tmp_path)
    done = phalanx("finetune", "--model", "a b", PHALANX_BIN=str(program))
    assert done.stdout.strip() == f"{program} finetune --model a b with {sys.executable}"
    assert done.returncode == 7


def test_the_program_on_the_path(tmp_path):
    program = fake_program(tmp_path / "bin")
    done = phalanx("plan", PATH=f"{program.parent}:{os.environ['PATH']}")
    assert done.stdout.startswith(f"{program} plan")


def test_no_program(tmp_path):
    done = phalanx("plan", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "neither beside the package nor on the PATH" in done.stderr
    assert "PHALANX_BIN" in done.stderr


@pytest.mark.parametrize(
    ("command", "option", "meant"),
    [
        ("prepare", "--modle", "--model"),
        ("plot", "--ouput=x.png", "--output"),
        ("demo", "--ouptut", "--output"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest(command, option, meant):
    done = phalanx(command, option, "x")
    assert done.returncode == 2
    assert f"usage: phalanx {command}" in done.stderr
    assert f"unknown option {option.split('=')[0]}; did you mean {meant}?" in done.stderr


@pytest.mark.parametrize("command", ["prepare", "plot"])
def test_a_python_without_the_libraries(command, tmp_path):
    """-S leaves out the site-packages, where they are."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    arguments = {
        "prepare": ["--model", tmp_path, "--data", tmp_path / "x", "--output", tmp_path / "out"],
        "plot": [tmp_path],
    }
    done = subprocess.run(
        [sys.executable, "-S", "-m", "phalanx", command, *arguments[command]],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
    )
    assert done.returncode == 2
    assert f"phalanx {command}: error: {sys.executable} cannot import the package" in done.stderr
    assert "-m pip install --upgrade" in done.stderr and "PHALANX_PYTHON" in done.stderr
    assert "Traceback" not in done.stderr
