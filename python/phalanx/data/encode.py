"""Rows to samples, in order, by as many processes as are worth it."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from phalanx.data.formats import FORMATS
from phalanx.data.rows import Row
from phalanx.data.supervision import Sample, Supervisor
from phalanx.errors import UserError

CHUNK = 256  # rows that travel to a process together
POOL_WORTH_BYTES = 4 << 20  # of data files; below, starting processes takes longer than they save
MAX_PROCESSES = 16

# What the forked processes inherit; a tokenizer would have to be built again in each if it were sent.
_supervisor: Supervisor
Item = tuple[str, Row | UserError]  # the name of the row's format, and the row


def choose_processes(asked: int | None, data_bytes: int) -> int:
    if asked is not None:
        return asked
    available = len(os.sched_getaffinity(0))
    return min(available, MAX_PROCESSES) if data_bytes >= POOL_WORTH_BYTES else 1


def encode_rows(
    items: Iterable[Item], supervisor: Supervisor, processes: int
) -> Iterator[Sample | UserError]:
    """For each row in order its sample, or the UserError that says what is wrong with it."""
    global _supervisor
    _supervisor = supervisor
    chunks = _chunks(items)
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


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _encode_chunk(chunk: list[Item]) -> list[Sample | UserError]:
    return [_encode(name, row) for name, row in chunk]


def _encode(format_name: str, row: Row | UserError) -> Sample | UserError:
    if isinstance(row, UserError):
        return row
    try:
        return _supervisor.encode(FORMATS[format_name].read(row))
    except UserError as error:
        return error
