"""`pip install .` builds against the torch that the environment has, and brings none of its own."""

import os
import pathlib
import re
import subprocess
import sysconfig
import venv

import pytest

from tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(*command: object, **variables: str) -> str:
    # Nothing of the tree under test: the installed files have to do.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PHALANX_", "PYTHONPATH"))
    }
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment | variables, cwd="/"
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", params=["isolated", "no isolation"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A new environment that sees this one's packages, with Phalanx installed by pip."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    site_packages = next(folder.glob("lib/python3.*/site-packages"))
    (site_packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ["--no-build-isolation"] if request.param == "no isolation" else []
    # With the options of the build under test the compiler cache serves both.
    options.append("--config-settings=cmake.define.PHALANX_WERROR=ON")
    output = run(folder / "bin/python", "-m", "pip", "install", *options, ROOT)
    assert re.search(r"Successfully installed phalanx-[\d.]+\n", output), output  # and nothing else
    return folder


def engine_of(environment: pathlib.Path) -> pathlib.Path:
    (engine,) = environment.glob("lib/python3.*/site-packages/phalanx/lib/*")
    return engine


def test_the_engine_is_named_after_the_torch_of_the_environment(environment: pathlib.Path) -> None:
    code = "import torch; print('.'.join(torch.__version__.split('.')[:2]))"
    minor = run(environment / "bin/python", "-c", code).strip()
    assert engine_of(environment).name == f"libphalanx_torch-{minor}.so"


def test_the_engine_needs_neither_a_driver_nor_a_python(environment: pathlib.Path) -> None:
    dynamic = run("readelf", "--dynamic", engine_of(environment))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if re.match(r"libcuda\.|libtorch_python|libpython", name)]
    assert re.findall(r"\(RUNPATH\).*\[(.*)\]", dynamic) == ["$ORIGIN/../../torch/lib"]


def test_program_and_module_say_the_same_version(environment: pathlib.Path) -> None:
    version = (ROOT / "python/phalanx/version.txt").read_text().strip()
    assert version in run(environment / "bin/phalanx", "--version")
    assert version in run(environment / "bin/python", "-m", "phalanx", "--version")


def test_the_wheel_serves_every_python(environment: pathlib.Path) -> None:
    (wheel,) = environment.glob("lib/python3.*/site-packages/phalanx-*.dist-info/WHEEL")
    assert re.search(r"^Tag: py3-none-linux_", wheel.read_text(), re.MULTILINE)


def test_the_installed_program_trains(environment: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Tokenizing, training and export with nothing but what was installed."""
    python = environment / "bin/python"
    make_model = (
        "import pathlib; from phalanx.demo.tiny_model import write_tiny_model;"
        f"write_tiny_model(pathlib.Path('{tmp_path}/model'), ['What is it? Nothing much.'] * 50, 0)"
    )
    run(python, "-c", make_model)
    data = tmp_path / "chat.jsonl"
    data.write_text('{"question": "What is it?", "answer": "Nothing much."}\n' * 20)
    options = ["--model", tmp_path / "model", "--data", data, "--max-steps", "2", "--sequence-length", "64"]
    run(environment / "bin/phalanx", "finetune", *options, "--output", tmp_path / "run")
    load = f"from transformers import AutoModelForCausalLM as A; A.from_pretrained('{tmp_path}/run/model')"
    run(python, "-c", load)
