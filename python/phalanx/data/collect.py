"""All rows of the sources, encoded and counted, into a writer of shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from phalanx.data.encode import Item, choose_processes, encode_rows
from phalanx.data.formats import FORMATS, check_columns, recognise, rename_columns
from phalanx.data.progress import Progress
from phalanx.data.readers import read_rows
from phalanx.data.rows import Row
from phalanx.data.shards import ShardWriter
from phalanx.data.sources import Source
from phalanx.data.supervision import Sample, Supervisor
from phalanx.errors import UserError

ROWS_CHECKED_FIRST = 1000  # of each source, before the seconds that loading a tokenizer takes


@dataclass
class Counts:
    rows: int = 0
    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    no_target: list[str] = field(default_factory=list)  # places of rows in which nothing is supervised
    skipped: list[str] = field(default_factory=list)  # what is wrong with each row left out as bad

    def add(self, sample: Sample, place: str) -> None:
        if sample.targets == 0:
            self.no_target.append(place)
            return
        self.samples += 1
        self.tokens += len(sample.tokens)
        self.supervised_tokens += sample.targets
        self.longest = max(self.longest, len(sample.tokens))

    def as_json(self) -> dict[str, Any]:
        numbers = {k: v for k, v in vars(self).items() if isinstance(v, int)}
        return numbers | {"dropped": {"no_target": len(self.no_target), "bad": len(self.skipped)}}


def recognise_source(source: Source, asked: str, columns: dict[str, str], skip_bad: bool) -> Row:
    """Settles the format of a source by its first good row, which is returned, and checks what the first rows hold."""
    first, first_error = None, None
    for _, item in zip(range(ROWS_CHECKED_FIRST), read_rows(source.path), strict=False):
        try:
            row = _good(item)
            if first is None:
                check_columns(row, columns)
            row = rename_columns(row, columns)
            if first is None:
                source.format = recognise(row).name if asked == "auto" else asked
                first = row
            FORMATS[source.format].read(row)
        except UserError as error:
            if not skip_bad:
                raise
            first_error = first_error or error
    if first is None:
        raise first_error or UserError(
            f"{source.path}: the file has no row; give a file with at least one sample"
        )
    return first


def _good(item: Row | UserError) -> Row:
    if isinstance(item, UserError):
        raise item
    return item


def encode_sources(
    sources: list[Source],
    columns: dict[str, str],
    skip_bad: bool,
    supervisor: Supervisor,
    processes: int | None,
    writer: ShardWriter,
) -> Counts:
    """Without `skip_bad` the first bad row raises its UserError."""
    counts = Counts()
    total_lines = sum(source.lines for source in sources)
    lines_before = [sum(source.lines for source in sources[:number]) for number in range(len(sources))]
    origins: deque[tuple[int, Row | UserError]] = deque()  # of the rows that are on their way

    def work() -> Iterator[Item]:
        for number, source in enumerate(sources):
            for item in read_rows(source.path):
                source.rows += 1
                origins.append((number, item))
                row = rename_columns(item, columns) if isinstance(item, Row) else item
                yield source.format, row

    progress = Progress()
    total_bytes = sum(source.bytes for source in sources)
    line = 0
    for encoded in encode_rows(work(), supervisor, choose_processes(processes, total_bytes)):
        number, row = origins.popleft()
        counts.rows += 1
        line = row.line if isinstance(row, Row) else line
        if isinstance(encoded, UserError):
            if not skip_bad:
                progress.clear()
                raise encoded
            counts.skipped.append(str(encoded))
        else:
            assert isinstance(row, Row)
            counts.add(encoded, row.place)
            if encoded.targets > 0:
                writer.add(encoded, number, row.line)
        progress.show(counts.rows, "rows", (lines_before[number] + line) / total_lines)
    progress.clear()
    return counts
