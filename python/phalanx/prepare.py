"""`phalanx prepare`: chat data to token shards."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phalanx.arguments import Parser
from phalanx.data import tokenizers
from phalanx.data.encode import choose_processes, encode_rows
from phalanx.data.formats import FORMATS, Format, recognise
from phalanx.data.progress import Progress
from phalanx.data.rows import Row, open_data_file, read_rows
from phalanx.data.shards import VERSION, ShardWriter, check_output, is_complete, read_manifest
from phalanx.data.supervision import Sample, Supervisor
from phalanx.errors import NOT_ACCEPTABLE, UserError

EXAMPLES = """\
examples:
  phalanx prepare --model Qwen3-30B-A3B --data chat.jsonl --output prepared
  phalanx prepare --model Qwen3-30B-A3B --data a.jsonl b.json --output prepared --format sharegpt
  phalanx finetune --model Qwen3-30B-A3B --data prepared --output run

formats, recognised by their columns:
  messages         {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}
  sharegpt         {"conversations": [{"from": "human", "value": "..."}, ...], "system": "...", "tools": "[...]"}
  alpaca           {"instruction": "...", "input": "...", "output": "...", "system": "...", "history": [["", ""]]}
  question_answer  {"question": "...", "answer": "..."}
"""
TRAIN_ON = ("assistant", "last", "all")
LISTED_PLACES = 10  # of dropped rows


@dataclass
class Source:
    """One data file."""

    path: Path
    sha256: str
    bytes: int
    lines: int
    rows: int = 0
    format: str = ""


@dataclass
class Counts:
    rows: int = 0
    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    no_target: list[str] = field(default_factory=list)  # places of rows in which nothing is supervised

    def add(self, sample: Sample, row: Row) -> None:
        self.rows += 1
        if sample.targets == 0:
            self.no_target.append(row.place)
            return
        self.samples += 1
        self.tokens += len(sample.tokens)
        self.supervised_tokens += sample.targets
        self.longest = max(self.longest, len(sample.tokens))

    def as_json(self) -> dict[str, Any]:
        numbers = {k: v for k, v in vars(self).items() if isinstance(v, int)}
        return numbers | {"dropped": {"no_target": len(self.no_target)}}


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="phalanx prepare",
        description="Turns chat data into token shards with a loss mask, through the model's own chat template.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="model folder with the tokenizer"
    )
    parser.add_argument(
        "--data", type=Path, required=True, nargs="+", metavar="FILE", help="JSON or JSONL files"
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
    tokenizer_files = tokenizers.check_model_folder(args.model)
    vocab_size = tokenizers.read_vocab_size(args.model)
    template = _read_template(args.chat_template)
    sources = [_open_source(path) for path in args.data]
    recipe = _recipe(args, tokenizer_files, template, vocab_size, sources)
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    output = args.output or _cache_folder() / key[:16]
    check_output(output)
    present = read_manifest(output)
    if present and present.get("key") == key and is_complete(output, present):
        _say(f"{output}: up to date, {_summary(present['counts'])}")
        return output
    if present and args.output and not args.overwrite:
        raise UserError(
            f"{output}: holds prepared data of other files, of another tokenizer or of other options "
            f"({_summary(present['counts'])}); choose another folder with --output, or replace it with --overwrite"
        )
    first_rows = [
        _first_row(source, args.format) for source in sources
    ]  # the cheap errors before the slow import
    for source, row in zip(sources, first_rows, strict=True):
        _say(f"{source.path}: format {source.format} ({_why(args.format, source.format, row)})")

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive the fork
    supervisor = Supervisor(_load_tokenizer(args, template), args.train_on, vocab_size)
    with ShardWriter(output) as writer:
        counts = _encode(sources, supervisor, args.processes, writer)
        _check_counts(counts, args)
        listed = [{**vars(source), "path": str(source.path)} for source in sources]
        writer.finish({"key": key, "counts": counts.as_json(), "sources": listed, **recipe})
    if counts.no_target:
        _say(
            f"warning: {len(counts.no_target)} rows dropped, nothing in them is to be learnt: {_places(counts)}"
        )
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
        "options": {"format": args.format, "train_on": args.train_on, "chat_template": template},
        "versions": {"shards": VERSION} | {name: version(name) for name in ("transformers", "tokenizers")},
        "source_sha256": [source.sha256 for source in sources],
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


def _load_tokenizer(args: argparse.Namespace, template: str | None) -> Any:
    tokenizer = tokenizers.load_tokenizer(args.model, template)
    tokenizers.check_template(tokenizer, args.chat_template or args.model)
    return tokenizer


def _open_source(path: Path) -> Source:
    digest, size, lines = hashlib.sha256(), 0, 1
    with open_data_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
    return Source(path, digest.hexdigest(), size, lines)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_row(source: Source, asked: str) -> Row:
    row = next(read_rows(source.path), None)
    if row is None:
        raise UserError(f"{source.path}: the file has no row; give a file with at least one sample")
    source.format = recognise(row).name if asked == "auto" else asked
    return row


def _why(asked: str, name: str, row: Row) -> str:
    if asked != "auto":
        return "as asked with --format"
    return f"its first row has {', '.join(FORMATS[name].required)}"


def _encode(
    sources: list[Source], supervisor: Supervisor, processes: int | None, writer: ShardWriter
) -> Counts:
    counts = Counts()
    total_bytes = sum(source.bytes for source in sources)
    total_lines = sum(source.lines for source in sources)
    lines_before = [sum(source.lines for source in sources[:number]) for number in range(len(sources))]
    origins: deque[tuple[int, Row]] = deque()  # of the rows that are on their way

    def work() -> Iterator[tuple[Format, Row]]:
        for number, source in enumerate(sources):
            for row in read_rows(source.path):
                source.rows += 1
                origins.append((number, row))
                yield FORMATS[source.format], row

    progress = Progress()
    samples = encode_rows(work(), supervisor, choose_processes(processes, total_bytes))
    for sample in samples:
        source, row = origins.popleft()
        counts.add(sample, row)
        if sample.targets > 0:
            writer.add(sample, source, row.line)
        progress.show(counts.rows, "rows", (lines_before[source] + row.line) / total_lines)
    progress.clear()
    return counts


def _check_counts(counts: Counts, args: argparse.Namespace) -> None:
    if counts.samples == 0:
        raise UserError(
            f"{', '.join(map(str, args.data))}: none of the {counts.rows} rows has anything to be learnt "
            f"(first: {_places(counts)}); unless --train-on is all, every row needs an assistant turn"
        )


def _places(counts: Counts) -> str:
    more = ", ..." if len(counts.no_target) > LISTED_PLACES else ""
    return ", ".join(counts.no_target[:LISTED_PLACES]) + more


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
