"""Rows out of Parquet files, through pyarrow, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from phalanx.data.rows import Row
from phalanx.errors import UserError

BATCH_ROWS = 1024


def read_parquet(path: Path, file: BinaryIO) -> Iterator[Row | UserError]:
    """Nested columns become objects and arrays; keys of nested objects that are null count as absent."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        for batch in ParquetFile(file).iter_batches(BATCH_ROWS):
            for value in batch.to_pylist():
                number += 1
                yield Row(str(path), number, None, {key: _without_nulls(item) for key, item in value.items()})
    except (ArrowException, OSError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise UserError(
            f"{path}:{number + 1}: no readable Parquet file: {first_line}; write or download it again"
        ) from None


def _without_nulls(value: Any) -> Any:
    """Arrow gives all objects of a column the same keys, so that those an object never had are null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
