"""The data files behind what --data names: files, folders of them, and patterns; each with its weight."""

from __future__ import annotations

import glob
import hashlib
from dataclasses import dataclass
from pathlib import Path

from phalanx.data.readers import READERS
from phalanx.data.rows import open_data_file
from phalanx.data.shards import read_manifest
from phalanx.errors import UserError

MAX_WEIGHT = 1000.0


@dataclass
class Source:
    """One data file."""

    path: Path
    sha256: str
    bytes: int
    lines: int  # 1 and the line feeds; shows how far reading is
    weight: float = 1.0  # how often an epoch has each of its samples
    rows: int = 0
    format: str = ""


def open_sources(names: list[str], weights: list[float]) -> list[Source]:
    """`weights` has one number for each name, or none."""
    _check_weights(names, weights)
    sources: list[Source] = []
    for name, weight in zip(names, weights or [1.0] * len(names), strict=True):
        sources += [_open_source(path, weight) for path in _files_of(name)]
    paths = [source.path.resolve() for source in sources]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UserError(
            f"{twice[0]}: named twice by --data; name it once, with --weights 2 if it is to count twice"
        )
    return sources


def _files_of(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        if read_manifest(path) is not None:
            raise UserError(f"{name}: is prepared already; give the folder to `phalanx finetune --data`")
        files = sorted(file for file in path.rglob("*") if _is_data_file(file, path))
        if not files:
            raise UserError(
                f"{name}: the folder holds no data file ({', '.join(READERS)}) and no manifest.json of "
                "`phalanx prepare`; check --data"
            )
        return files
    if path.exists() or not glob.has_magic(name):
        return [path]
    files = sorted(file for file in map(Path, glob.glob(name, recursive=True)) if file.is_file())
    if not files:
        raise UserError(f"{name}: no file fits this pattern; check --data")
    return files


def _is_data_file(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not hidden and file.suffix.lower() in READERS and file.is_file()


def _check_weights(names: list[str], weights: list[float]) -> None:
    if weights and len(weights) != len(names):
        raise UserError(
            f"--weights has {len(weights)} numbers, --data {len(names)} names; give one weight for each, in their order"
        )
    for weight in weights:
        if not 0 < weight <= MAX_WEIGHT:
            raise UserError(
                f"--weights: found {weight:g}, expected a number above 0 and at most {MAX_WEIGHT:g}; leave a file that "
                "is not to be used out of --data"
            )


def _open_source(path: Path, weight: float) -> Source:
    digest, size, lines = hashlib.sha256(), 0, 1
    with open_data_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
    return Source(path, digest.hexdigest(), size, lines, weight)
