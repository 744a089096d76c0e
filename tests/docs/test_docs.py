"""What the documents tell a person to type works, and what they point to exists."""

import pathlib
import re
import shutil
import subprocess

import pytest

from blocks import runnable_blocks
from tree import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
)
SLOW_DOCUMENTS = [
    name for name in DOCUMENTS if any(block.slow for block in runnable_blocks((ROOT / name).read_text()))
]


def copy_of_the_tree(folder: pathlib.Path) -> pathlib.Path:
    copy = folder / "phalanx"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns("build", "dist", ".git", ".*_cache", "__pycache__")
    )
    return copy


def run_blocks(name: str, folder: pathlib.Path, with_slow: bool) -> None:
    copy = copy_of_the_tree(folder)
    script = "set -e\n"
    for block in runnable_blocks((ROOT / name).read_text()):
        if with_slow or not block.slow:
            script += f"echo '--- {name}:{block.line}'\n{block.commands}"
    command = ["bash", "-c", f"exec 2>&1 </dev/null\n{script}"]
    done = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_quick_commands_of_a_document_run(name: str, tmp_path: pathlib.Path) -> None:
    run_blocks(name, tmp_path, with_slow=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SLOW_DOCUMENTS)
def test_all_commands_of_a_document_run(name: str, tmp_path: pathlib.Path) -> None:
    run_blocks(name, tmp_path, with_slow=True)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_files_a_document_points_to_exist(name: str) -> None:
    document = ROOT / name
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    missing = [
        target for target in targets if "://" not in target and not (document.parent / target).exists()
    ]
    assert not missing


MARKDOWN = """text
<!-- run -->
```bash
echo one
```
```bash
not run
```
<!-- run: slow -->
```console
$ echo two
two
$ echo three
```
"""


def test_only_marked_blocks_are_run() -> None:
    blocks = runnable_blocks(MARKDOWN)
    assert [(block.line, block.commands, block.slow) for block in blocks] == [
        (3, "echo one\n", False),
        (10, "echo two\necho three\n", True),
    ]


def test_a_mark_without_a_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not followed at once"):
        runnable_blocks("<!-- run -->\n\n```bash\necho\n```\n")


PROGRAM_LINE = re.compile(r"^(?:\$ )?phalanx (?P<command>[a-z]+)(?P<rest>[^#\n]*)", re.MULTILINE)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_options_shown_exist(name):
    """Lines that need a model of one's own are not run; their subcommands and options are real all the same."""
    for match in PROGRAM_LINE.finditer((ROOT / name).read_text()):
        command = ["phalanx", match["command"], "--help"]
        help_text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for option in re.findall(r"(?<!\S)--[a-z-]+", match["rest"]):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", help_text), f"{name}: {match[0]}: {option}"
