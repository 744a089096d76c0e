"""Rows out of data files of any kind, told apart by their suffixes.

A row that cannot be read is an item of its own, the UserError that says why, wherever the rows behind it can still be
told apart; a file that is broken as a whole raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phalanx.data.csv_rows import DELIMITERS, read_csv
from phalanx.data.json_rows import read_json
from phalanx.data.parquet_rows import read_parquet
from phalanx.data.rows import Row, open_data_file
from phalanx.errors import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
READERS = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), read_json),
    **dict.fromkeys(DELIMITERS, read_csv),
    ".parquet": read_parquet,
}


def read_rows(path: Path) -> Iterator[Row | UserError]:
    """All rows of a file in order."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(
            f"{path}: files named *{path.suffix} are not read, only {', '.join(READERS)}; convert it, for example "
            "with pandas: frame.to_json('data.jsonl', orient='records', lines=True, force_ascii=False)"
        )
    with open_data_file(path) as file:
        if file.read(3) != BYTE_ORDER_MARK:
            file.seek(0)
        yield from reader(path, file)
