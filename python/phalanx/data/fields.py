"""Typed access to the values of a row: what is missing or of the wrong kind is named with its place."""

from __future__ import annotations

import json
from typing import Any

from phalanx.data.rows import Row, keys_of, kind_of
from phalanx.errors import UserError


def wrong(row: Row, key: str, found: str, expected: str) -> UserError:
    return UserError(f"{row.place}: {key}: found {found}, expected {expected}; correct this row")


def get(row: Row, owner: dict[str, Any], key: str, where: str = "") -> Any:
    """`where` is the path of `owner` in the row."""
    if key not in owner:
        raise UserError(
            f"{row.place}: {where + ' has ' if where else ''}no key {key!r}; the keys present are {keys_of(owner)}; "
            "add it, choose another --format, or name the column that holds it with --columns"
        )
    return owner[key]


def text(row: Row, owner: dict[str, Any], key: str, *, where: str = "", optional: bool = False) -> str:
    if optional and owner.get(key) is None:
        return ""
    value = get(row, owner, key, where)
    if not isinstance(value, str):
        raise wrong(row, f"{where}.{key}" if where else key, kind_of(value), "a string")
    return value


def objects(row: Row, owner: dict[str, Any], key: str, where: str = "") -> list[dict[str, Any]]:
    """A filled array of objects, or one written as a string, as CSV has to."""
    value = get(row, owner, key, where)
    name = f"{where}.{key}" if where else key
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = embedded_json(row, value, name)
    if not isinstance(value, list) or not value:
        raise wrong(row, name, "an empty array" if value == [] else kind_of(value), "an array of objects")
    for number, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise wrong(row, f"{name}[{number}]", kind_of(entry), "an object")
    return value


def optional_array(row: Row, key: str, expected: str) -> list[Any]:
    """An array, or one written as a string; empty when there is none."""
    value = row.value.get(key)
    if isinstance(value, str):
        value = embedded_json(row, value, key) if value.strip() else None
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(row, key, kind_of(value), expected)
    return value


def embedded_json(row: Row, value: str, where: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{row.place}: {where}: the string is no JSON: {error}; correct this row") from None
