"""Rows out of JSON and JSONL files.

Strict where the usual readers are lenient: lines end at LF alone (U+2028 inside a string is text), a byte order mark
is accepted once at the start, duplicate keys, NaN, lone surrogates, NUL and invalid UTF-8 are errors, and every error
names file, line and column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from phalanx.data.rows import Row, decode, keys_of, kind_of
from phalanx.errors import UserError

MAX_LINE_BYTES = 64 << 20
ROW_KEYS = ("data", "rows", "train", "examples")  # of an object that wraps the rows


def read_json(path: Path, file: BinaryIO) -> Iterator[Row | UserError]:
    """JSON array, wrapped array and JSONL are told apart by their content. `file` stands behind a byte order mark."""
    start = file.tell()
    is_lines = _holds_lines(path, file)
    file.seek(start)
    yield from _read_lines(path, file) if is_lines else _read_document(path, file)


def _holds_lines(path: Path, file: BinaryIO) -> bool:
    """JSONL, unless the content begins with `[`, or is one object over several lines or with wrapped rows."""
    if path.suffix.lower() != ".json":
        return True
    first = b""
    while not first.strip():
        first = file.readline(MAX_LINE_BYTES + 1)
        if not first:
            raise UserError(f"{path}: the file holds only blanks; give a file with at least one row")
    if first.lstrip().startswith(b"["):
        return False
    try:
        value = json.loads(first)
    except ValueError:
        return not first.rstrip().endswith(
            (b"{", b",", b"[")
        )  # a broken line, or the first of a written-out object
    return not (isinstance(value, dict) and _wrapping_key(value))


def _wrapping_key(value: dict[str, Any]) -> str | None:
    return next((key for key in ROW_KEYS if isinstance(value.get(key), list)), None)


def _read_lines(path: Path, file: BinaryIO) -> Iterator[Row | UserError]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise UserError(
                f"{path}:{number}: the line is longer than {MAX_LINE_BYTES >> 20} MiB; JSONL has one sample a line, "
                "so split it, or give the file the suffix .json if it is one JSON array"
            )
        if line.strip():
            yield _read_line(path, line, number)


def _read_line(path: Path, line: bytes, number: int) -> Row | UserError:
    try:
        return _as_row(path, number, None, _DECODER.decode(decode(path, line, number).rstrip()))
    except UserError as error:
        return error
    except _Refused as error:
        return UserError(f"{path}:{number}: {error}; correct this line")
    except json.JSONDecodeError as error:
        hint = "" if line.endswith(b"\n") else " (the file ends in the middle of it: was it cut off?)"
        return UserError(
            f"{path}:{number}:{error.colno}: broken JSON{hint}: {error.msg}; correct or delete this line"
        )
    except RecursionError:
        return UserError(f"{path}:{number}: nested too deeply; no format has that: correct this line")


def _read_document(path: Path, file: BinaryIO) -> Iterator[Row | UserError]:
    text = decode(path, file.read(), 1)
    scanner = _Scanner(path, text)
    scanner.skip_blanks()
    if text.startswith("{", scanner.at):
        scanner.enter_wrapped_rows()
    yield from scanner.elements()


class _Scanner:
    """Walks over the elements of a JSON array and knows the line of each."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.at = 0
        self._counted_at = 0
        self._line = 1

    def elements(self) -> Iterator[Row | UserError]:
        self._expect("[")
        for element in range(1, len(self.text)):
            self.skip_blanks()
            if element == 1 and self.text.startswith("]", self.at):
                break
            line = self.line()
            yield self._element(line, element)
            self.skip_blanks()
            if not self.text.startswith(",", self.at):
                break
            self.at += 1
        self._expect("]")

    def _element(self, line: int, element: int) -> Row | UserError:
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except _Refused as error:
            _, self.at = json.JSONDecoder().raw_decode(self.text, self.at)  # goes on behind it
            return UserError(f"{self.path}:{line} (element {element}): {error}; correct it")
        except (json.JSONDecodeError, RecursionError):
            value = self._value(f"element {element}")
        return _as_row(self.path, line, element, value)

    def enter_wrapped_rows(self) -> None:
        """Goes to the array of `{"data": [...]}`; the rest of the object is checked and not used."""
        start = self.at
        value = self._value("the file's object")
        key = _wrapping_key(value)
        self.skip_blanks()
        if key is None or self.at != len(self.text):
            raise UserError(
                f"{self.path}:1: one JSON object with the keys {keys_of(value)}; expected an array of rows, an object "
                f"with the rows under one of {', '.join(ROW_KEYS)}, or one object a line (JSONL)"
            )
        self.at = start + 1
        while True:
            self.skip_blanks()
            name = self._value("a key")
            self._expect(":")
            self.skip_blanks()
            if name == key:
                return
            self._value(f"the value of {name}")
            self._expect(",")

    def _value(self, what: str) -> Any:
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except _Refused as error:
            raise UserError(f"{self.path}:{self.line()} ({what}): {error}; correct it") from None
        except json.JSONDecodeError as error:
            at_end = error.msg.startswith("Unterminated") or not self.text[error.pos :].strip()
            cut_off = " (the file ends in the middle of it: was it cut off?)" if at_end else ""
            raise UserError(
                f"{self.path}:{error.lineno}:{error.colno}: broken JSON in {what}{cut_off}: {error.msg}; correct it"
            ) from None
        except RecursionError:
            raise UserError(f"{self.path}:{self.line()} ({what}): nested too deeply; correct it") from None
        return value

    def _expect(self, character: str) -> None:
        self.skip_blanks()
        if not self.text.startswith(character, self.at):
            found = (
                repr(self.text[self.at])
                if self.at < len(self.text)
                else "the end of the file (was it cut off?)"
            )
            column = self.at - self.text.rfind("\n", 0, self.at)
            raise UserError(
                f"{self.path}:{self.line()}:{column}: broken JSON: expected {character!r}, found {found}; correct it"
            )
        self.at += 1

    def skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1

    def line(self) -> int:
        self._line += self.text.count("\n", self._counted_at, self.at)
        self._counted_at = self.at
        return self._line


def _as_row(path: Path, line: int, element: int | None, value: Any) -> Row | UserError:
    row = Row(str(path), line, element, value)
    if isinstance(value, dict):
        return row
    return UserError(
        f"{row.place}: found {kind_of(value)}, expected an object with one sample; correct this row"
    )


class _Refused(ValueError):
    """Valid JSON of a kind that would be read differently by different programs."""


def _without_duplicates(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"key {twice!r} occurs twice in one object")
    for name, item in members:
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise _Refused(
                    f"the text of {name!r} holds half of a surrogate pair (\\ud800 to \\udfff)"
                ) from None
    return value


def _no_constant(name: str) -> Any:
    raise _Refused(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
