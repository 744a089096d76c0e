"""The tokenizer of a model folder, checked for what preparing needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phalanx.errors import UserError

# Everything in a model folder that can change token ids.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


def check_model_folder(model: Path) -> list[Path]:
    """The tokenizer files of the folder."""
    if not model.is_dir():
        raise UserError(
            f"{model}: no such model folder; give one with config.json and tokenizer.json with --model"
        )
    files = [model / name for name in TOKENIZER_FILES if (model / name).is_file()]
    if not any(file.name in ("tokenizer.json", "tokenizer.model", "vocab.json") for file in files):
        raise UserError(
            f"{model}: no tokenizer in the folder (no tokenizer.json, tokenizer.model or vocab.json); copy the "
            "tokenizer files of the model into it"
        )
    return files


def read_vocab_size(model: Path) -> int:
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}; give a complete model folder with --model"
        ) from None
    except ValueError as error:
        raise UserError(
            f"{path}: broken JSON: {error}; copy the file from the original model again"
        ) from None
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    if not isinstance(size, int) or size < 1:
        raise UserError(f"{path}: vocab_size is {size!r}, expected a positive integer; correct it")
    return size


def load_tokenizer(model: Path, chat_template: str | None, *, for_chat: bool) -> Any:
    """A fast tokenizer, `for_chat` with a chat template. Takes seconds: Transformers is imported here."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each tokenizer class fails in its own way
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{model}: the tokenizer cannot be loaded: {first_line}; copy the model's tokenizer files again"
        ) from None
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if for_chat and not isinstance(tokenizer.chat_template, str):
        raise UserError(
            f"{model}: the tokenizer has no chat template, so it is not known how messages become text; pass one with "
            "--chat-template FILE (a Jinja file, such as the chat_template.jinja of a model of the same family)"
        )
    if not tokenizer.is_fast:
        raise UserError(
            f"{model}: only a slow tokenizer could be loaded ({type(tokenizer).__name__}); "
            "convert it to a tokenizer.json"
        )
    return tokenizer


def check_template(tokenizer: Any, origin: Path) -> None:
    """Refuses a template that is no valid Jinja. `origin` is the file or model folder that it comes from."""
    from jinja2 import TemplateSyntaxError

    try:
        tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    except TemplateSyntaxError as error:
        raise UserError(
            f"{origin}: line {error.lineno} of the chat template is no valid Jinja: {error.message}; correct it, or "
            "pass another template with --chat-template FILE"
        ) from None
    except Exception:  # a template may refuse this conversation; the rows show what it takes
        return
