"""What the columns of a row mean: every format becomes a list of chat messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.data.rows import Row, keys_of, kind_of
from phalanx.errors import UserError

Message = dict[str, Any]


@dataclass(slots=True)
class Conversation:
    """Messages and tools as `apply_chat_template` takes them."""

    place: str  # of the row
    messages: list[Message]
    tools: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    required: tuple[str, ...]
    read: Callable[[Row], Conversation] = field(repr=False)


def recognise(row: Row) -> Format:
    """The one format whose required columns the row has."""
    fitting = [f for f in FORMATS.values() if all(column in row.value for column in f.required)]
    if len(fitting) == 1:
        return fitting[0]
    known = "; ".join(f"{f.name}: {', '.join(f.required)}" for f in FORMATS.values())
    if fitting:
        raise UserError(
            f"{row.place}: the columns {keys_of(row.value)} fit several formats "
            f"({', '.join(f.name for f in fitting)}); choose one with --format"
        )
    raise UserError(
        f"{row.place}: the columns {keys_of(row.value)} fit no known format; rename them to those of one ({known})"
    )


def _read_messages(row: Row) -> Conversation:
    entries = _list_of_objects(row, row.value, "messages")
    messages = []
    for number, entry in enumerate(entries):
        where = f"messages[{number}]"
        _refuse_weights(row, entry, where)
        message = {"role": _role(row, entry, "role", where, {r: r for r in MESSAGE_ROLES})}
        calls = entry.get("tool_calls")
        if calls:
            message["tool_calls"] = _list_of_objects(row, entry, "tool_calls", where)
        message["content"] = _content(row, entry, where, optional=bool(calls))
        message |= {
            key: entry[key] for key in ("name", "tool_call_id", "reasoning_content") if entry.get(key)
        }
        messages.append(message)
    return Conversation(row.place, messages, _tools(row))


def _read_sharegpt(row: Row) -> Conversation:
    messages: list[Message] = []
    if system := _text(row, row.value, "system", optional=True):
        messages.append({"role": "system", "content": system})
    for number, entry in enumerate(_list_of_objects(row, row.value, "conversations")):
        where = f"conversations[{number}]"
        _refuse_weights(row, entry, where)
        role = _role(row, entry, "from", where, SHAREGPT_ROLES)
        value = _text(row, entry, "value", where=where)
        if entry["from"] == "function_call":
            messages.append({"role": role, "content": "", "tool_calls": _tool_calls(row, value, where)})
        else:
            messages.append({"role": role, "content": value})
    return Conversation(row.place, messages, _tools(row))


def _read_alpaca(row: Row) -> Conversation:
    messages: list[Message] = []
    if system := _text(row, row.value, "system", optional=True):
        messages.append({"role": "system", "content": system})
    for number, turn in enumerate(row.value.get("history") or []):
        if not (isinstance(turn, list) and len(turn) == 2 and all(isinstance(text, str) for text in turn)):
            raise _wrong(
                row, f"history[{number}]", kind_of(turn), "an array of two strings: instruction and output"
            )
        messages += _exchange(*turn)
    prompt = _text(row, row.value, "instruction")
    if extra := _text(row, row.value, "input", optional=True):
        prompt = f"{prompt}\n{extra}"
    return Conversation(row.place, messages + _exchange(prompt, _text(row, row.value, "output")))


def _read_question_answer(row: Row) -> Conversation:
    return Conversation(
        row.place, _exchange(_text(row, row.value, "question"), _text(row, row.value, "answer"))
    )


FORMATS = {
    f.name: f
    for f in (
        Format("messages", ("messages",), _read_messages),
        Format("sharegpt", ("conversations",), _read_sharegpt),
        Format("alpaca", ("instruction", "output"), _read_alpaca),
        Format("question_answer", ("question", "answer"), _read_question_answer),
    )
}
MESSAGE_ROLES = ("system", "developer", "user", "assistant", "tool")
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}


def _exchange(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _wrong(row: Row, key: str, found: str, expected: str) -> UserError:
    return UserError(f"{row.place}: {key}: found {found}, expected {expected}; correct this row")


def _get(row: Row, owner: dict[str, Any], key: str, where: str) -> Any:
    if key not in owner:
        raise UserError(
            f"{row.place}: {where + ' has ' if where else ''}no key {key!r}; the keys present are {keys_of(owner)}; "
            "add it, or choose another --format"
        )
    return owner[key]


def _text(row: Row, owner: dict[str, Any], key: str, *, where: str = "", optional: bool = False) -> str:
    if optional and owner.get(key) is None:
        return ""
    value = _get(row, owner, key, where)
    if not isinstance(value, str):
        raise _wrong(row, f"{where}.{key}" if where else key, kind_of(value), "a string")
    return value


def _list_of_objects(row: Row, owner: dict[str, Any], key: str, where: str = "") -> list[dict[str, Any]]:
    value = _get(row, owner, key, where)
    name = f"{where}.{key}" if where else key
    if not isinstance(value, list) or not value:
        raise _wrong(row, name, "an empty array" if value == [] else kind_of(value), "an array of objects")
    for number, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise _wrong(row, f"{name}[{number}]", kind_of(entry), "an object")
    return value


def _role(row: Row, entry: dict[str, Any], key: str, where: str, roles: dict[str, str]) -> str:
    name = _text(row, entry, key, where=where)
    if name not in roles:
        raise _wrong(row, f"{where}.{key}", f"the unknown role {name!r}", f"one of {', '.join(roles)}")
    return roles[name]


def _content(row: Row, entry: dict[str, Any], where: str, optional: bool) -> str:
    """A string, or parts of which each is text."""
    value = entry.get("content")
    if not isinstance(value, list):
        return _text(row, entry, "content", where=where, optional=optional)
    for number, part in enumerate(value):
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            kind = f"type {part.get('type')!r}" if isinstance(part, dict) else kind_of(part)
            raise _wrong(
                row, f"{where}.content[{number}]", kind, "a part of type 'text' (images are not trained)"
            )
    return "".join(part["text"] for part in value)


def _refuse_weights(row: Row, entry: dict[str, Any], where: str) -> None:
    for key in ("loss", "loss_scale", "weight", "train"):
        if key in entry:
            raise UserError(
                f"{row.place}: {where}.{key}: a loss weight for one message is not supported; remove the key, or split "
                "the conversation so that each assistant turn in it is to be learnt"
            )


def _tools(row: Row) -> list[Any] | None:
    """The column `tools`: an array, or an array written as a string."""
    value = row.value.get("tools")
    if isinstance(value, str):
        value = _embedded_json(row, value, "tools") if value.strip() else None
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise _wrong(row, "tools", kind_of(value), "an array of tool descriptions")
    return value


def _tool_calls(row: Row, text: str, where: str) -> list[dict[str, Any]]:
    value = _embedded_json(row, text, f"{where}.value")
    calls = value if isinstance(value, list) else [value]
    for call in calls:
        if not (isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call):
            raise _wrong(
                row, f"{where}.value", text[:60], 'a call such as {"name": "search", "arguments": {}}'
            )
    return [{"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]


def _embedded_json(row: Row, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{row.place}: {where}: the string is no JSON: {error}; correct this row") from None
