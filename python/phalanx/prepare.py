"""`phalanx prepare`: chat data to token shards."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phalanx.arguments import Parser
from phalanx.data import tokenizers
from phalanx.data.collect import Counts, encode_sources, recognise_source
from phalanx.data.formats import FORMATS, parse_columns
from phalanx.data.rows import Row
from phalanx.data.shards import (
    MANIFEST,
    VERSION,
    ShardWriter,
    check_output,
    is_complete,
    read_manifest,
    rename_sources,
)
from phalanx.data.sources import Source, open_sources
from phalanx.data.supervision import Supervisor
from phalanx.errors import NOT_ACCEPTABLE, UserError

EXAMPLES = """\
examples:
  phalanx prepare --model Qwen3-30B-A3B --data chat.jsonl --output prepared
  phalanx prepare --model Qwen3-30B-A3B --data 'chats/*.parquet' more.csv --weights 1 0.5 --output prepared
  phalanx prepare --model Qwen3-30B-A3B --data maths.jsonl --columns question=problem answer=solution
  phalanx finetune --model Qwen3-30B-A3B --data prepared --output run

formats, recognised by their columns:
  messages              {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}
  sharegpt              {"conversations": [{"from": "human", "value": "..."}, ...], "system": "...", "tools": "[...]"}
  alpaca                {"instruction": "...", "input": "...", "output": "...", "history": [["...", "..."]]}
  instruction_response  {"instruction": "...", "context": "...", "response": "..."}
  prompt_completion     {"prompt": "...", "completion": "..."}, or a list of messages in each
  prompt_response       {"prompt": "...", "response": "..."}
  query_response        {"query": "...", "response": "...", "history": [["...", "..."]]}
  question_answer       {"question": "...", "answer": "..."}
  question_response     {"system_prompt": "...", "question": "...", "response": "..."}
  text                  {"text": "..."}: plain text, all of it learnt, without the chat template
Each but the last may also have the columns system or system_prompt, history and tools.
"""
TRAIN_ON = ("assistant", "last", "all")
LISTED_PLACES = 10  # of dropped and of bad rows


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="phalanx prepare",
        description="Turns chats and texts into token shards with a loss mask, through the model's own chat template.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="model folder with the tokenizer"
    )
    parser.add_argument(
        "--data",
        required=True,
        nargs="+",
        metavar="FILE",
        help="JSON, JSONL, CSV, TSV or Parquet files, folders of them, or patterns such as 'chats/*.jsonl'",
    )
    parser.add_argument(
        "--weights",
        type=float,
        nargs="+",
        default=[],
        metavar="W",
        help="one for each --data: how often an epoch has its samples; 0.5: half of them, 2: each twice",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder to write; default: one in the cache, named by its content",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace other prepared data in the folder of --output"
    )
    parser.add_argument(
        "--print-folder", action="store_true", help="write the folder's path to standard output"
    )
    parser.add_argument(
        "--format", choices=("auto", *FORMATS), default="auto", help="default: by the columns"
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="NAME=COLUMN",
        help="where a column of the format has another name in the files: question=problem",
    )
    parser.add_argument(
        "--on-bad-sample",
        choices=("fail", "skip"),
        default="fail",
        help="whether a row that cannot be used ends the command (default) or is left out, counted and listed",
    )
    parser.add_argument(
        "--train-on",
        choices=TRAIN_ON,
        default="assistant",
        help="the targets of the loss: every turn of the assistant (default), its last one, or all text",
    )
    parser.add_argument(
        "--chat-template", type=Path, metavar="FILE", help="Jinja template in place of the tokenizer's own"
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="default: 1 for small data, else one a processor"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    try:
        folder = prepare(args)
    except UserError as error:
        print(f"phalanx prepare: error: {error}", file=sys.stderr)
        return NOT_ACCEPTABLE
    if args.print_folder:
        print(folder)
    return 0


def prepare(args: argparse.Namespace) -> Path:
    """Returns the folder, which holds what was asked for: written now, or found there."""
    start = time.monotonic()
    if args.processes is not None and args.processes < 1:
        raise UserError(f"--processes is {args.processes}; give at least 1")
    columns = parse_columns(args.columns)
    tokenizer_files = tokenizers.check_model_folder(args.model)
    vocab_size = tokenizers.read_vocab_size(args.model)
    template = _read_template(args.chat_template)
    sources = open_sources(args.data, args.weights)
    recipe = _recipe(args, tokenizer_files, template, vocab_size, sources)
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    output = args.output or _cache_folder() / key[:16]
    check_output(output)
    present = read_manifest(output)
    if present and present.get("key") == key and is_complete(output, present):
        rename_sources(output, present, [str(source.path) for source in sources])
        _say(f"{output}: up to date, {_summary(present['counts'])}")
        return output
    if present and args.output and not args.overwrite:
        raise UserError(
            f"{output}: holds prepared data of other files, of another tokenizer or of other options "
            f"({_summary(present['counts'])}); choose another folder with --output, or replace it with --overwrite"
        )
    skip_bad = args.on_bad_sample == "skip"
    for source in sources:  # the cheap errors before the slow import
        row = recognise_source(source, args.format, columns, skip_bad)
        _say(f"{source.path}: format {source.format} ({_why(args.format, source.format, row)})")

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive the fork
    for_chat = any(source.format != "text" for source in sources)
    tokenizer = _load_tokenizer(args, template, for_chat=for_chat)
    supervisor = Supervisor(tokenizer, args.train_on, vocab_size)
    with ShardWriter(output) as writer:
        counts = encode_sources(sources, columns, skip_bad, supervisor, args.processes, writer)
        _check_counts(counts, args)
        listed = [{**vars(source), "path": str(source.path)} for source in sources]
        results = {"counts": counts.as_json(), "sources": listed, "skipped": counts.skipped}
        writer.finish({"key": key, **results, **recipe})
    _warn(counts)
    _say(f"{output}: {_summary(counts.as_json())}, {time.monotonic() - start:.1f} s")
    return output


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "phalanx" / "prepared"


def _recipe(
    args: argparse.Namespace,
    tokenizer_files: list[Path],
    template: str | None,
    vocab_size: int,
    sources: list[Source],
) -> dict[str, Any]:
    """All that decides the content of the folder."""
    return {
        "vocabulary_size": vocab_size,
        "tokenizer": {file.name: _sha256(file) for file in tokenizer_files},
        "options": {
            "format": args.format,
            "columns": args.columns,
            "train_on": args.train_on,
            "chat_template": template,
            "on_bad_sample": args.on_bad_sample,
        },
        "versions": {"shards": VERSION} | {name: version(name) for name in ("transformers", "tokenizers")},
        "source_sha256": [source.sha256 for source in sources],
        "source_weights": [source.weight for source in sources],
    }


def _read_template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check --chat-template") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not valid UTF-8 at byte {error.start}; --chat-template takes a Jinja file"
        ) from None


def _load_tokenizer(args: argparse.Namespace, template: str | None, *, for_chat: bool) -> Any:
    tokenizer = tokenizers.load_tokenizer(args.model, template, for_chat=for_chat)
    if for_chat:
        tokenizers.check_template(tokenizer, args.chat_template or args.model)
    return tokenizer


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _why(asked: str, name: str, row: Row) -> str:
    if asked != "auto":
        return "as asked with --format"
    return f"its first row has {', '.join(FORMATS[name].required)}"


def _check_counts(counts: Counts, args: argparse.Namespace) -> None:
    if counts.samples > 0:
        return
    names = ", ".join(args.data)
    if len(counts.skipped) == counts.rows:
        raise UserError(f"{names}: all {counts.rows} rows are bad:\n{_first_lines(counts.skipped)}")
    raise UserError(
        f"{names}: none of the {counts.rows} rows has anything to be learnt (first: {_places(counts)}); "
        "unless --train-on is all, every row needs an assistant turn"
    )


def _warn(counts: Counts) -> None:
    if counts.no_target:
        number = len(counts.no_target)
        _say(f"warning: {number} rows dropped, nothing in them is to be learnt: {_places(counts)}")
    if counts.skipped:
        number = len(counts.skipped)
        _say(f"warning: {number} bad rows skipped, all listed in {MANIFEST}:\n{_first_lines(counts.skipped)}")


def _places(counts: Counts) -> str:
    more = ", ..." if len(counts.no_target) > LISTED_PLACES else ""
    return ", ".join(counts.no_target[:LISTED_PLACES]) + more


def _first_lines(messages: list[str]) -> str:
    more = ["  ..."] if len(messages) > LISTED_PLACES else []
    return "\n".join([f"  {message}" for message in messages[:LISTED_PLACES]] + more)


def _summary(counts: dict[str, Any]) -> str:
    share = 100 * counts["supervised_tokens"] / counts["tokens"]
    return (
        f"{counts['samples']:,} samples of {counts['rows']:,} rows, {counts['tokens']:,} tokens "
        f"({share:.1f}% supervised), longest {counts['longest']:,}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
