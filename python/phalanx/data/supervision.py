"""From a conversation or plain text to token ids and the mask of those that are targets of the loss.

Plain text is a target as a whole, with the special tokens that the tokenizer puts around it and its end-of-text token.
A conversation becomes text through the tokenizer's own chat template, unchanged. Which part of that the assistant wrote
is found

  - through the template's `{% generation %}` marks, when it has them, or
  - by prefixes: an assistant turn begins where the rendering of the messages before it, with the generation prompt,
    ends, and it ends where the rendering up to and with it ends. Both must be beginnings of the whole text; a
    template that writes earlier turns in another way once later ones follow is refused, not masked wrongly.

The token that ends a turn is a target: a model that never learns it never stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.data.formats import Conversation, PlainText
from phalanx.data.messages import REASONING_KEYS, Message
from phalanx.errors import UserError

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
OWN_TEMPLATE = "pass another template with --chat-template FILE"


@dataclass(slots=True)
class Sample:
    tokens: np.ndarray  # [T] int32
    loss_mask: np.ndarray  # [T] uint8, 1: a target of the loss; the first is always 0, nothing predicts it

    @property
    def targets(self) -> int:
        return int(self.loss_mask.sum())


class Supervisor:
    """Encodes samples with one tokenizer, a fast one. Conversations need its chat template."""

    def __init__(self, tokenizer: Any, train_on: str, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._train_on = train_on
        self._vocab_size = vocab_size
        self._marked = GENERATION_MARK.search(tokenizer.chat_template or "") is not None
        special = {i: str(t) for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self._special_ids = np.array(sorted(special), dtype=np.int64)
        self._special_text = re.compile(
            "|".join(map(re.escape, sorted(special.values(), key=len, reverse=True)))
        )
        self._has_special = bool(special)

    def encode(self, item: Conversation | PlainText) -> Sample:
        self._refuse_special_text(item)
        return self._encode_text(item) if isinstance(item, PlainText) else self._encode_conversation(item)

    def _encode_text(self, item: PlainText) -> Sample:
        tokens = np.asarray(self._tokenizer(item.text)["input_ids"], dtype=np.int64)
        end = self._tokenizer.eos_token_id
        if end is not None and (len(tokens) == 0 or tokens[-1] != end):
            tokens = np.append(tokens, end)
        self._check_range(item, tokens)
        mask = np.ones(len(tokens), dtype=np.uint8)
        mask[:1] = 0
        return Sample(tokens.astype(np.int32), mask)

    def _encode_conversation(self, conversation: Conversation) -> Sample:
        text = self._render(conversation, conversation.messages)
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        tokens = np.asarray(encoding["input_ids"], dtype=np.int64)
        self._check_range(conversation, tokens)
        if self._train_on == "all":
            mask = np.ones(len(tokens), dtype=np.uint8)
        else:
            spans = (
                self._marked_spans(conversation)
                if self._marked
                else self._spans_by_prefix(conversation, text)
            )
            self._check_turns(conversation, text, spans)
            mask = self._mask(conversation, tokens, np.asarray(encoding["offset_mapping"]), spans)
        mask[:1] = 0
        return Sample(tokens.astype(np.int32), mask)

    def _render(self, conversation: Conversation, messages: list[Message], *, prompt: bool = False) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=conversation.tools, tokenize=False, add_generation_prompt=prompt
            )
        except Exception as error:  # whatever the template's own code raises
            raise self._template_error(conversation, error) from None

    @staticmethod
    def _template_error(conversation: Conversation, error: Exception) -> UserError:
        roles = ", ".join(message["role"] for message in conversation.messages)
        return UserError(
            f"{conversation.place}: the chat template refuses this conversation (roles {roles}): {error}; correct the "
            f"row, or {OWN_TEMPLATE}"
        )

    def _marked_spans(self, conversation: Conversation) -> list[tuple[int, int]]:
        """Characters of the learnt ones among the stretches that the template marks as generated, one for each turn."""
        try:
            marked = self._tokenizer.apply_chat_template(
                conversation.messages,
                tools=conversation.tools,
                return_dict=True,
                return_assistant_tokens_mask=True,
                tokenizer_kwargs={"return_offsets_mapping": True},
            )
        except Exception as error:
            raise self._template_error(conversation, error) from None
        edges = np.flatnonzero(np.diff(marked["assistant_masks"], prepend=0, append=0))
        offsets = marked["offset_mapping"]
        spans = [
            (offsets[first][0], offsets[end - 1][1])
            for first, end in zip(edges[::2], edges[1::2], strict=True)
        ]
        turns = sum(message["role"] == "assistant" for message in conversation.messages)
        if turns != len(spans):
            raise UserError(
                f"{conversation.place}: the chat template marks {len(spans)} spans as generated, the conversation has "
                f"{turns} assistant turns; correct its {{% generation %}} marks, or {OWN_TEMPLATE}"
            )
        return spans[-1:] if self._train_on == "last" else spans

    def _learnt_turns(self, conversation: Conversation) -> list[int]:
        """The messages of the assistant that are to be learnt."""
        turns = [n for n, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        return turns[-1:] if self._train_on == "last" else turns

    def _spans_by_prefix(self, conversation: Conversation, text: str) -> list[tuple[int, int]]:
        """Characters of each learnt turn in `text`."""
        spans = []
        messages = conversation.messages
        for number in self._learnt_turns(conversation):
            if number == 0:
                raise UserError(
                    f"{conversation.place}: the conversation begins with the assistant; no prompt comes before that "
                    "turn, so it cannot be learnt: add a user message or remove the turn"
                )
            before = self._render(conversation, messages[:number], prompt=True)
            whole = (
                text if number + 1 == len(messages) else self._render(conversation, messages[: number + 1])
            )
            if not (text.startswith(before) and text.startswith(whole) and len(whole) > len(before)):
                raise UserError(
                    f"{conversation.place}: the chat template writes messages[{number}] (assistant) differently once "
                    "other messages follow, so what the assistant wrote cannot be told by comparing prefixes; learn "
                    "only the last turn of each row with --train-on last, or pass a template with {% generation %} "
                    "marks with --chat-template FILE"
                )
            spans.append((len(before), len(whole)))
        return spans

    def _check_turns(self, conversation: Conversation, text: str, spans: list[tuple[int, int]]) -> None:
        """The template left out neither the text of a learnt turn nor its tool calls."""
        for number, (start, end) in zip(self._learnt_turns(conversation), spans, strict=True):
            message, written = conversation.messages[number], text[start:end]
            answer = message["content"].split("</think>")[-1].strip()
            calls = [call.get("function", call).get("name", "") for call in message.get("tool_calls", [])]
            for wanted in [answer, *calls]:
                if wanted not in written:
                    raise UserError(
                        f"{conversation.place}: the chat template leaves out {wanted[:40]!r} of messages[{number}] "
                        f"(assistant); {OWN_TEMPLATE} that writes it"
                    )
        self._check_reasoning(conversation, text)
        self._check_tools(conversation, text)

    @staticmethod
    def _check_reasoning(conversation: Conversation, text: str) -> None:
        """Of the last message alone: many templates leave out, by design, what was thought in earlier turns."""
        last = conversation.messages[-1]
        given = [key for key in REASONING_KEYS if key in last]
        if given and not any(last[key].strip() in text for key in given):
            raise UserError(
                f"{conversation.place}: the chat template leaves out {given[0]!r} of the last message; remove it, "
                f"call it what the template calls it (one of {', '.join(REASONING_KEYS)}), or {OWN_TEMPLATE} that "
                "writes it"
            )

    @staticmethod
    def _check_tools(conversation: Conversation, text: str) -> None:
        for tool in conversation.tools or []:
            description = tool.get("function", tool) if isinstance(tool, dict) else {}
            name = description.get("name") if isinstance(description, dict) else None
            if isinstance(name, str) and name not in text:
                raise UserError(
                    f"{conversation.place}: the chat template leaves out the tool {name!r}; {OWN_TEMPLATE} that writes "
                    "tools, or remove the column 'tools'"
                )

    def _mask(
        self,
        conversation: Conversation,
        tokens: np.ndarray,
        offsets: np.ndarray,
        spans: list[tuple[int, int]],
    ) -> np.ndarray:
        """A token is a target if it begins in a span and comes no later than the token that ends the turn."""
        mask = np.zeros(len(tokens), dtype=np.uint8)
        special = np.isin(tokens, self._special_ids)
        for start, end in spans:
            inside = np.flatnonzero(
                (offsets[:, 0] >= start) & (offsets[:, 0] < end) & (offsets[:, 1] > offsets[:, 0])
            )
            if len(inside) == 0:
                continue
            ends = inside[special[inside]]
            if len(ends) > 0:
                inside = inside[inside <= ends[-1]]
            elif inside[-1] + 1 < len(tokens) and special[inside[-1] + 1]:
                raise UserError(
                    f"{conversation.place}: the chat template's generation marks leave out "
                    f"{self._tokenizer.convert_ids_to_tokens(int(tokens[inside[-1] + 1]))}, the token that ends the "
                    "assistant's turn: the model would never learn to stop; move {% endgeneration %} behind it in a "
                    "template passed with --chat-template FILE"
                )
            mask[inside] = 1
        return mask

    def _refuse_special_text(self, item: Conversation | PlainText) -> None:
        if not self._has_special:
            return
        for where, text in _texts(item):
            if found := self._special_text.search(text):
                raise UserError(
                    f"{item.place}: {where} holds the text {found.group()!r}, which this tokenizer reads as a control "
                    "token, so that a message could end early or pose as another's; remove it from the text"
                )

    def _check_range(self, item: Conversation | PlainText, tokens: np.ndarray) -> None:
        if len(tokens) and tokens.max() >= self._vocab_size:
            at = int(np.argmax(tokens >= self._vocab_size))
            raise UserError(
                f"{item.place}: token {at} has the id {tokens[at]} "
                f"({self._tokenizer.convert_ids_to_tokens(int(tokens[at]))!r}), outside the model's vocabulary of "
                f"{self._vocab_size} (config.json); use the tokenizer that belongs to the model"
            )


def _texts(item: Conversation | PlainText) -> Iterator[tuple[str, str]]:
    """Every text of the sample that a person or a model wrote, and where it stands."""
    if isinstance(item, PlainText):
        yield "text", item.text
        return
    for number, message in enumerate(item.messages):
        yield f"messages[{number}] ({message['role']})", message["content"]
        for key in REASONING_KEYS:
            if key in message:
                yield f"messages[{number}].{key}", message[key]
