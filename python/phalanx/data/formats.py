"""What the columns of a row mean: every format becomes a list of chat messages, or plain text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.data.fields import get, optional_array, text, wrong
from phalanx.data.messages import Message, chat_messages, exchange, sharegpt_messages
from phalanx.data.rows import Row, keys_of, kind_of
from phalanx.errors import UserError


@dataclass(slots=True)
class Conversation:
    """Messages and tools as `apply_chat_template` takes them."""

    place: str  # of the row
    messages: list[Message]
    tools: list[Any] | None = None


@dataclass(slots=True)
class PlainText:
    """Text that goes to the tokenizer as it is."""

    place: str  # of the row
    text: str


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Row], Conversation | PlainText] = field(repr=False)


def recognise(row: Row) -> Format:
    """The one format whose required columns the row has. A column `text` counts only where nothing else fits."""
    fitting = [f for f in FORMATS.values() if all(column in row.value for column in f.required)]
    if len(fitting) > 1 and FORMATS["text"] in fitting:
        fitting.remove(FORMATS["text"])
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UserError(
            f"{row.place}: the columns {keys_of(row.value)} fit several formats "
            f"({', '.join(f.name for f in fitting)}); choose one with --format"
        )
    known = "; ".join(f"{f.name}: {', '.join(f.required)}" for f in FORMATS.values())
    raise UserError(
        f"{row.place}: the columns {keys_of(row.value)} fit no known format; name those of one with --columns, as in "
        f"--columns question=problem answer=solution, or rename them ({known})"
    )


def _read_messages(row: Row) -> Conversation:
    return _conversation(row, chat_messages(row, "messages"))


def _read_sharegpt(row: Row) -> Conversation:
    return _conversation(row, sharegpt_messages(row, "conversations"))


def _pair(prompt_column: str, answer_column: str, context_column: str = "") -> Callable[[Row], Conversation]:
    """A reader of one exchange. The context stands below the prompt."""

    def read(row: Row) -> Conversation:
        prompt = text(row, row.value, prompt_column)
        if context_column and (context := text(row, row.value, context_column, optional=True)):
            prompt = f"{prompt}\n{context}"
        return _conversation(row, exchange(prompt, text(row, row.value, answer_column)))

    return read


def _read_prompt_completion(row: Row) -> Conversation:
    """Two strings, or two lists of messages."""
    if isinstance(get(row, row.value, "prompt"), list):
        return _conversation(row, chat_messages(row, "prompt") + chat_messages(row, "completion"))
    return _pair("prompt", "completion")(row)


def _conversation(row: Row, messages: list[Message]) -> Conversation:
    """Puts the system prompt and earlier exchanges, if columns hold them, in front."""
    before: list[Message] = []
    for column in SYSTEM_COLUMNS:
        if system := text(row, row.value, column, optional=True):
            before.append({"role": "system", "content": system})
    for number, turn in enumerate(optional_array(row, "history", "an array of exchanges")):
        if not (isinstance(turn, list) and len(turn) == 2 and all(isinstance(part, str) for part in turn)):
            expected = "an array of two strings: instruction and output"
            raise wrong(row, f"history[{number}]", kind_of(turn), expected)
        before += exchange(*turn)
    tools = optional_array(row, "tools", "an array of tool descriptions")
    return Conversation(row.place, before + messages, tools or None)


def _read_text(row: Row) -> PlainText:
    return PlainText(row.place, text(row, row.value, "text"))


SYSTEM_COLUMNS = ("system", "system_prompt")
_COMMON = (*SYSTEM_COLUMNS, "history", "tools")
FORMATS = {
    f.name: f
    for f in (
        Format("messages", ("messages",), _COMMON, _read_messages),
        Format("sharegpt", ("conversations",), _COMMON, _read_sharegpt),
        Format(
            "alpaca", ("instruction", "output"), ("input", *_COMMON), _pair("instruction", "output", "input")
        ),
        Format(
            "instruction_response",
            ("instruction", "response"),
            ("context", *_COMMON),
            _pair("instruction", "response", "context"),
        ),
        Format("prompt_completion", ("prompt", "completion"), _COMMON, _read_prompt_completion),
        Format("prompt_response", ("prompt", "response"), _COMMON, _pair("prompt", "response")),
        Format("query_response", ("query", "response"), _COMMON, _pair("query", "response")),
        Format("question_answer", ("question", "answer"), _COMMON, _pair("question", "answer")),
        Format("question_response", ("question", "response"), _COMMON, _pair("question", "response")),
        Format("text", ("text",), (), _read_text),
    )
}


def parse_columns(words: list[str]) -> dict[str, str]:
    """`question=problem` to {"question": "problem"}: the column of a format, and the one that holds it in the files."""
    known = {column for f in FORMATS.values() for column in (*f.required, *f.optional)}
    columns: dict[str, str] = {}
    for word in words:
        column, equals, source = word.partition("=")
        if not (equals and source) or column in columns:
            raise UserError(
                f"--columns: found {word!r}, expected each column once as FORMAT_COLUMN=FILE_COLUMN, such as "
                "question=problem"
            )
        if column not in known:
            raise UserError(
                f"--columns: {word}: no format has a column {column!r}; known: {', '.join(sorted(known))}"
            )
        columns[column] = source
    return columns


def check_columns(row: Row, columns: dict[str, str]) -> None:
    """Refuses a name that the row does not have."""
    for column, source in columns.items():
        if source not in row.value:
            raise UserError(
                f"{row.place}: no column {source!r}, which --columns {column}={source} names; the columns present are "
                f"{keys_of(row.value)}; correct --columns"
            )


def rename_columns(row: Row, columns: dict[str, str]) -> Row:
    """The row with its columns under the names of the format."""
    if not columns:
        return row
    rest = {name: value for name, value in row.value.items() if name not in columns.values()}
    renamed = {column: row.value[source] for column, source in columns.items() if source in row.value}
    return Row(row.file, row.line, row.element, rest | renamed)
