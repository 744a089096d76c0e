"""One line on a terminal that says how far a command is; nothing elsewhere."""

from __future__ import annotations

import sys
import time

INTERVAL = 0.2  # seconds between two refreshes


class Progress:
    def __init__(self) -> None:
        self._active = sys.stderr.isatty()
        self._start = time.monotonic()
        self._next = self._start + INTERVAL

    def show(self, done: int, what: str, share: float) -> None:
        """`done` of `what` so far, `share` in [0, 1] of the work; called as often as one likes."""
        now = time.monotonic()
        if not self._active or now < self._next:
            return
        self._next = now + INTERVAL
        elapsed = now - self._start
        left = f", {elapsed * (1 - share) / share:.0f} s left" if share > 0 else ""
        line = f"{done:,} {what}, {done / elapsed:,.0f}/s, {100 * share:.0f}%{left}"
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._active:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
