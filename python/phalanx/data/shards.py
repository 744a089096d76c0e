"""Token shards on disk: safetensors files and a manifest, in a folder that appears whole or not at all.

Each shard holds `tokens` [N] int32, `loss_mask` [N] uint8, `offsets` [samples + 1] int64, `sources` [samples] int32
(index into the manifest's sources) and `lines` [samples] int64. src/data/token_shards.h reads them.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors.numpy import save

from phalanx.data.supervision import Sample
from phalanx.errors import UserError

FORMAT = "phalanx-token-shards"
VERSION = 1
MANIFEST = "manifest.json"
SHARD_TOKENS = 32 << 20  # a shard ends with the sample that reaches this: 160 MiB


class ShardWriter:
    """Collects samples and writes a shard when there are enough; `finish` gives the folder its name.

    Used as a context manager: without `finish` nothing stays.
    """

    def __init__(self, output: Path, shard_tokens: int = SHARD_TOKENS) -> None:
        self._output = output
        self._shard_tokens = shard_tokens
        self._temporary = output.with_name(f".{output.name}.writing-{os.getpid()}")
        self._shards: list[dict[str, Any]] = []
        self._clear()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, sample: Sample, source: int, line: int) -> None:
        self._samples.append(sample)
        self._origins.append((source, line))
        self._tokens += len(sample.tokens)
        if self._tokens >= self._shard_tokens:
            self._flush()

    def finish(self, manifest: dict[str, Any]) -> None:
        """Writes the rest and the manifest, makes both durable and moves the folder into place."""
        if self._samples:
            self._flush()
        head = {"format": FORMAT, "version": VERSION}
        text = json.dumps(head | manifest | {"shards": self._shards}, indent=2, ensure_ascii=False)
        self._write(MANIFEST, text.encode())
        _sync(self._temporary)
        _replace_folder(self._temporary, self._output)

    def _clear(self) -> None:
        self._samples: list[Sample] = []
        self._origins: list[tuple[int, int]] = []
        self._tokens = 0

    def _flush(self) -> None:
        sources, lines = zip(*self._origins, strict=True)
        lengths = [len(sample.tokens) for sample in self._samples]
        tensors = {
            "tokens": np.concatenate([sample.tokens for sample in self._samples]),
            "loss_mask": np.concatenate([sample.loss_mask for sample in self._samples]),
            "offsets": np.cumsum([0, *lengths], dtype=np.int64),
            "sources": np.array(sources, dtype=np.int32),
            "lines": np.array(lines, dtype=np.int64),
        }
        name = f"shard-{len(self._shards):05d}.safetensors"
        content = save(tensors)
        self._write(name, content)
        self._shards.append(
            {
                "name": name,
                "bytes": len(content),
                "samples": len(lengths),
                "tokens": sum(lengths),
                "checksums": {
                    key: xxhash.xxh64_hexdigest(tensor.tobytes()) for key, tensor in tensors.items()
                },
            }
        )
        self._clear()

    def _write(self, name: str, content: bytes) -> None:
        path = self._temporary / name
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"{self._output}: cannot be written ({len(content)} bytes of {name}): {error.strerror}; free the disk, "
                "or choose another folder with --output"
            ) from None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished folder, or None when this is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("format") == FORMAT else None


def rename_sources(folder: Path, manifest: dict[str, Any], paths: list[str]) -> None:
    """Names the files of equal content that lie elsewhere now, so that messages name what the person has given."""
    if [source["path"] for source in manifest["sources"]] == paths:
        return
    for source, path in zip(manifest["sources"], paths, strict=True):
        source["path"] = path
    new = folder / f".{MANIFEST}.{os.getpid()}"
    new.write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")
    new.replace(folder / MANIFEST)


def is_complete(folder: Path, manifest: dict[str, Any]) -> bool:
    """All shards are there with their sizes; their content is checked when they are read."""
    files = {entry["name"]: entry["bytes"] for entry in manifest["shards"]}
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in files.items()
    )


def check_output(output: Path) -> None:
    """Refuses, before anything is read, a folder that holds something else, or cannot be made."""
    if output.is_dir() and any(output.iterdir()) and read_manifest(output) is None:
        raise UserError(
            f"{output}: the folder holds other files; choose an empty or a new folder with --output"
        )
    if output.exists() and not output.is_dir():
        raise UserError(f"{output}: is a file; choose a folder with --output")
    ancestor = next(parent for parent in output.absolute().parents if parent.exists())
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise UserError(
            f"{output}: no permission to write in {ancestor}; choose another folder with --output"
        )


def _replace_folder(new: Path, place: Path) -> None:
    if place.exists():
        old = place.with_name(f".{place.name}.old-{os.getpid()}")
        place.rename(old)
        new.rename(place)
        shutil.rmtree(old)
    else:
        new.rename(place)
    _sync(place.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
