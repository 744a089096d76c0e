"""`python -m phalanx COMMAND`: the commands written in Python run here, all others are the program's."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

from phalanx.errors import NOT_ACCEPTABLE

PYTHON_COMMANDS = {
    "prepare": "phalanx.prepare",
    "plot": "phalanx.plot",
    "demo": "phalanx.demo.__main__",
    "bench": "phalanx.bench.__main__",
}


def main() -> int:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in PYTHON_COMMANDS:
        return run_here(*arguments)
    program = find_program()
    if program is None:
        print(
            "phalanx: error: the program `phalanx` is neither beside the package nor on the PATH; build it, or name it "
            "in PHALANX_BIN",
            file=sys.stderr,
        )
        return NOT_ACCEPTABLE
    if arguments[:1] == ["finetune"] and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from phalanx.ranks import run_under_torchrun

        return run_under_torchrun(program, arguments)
    os.environ["PHALANX_PYTHON"] = sys.executable  # for the commands that the program hands back to Python
    os.execv(program, [str(program), *arguments])


def run_here(command: str, *arguments: str) -> int:
    try:
        return importlib.import_module(PYTHON_COMMANDS[command]).main(list(arguments))
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] == "phalanx":
            raise
        package = error.name.split(".")[0]
        print(
            f"phalanx {command}: error: {sys.executable} cannot import the package {package} ({error}); install it: "
            f"{sys.executable} -m pip install --upgrade {package}, or name the Python in whose environment phalanx is "
            "installed in PHALANX_PYTHON",
            file=sys.stderr,
        )
        return NOT_ACCEPTABLE


def find_program() -> Path | None:
    """PHALANX_BIN, else `phalanx` beside the package's files, beside Python, or on the PATH."""
    if named := os.environ.get("PHALANX_BIN"):
        return Path(named)
    package = Path(__file__).parent
    for folder in (package / "bin", Path(sys.executable).parent):
        if os.access(folder / "phalanx", os.X_OK):
            return folder / "phalanx"
    found = shutil.which("phalanx")
    return Path(found) if found else None


if __name__ == "__main__":
    sys.exit(main())
