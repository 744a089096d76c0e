"""Prints what pyproject.toml asks for, one requirement a line: dependencies and every extra."""

import pathlib
import tomllib

project = tomllib.loads((pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for requirements in [project["dependencies"], *project["optional-dependencies"].values()]:
    print(*requirements, sep="\n")
