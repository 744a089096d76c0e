"""Rows out of CSV and TSV files: the first line names the columns; fields are quoted as RFC 4180 has it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from phalanx.data.rows import Row, decode
from phalanx.errors import UserError

DELIMITERS = {".csv": ",", ".tsv": "\t"}
MAX_FIELD_BYTES = 64 << 20


def read_csv(path: Path, file: BinaryIO) -> Iterator[Row | UserError]:
    """Every field is text. `file` stands behind a byte order mark."""
    csv.field_size_limit(MAX_FIELD_BYTES)
    delimiter = DELIMITERS[path.suffix.lower()]
    records = csv.reader(_decoded_lines(path, file), delimiter=delimiter, strict=True)
    columns: list[str] = []
    line = 1  # on which the record begins; a quoted field may hold line breaks
    try:
        for fields in records:
            if not columns:
                columns = fields
                _check_columns(path, columns)
            elif fields:
                yield _row(path, line, columns, fields)
            line = records.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}:{records.line_num}: broken CSV in the record that begins in line {line}: {error}; put fields with "
            'quotes, separators or line breaks into double quotes, and write a quote inside as ""'
        ) from None


def _decoded_lines(path: Path, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        yield decode(path, line, number)


def _check_columns(path: Path, columns: list[str]) -> None:
    if "" in columns:
        raise UserError(
            f"{path}:1: column {columns.index('') + 1} has no name; the first line names the columns"
        )
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise UserError(f"{path}:1: two columns are named {twice[0]!r}; rename one of them")


def _row(path: Path, line: int, columns: list[str], fields: list[str]) -> Row | UserError:
    if len(fields) != len(columns):
        return UserError(
            f"{path}:{line}: {len(fields)} fields, but the first line names {len(columns)} columns "
            f"({', '.join(columns)}); correct this row, or put fields that hold separators into double quotes"
        )
    return Row(str(path), line, None, dict(zip(columns, fields, strict=True)))
