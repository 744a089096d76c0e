"""The argument parser of the commands written in Python."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """Shows examples as they are written, and answers a misspelt option with the nearest one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        # Before argparse, which would first complain of the required option that was misspelt.
        words = sys.argv[1:] if args is None else list(args)
        for word in words[: words.index("--")] if "--" in words else words:
            self._check_option(word.split("=", 1)[0])
        return super().parse_known_args(words, namespace)

    def _check_option(self, name: str) -> None:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        if not name.startswith("--") or any(option.startswith(name) for option in known):
            return
        nearest = difflib.get_close_matches(name, known, n=2)
        meant = f"; did you mean {' or '.join(nearest)}?" if nearest else f"; known: {', '.join(known)}"
        self.error(f"unknown option {name}{meant}")
