"""Rows to samples, in order, by as many processes as are worth it."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from phalanx.data.formats import Format
from phalanx.data.rows import Row
from phalanx.data.supervision import Sample, Supervisor

CHUNK = 256  # rows that travel to a process together
POOL_WORTH_BYTES = 4 << 20  # of data files; below, starting processes takes longer than they save
MAX_PROCESSES = 16

# What the forked processes inherit; a tokenizer would have to be built again in each if it were sent.
_supervisor: Supervisor
_Work = list[tuple[Format, Row]]


def choose_processes(asked: int | None, data_bytes: int) -> int:
    if asked is not None:
        return asked
    available = len(os.sched_getaffinity(0))
    return min(available, MAX_PROCESSES) if data_bytes >= POOL_WORTH_BYTES else 1


def encode_rows(
    rows: Iterable[tuple[Format, Row]], supervisor: Supervisor, processes: int
) -> Iterator[Sample]:
    """One sample for each row, in the order of the rows; the first bad row in that order raises its UserError."""
    global _supervisor
    _supervisor = supervisor
    chunks = _chunks(rows)
    if processes == 1:
        for chunk in chunks:
            yield from _encode_chunk(chunk)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pending: deque = deque()
        for chunk in chunks:
            pending.append(pool.apply_async(_encode_chunk, (chunk,)))
            if len(pending) == 4 * processes:  # bounds what is held in memory
                yield from pending.popleft().get()
        while pending:
            yield from pending.popleft().get()


def _chunks(rows: Iterable[tuple[Format, Row]]) -> Iterator[_Work]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _encode_chunk(chunk: _Work) -> list[Sample]:
    return [_supervisor.encode(data_format.read(row)) for data_format, row in chunk]
