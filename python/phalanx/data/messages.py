"""Messages as rows have them: `role` and `content` as chat models do, or `from` and `value` as ShareGPT does."""

from __future__ import annotations

from typing import Any

from phalanx.data.fields import embedded_json, objects, text, wrong
from phalanx.data.rows import Row, kind_of
from phalanx.errors import UserError

Message = dict[str, Any]

MESSAGE_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")}
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
REASONING_KEYS = (
    "reasoning_content",
    "reasoning",
    "thinking",
)  # which of them counts is the template's matter
PASSED_KEYS = ("name", "tool_call_id", *REASONING_KEYS)


def chat_messages(row: Row, key: str) -> list[Message]:
    """The messages of the column `key`, each with `role` and `content`."""
    return [
        _chat_message(row, entry, f"{key}[{number}]")
        for number, entry in enumerate(objects(row, row.value, key))
    ]


def sharegpt_messages(row: Row, key: str) -> list[Message]:
    """The messages of the column `key`, each with `from` and `value`, in some files `role` and `content`."""
    entries = objects(row, row.value, key)
    if "from" not in entries[0] and "role" in entries[0]:
        return chat_messages(row, key)
    return [_sharegpt_message(row, entry, f"{key}[{number}]") for number, entry in enumerate(entries)]


def exchange(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _chat_message(row: Row, entry: dict[str, Any], where: str) -> Message:
    _refuse_weights(row, entry, where)
    message = {"role": _role(row, entry, "role", where, MESSAGE_ROLES)}
    calls = entry.get("tool_calls")
    if calls:
        message["tool_calls"] = objects(row, entry, "tool_calls", where)
    message["content"] = _content(row, entry, where, optional=bool(calls))
    for key in PASSED_KEYS:
        if value := text(row, entry, key, where=where, optional=True):
            message[key] = value
    return message


def _sharegpt_message(row: Row, entry: dict[str, Any], where: str) -> Message:
    _refuse_weights(row, entry, where)
    role = _role(row, entry, "from", where, SHAREGPT_ROLES)
    value = text(row, entry, "value", where=where)
    if entry["from"] == "function_call":
        return {"role": role, "content": "", "tool_calls": _tool_calls(row, value, where)}
    return {"role": role, "content": value}


def _role(row: Row, entry: dict[str, Any], key: str, where: str, roles: dict[str, str]) -> str:
    name = text(row, entry, key, where=where)
    if name not in roles:
        raise wrong(row, f"{where}.{key}", f"the unknown role {name!r}", f"one of {', '.join(roles)}")
    return roles[name]


def _content(row: Row, entry: dict[str, Any], where: str, optional: bool) -> str:
    """A string, or parts of which each is text."""
    value = entry.get("content")
    if not isinstance(value, list):
        return text(row, entry, "content", where=where, optional=optional)
    for number, part in enumerate(value):
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            kind = f"type {part.get('type')!r}" if isinstance(part, dict) else kind_of(part)
            raise wrong(
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


def _tool_calls(row: Row, value: str, where: str) -> list[dict[str, Any]]:
    parsed = embedded_json(row, value, f"{where}.value")
    calls = parsed if isinstance(parsed, list) else [parsed]
    for call in calls:
        if not (isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call):
            raise wrong(
                row, f"{where}.value", value[:60], 'a call such as {"name": "search", "arguments": {}}'
            )
    return [{"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]
