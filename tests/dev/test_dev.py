"""The script for a person: it explains itself, does nothing twice, counts truly, and refuses what it cannot do."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tree import ROOT

COMMANDS = ["setup", "build", "demo", "test", "bench", "format", "lint"]


def dev(*arguments: str, root: pathlib.Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [root / "dev", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
    )


def count(folder: pathlib.Path, status: str = "0") -> str:
    command = [sys.executable, ROOT / "tools/count_tests.py", folder, status]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(command: str) -> None:
    done = dev(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"./dev {command}")
    assert re.search(rf"Examples:\n(.*\n)*  .*\./dev {command}", done.stdout)


def test_the_overview_names_every_command() -> None:
    overview = dev("--help").stdout
    assert re.findall(r"^  (\w+) ", overview, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tset"], "unknown command tset; see ./dev --help"),
        (["build", "--gpu"], "unknown option --gpu; see ./dev build --help"),
        (["test", "--fast"], "unknown option --fast; see ./dev test --help"),
        (["format", "--all"], "unknown option --all; see ./dev format --help"),
        (["bench", "nothing"], "no benchmarks/nothing.py; see ./dev bench --help"),
    ],
)
def test_what_it_does_not_know_is_refused(arguments: list[str], message: str) -> None:
    done = dev(*arguments)
    assert done.returncode == 1
    assert done.stderr == f"dev: {message}\n"


def test_setup_does_nothing_when_nothing_changed() -> None:
    done = dev("setup")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def copy_of_the_script(folder: pathlib.Path) -> pathlib.Path:
    for name in ("dev", "requirements.lock", "CMakePresets.json"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_an_interrupted_setup_is_taken_up_again(tmp_path: pathlib.Path) -> None:
    """With a lock of one package that needs no download: the stamp appears only after a whole run."""
    root = copy_of_the_script(tmp_path)
    lock = root / "requirements.lock"
    environment = tmp_path / "cache/phalanx/venv"

    lock.write_text("no-such-package-anywhere @ file:///nowhere\n")
    assert dev("setup", root=root, XDG_CACHE_HOME=str(tmp_path / "cache")).returncode != 0
    assert (environment / "bin/python").exists()
    assert not (environment / "stamp").exists()

    lock.write_text("pip\n")
    done = dev("setup", root=root, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert (environment / "stamp").exists()
    again = dev("setup", root=root, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (again.returncode, again.stdout) == (0, "")


def test_missing_packages_are_named_to_who_may_not_install(tmp_path: pathlib.Path) -> None:
    """A user without sudo and without CMake: the exact command to type."""
    root = copy_of_the_script(tmp_path)
    (root / "cmake").mkdir()  # as in the tree: a folder, not the program
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in [
        "bash",
        "env",
        "dirname",
        "nproc",
        "id",
        "python3",
        "g++",
        "ninja",
        "ccache",
        "apt-get",
    ]:
        (tools / name).symlink_to(shutil.which(name))
    (tools / "id").unlink()
    (tools / "id").write_text("#!/bin/sh\necho 1000\n")
    (tools / "id").chmod(0o755)
    done = dev("setup", root=root, PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 1
    assert done.stderr == "dev: please type: sudo apt-get install cmake\n"


CASES = '<testsuites><testsuite><testcase name="a"/><testcase name="b">{}</testcase></testsuite></testsuites>'


@pytest.mark.parametrize(
    ("inside", "status", "expected"),
    [
        ("", "0", "2 0 0"),
        ("<failure/>", "1", "1 1 0"),
        ("<error/>", "1", "1 1 0"),
        ("<skipped/>", "0", "1 0 1"),
        ("", "1", "2 1 0"),  # the runner failed, though no case did
    ],
)
def test_the_count_is_true(tmp_path: pathlib.Path, inside: str, status: str, expected: str) -> None:
    (tmp_path / "report.xml").write_text(CASES.format(inside))
    assert count(tmp_path, status) == expected


def test_no_test_at_all_is_a_failure(tmp_path: pathlib.Path) -> None:
    assert count(tmp_path) == "0 1 0"
