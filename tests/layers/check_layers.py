"""The layer rule, checked on the text of the include lines.

    core < config, io < data, kernels < ops < parallel < models < train < bind < apps

A file includes only its own layer and lower ones. Below `ops`, and in the parts of higher layers that the program links
without torch, no torch header may be reached by any path. Some headers are dear and have one place; some are too dear.

    python tests/layers/check_layers.py [ROOT]
"""

import pathlib
import re
import sys
from collections.abc import Iterator

LAYERS = {
    "core": 0,
    "config": 1,
    "io": 1,
    "data": 2,
    "kernels": 2,
    "ops": 3,
    "parallel": 4,
    "models": 5,
    "train": 6,
    "bind": 7,
    "apps": 8,
}
# Parts of the tree from which no torch header may be reached (every .cu and .cuh as well).
TORCH_FREE = ("core/", "config/", "io/", "data/", "kernels/", "models/spec/", "train/plan/", "apps/")
TORCH_HEADER = re.compile(r"(torch|ATen|c10)/")
FORBIDDEN = {"torch/torch.h", "torch/extension.h", "torch/all.h", "ATen/ATen.h"}
# Costly headers that one source file each may include, never a header.
ONE_PLACE = {
    "nlohmann": re.compile(r"nlohmann/"),
    "yaml-cpp": re.compile(r"yaml-cpp/"),
    "CLI11": re.compile(r"CLI/"),
}
SOURCES = {".cpp", ".h", ".cu", ".cuh"}
SOFT_LINES, HARD_LINES = 400, 700

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


class Tree:
    """The C++ files under src, include and apps by the name by which they are included."""

    def __init__(self, root: pathlib.Path):
        self.files: dict[str, pathlib.Path] = {}
        for base, prefix in (("src", ""), ("include", ""), ("apps", "apps/")):
            for file in sorted((root / base).rglob("*")):
                if file.suffix in SOURCES:
                    self.files[prefix + file.relative_to(root / base).as_posix()] = file
        self.includes = {name: INCLUDE.findall(file.read_text()) for name, file in self.files.items()}

    def resolve(self, includer: str, included: str) -> str:
        """The name in `files` of an include line; files of one folder may also name each other without it."""
        beside = (pathlib.PurePosixPath(includer).parent / included).as_posix()
        return beside if included not in self.files and beside in self.files else included

    def path_to_torch(self, name: str, seen: set[str]) -> list[str] | None:
        """How `name` reaches a torch header, or None."""
        seen.add(name)
        for included in self.includes.get(name, ()):
            if TORCH_HEADER.match(included):
                return [name, included]
            target = self.resolve(name, included)
            if target in self.files and target not in seen and (rest := self.path_to_torch(target, seen)):
                return [name, *rest]
        return None


def layer_of(name: str) -> str:
    return name.split("/", 1)[0]


def check_order(tree: Tree) -> Iterator[str]:
    for name, includes in tree.includes.items():
        own = layer_of(name)
        if own not in LAYERS and own != "phalanx":
            yield f"{name}: unknown layer {own}; the layers are {', '.join(LAYERS)}"
        for included in (tree.resolve(name, line) for line in includes):
            other = layer_of(included)
            if included in FORBIDDEN:
                yield f"{name}: includes {included}; take the narrow header"
            if own not in LAYERS or other not in LAYERS or included not in tree.files or own == other:
                if own == "phalanx" and other in LAYERS and included in tree.files:
                    yield f"{name}: a public header includes the internal {included}"
                continue
            if LAYERS[other] >= LAYERS[own]:
                yield f"{name}: {own} includes {included}, which is not of a lower layer"


def check_torch_free(tree: Tree) -> Iterator[str]:
    for name, file in tree.files.items():
        if name.startswith(TORCH_FREE) or file.suffix in (".cu", ".cuh"):
            path = tree.path_to_torch(name, set())
            if path:
                yield f"{name}: reaches torch by {' -> '.join(path)}"


def check_one_place(tree: Tree) -> Iterator[str]:
    for library, pattern in ONE_PLACE.items():
        users = [name for name, includes in tree.includes.items() if any(map(pattern.match, includes))]
        yield from (f"{name}: {library} in a header" for name in users if not name.endswith(".cpp"))
        if len(users) > 1:
            yield f"{library} is included in {len(users)} files, allowed is one: {', '.join(users)}"


def check_length(root: pathlib.Path) -> Iterator[str]:
    for base in ("src", "include", "apps", "python", "tests", "benchmarks", "tools"):
        for file in sorted((root / base).rglob("*")):
            if file.suffix in SOURCES | {".py"}:
                lines = file.read_text().count("\n")
                if lines > HARD_LINES:
                    yield f"{file.relative_to(root)}: {lines} lines, allowed are {HARD_LINES}"
                elif lines > SOFT_LINES:
                    print(f"note: {file.relative_to(root)} has {lines} lines, more than {SOFT_LINES}")


def violations(root: pathlib.Path) -> list[str]:
    tree = Tree(root)
    return [*check_order(tree), *check_torch_free(tree), *check_one_place(tree), *check_length(root)]


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    found = violations(root)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
