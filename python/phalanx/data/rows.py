"""A row of a data file and its place, and what all readers share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from phalanx.errors import UserError


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of a data file and where it begins."""

    file: str
    line: int  # from 1; of a Parquet file, which has no lines, the number of the row
    element: int | None  # of a JSON array, from 1
    value: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" + (f" (element {self.element})" if self.element else "")


def open_data_file(path: Path) -> BinaryIO:
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}; check the path given with --data"
        ) from None
    if file.seek(0, 2) == 0:
        file.close()
        raise UserError(f"{path}: the file is empty; give a file with at least one row")
    file.seek(0)
    return file


def decode(path: Path, data: bytes, first_line: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _line_and_column(data, error.start, first_line)
        raise UserError(
            f"{path}:{line}:{column}: byte 0x{data[error.start]:02x} is not valid UTF-8; convert the file, "
            "for example with iconv -f latin1 -t utf-8"
        ) from None
    if (at := data.find(0)) >= 0:
        line, column = _line_and_column(data, at, first_line)
        raise UserError(
            f"{path}:{line}:{column}: a NUL byte; the file is damaged or no text: write it again as UTF-8"
        )
    return text


def _line_and_column(data: bytes, at: int, first_line: int) -> tuple[int, int]:
    """Column in bytes, from 1."""
    return first_line + data.count(b"\n", 0, at), at - data.rfind(b"\n", 0, at)


def kind_of(value: Any) -> str:
    """What a value is, in JSON's words."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def keys_of(value: dict[str, Any]) -> str:
    return ", ".join(value) or "(none)"
