"""Makes model and data, runs the commands a user would type, and asks the result through Transformers."""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.__main__ import find_program
from phalanx.arguments import Parser
from phalanx.demo.answers import ask, count_right
from phalanx.demo.pairs import Pair, collect_pairs
from phalanx.demo.tiny_model import write_tiny_model
from phalanx.errors import UserError

EXAMPLES = """\
examples:
  phalanx demo
  phalanx demo --output my-demo --seed 7
"""
MARKER = "demo.json"  # tells a folder of an earlier demo from one that holds something else
ASKED = 8
WANTED = 6
MODEL_SEED = 0


@dataclass(frozen=True)
class Places:
    """Where everything lies."""

    root: Path

    @property
    def untrained(self) -> Path:
        return self.root / "untrained"

    @property
    def train(self) -> Path:
        return self.root / "train.jsonl"

    @property
    def validation(self) -> Path:
        return self.root / "validation.jsonl"

    @property
    def prepared(self) -> Path:
        return self.root / "prepared"

    @property
    def prepared_validation(self) -> Path:
        return self.root / "prepared-validation"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def plot(self) -> Path:
        return self.root / "plot.png"

    @property
    def model(self) -> Path:
        return self.root / "model"


def build_parser() -> argparse.ArgumentParser:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = Parser(
        prog="phalanx demo",
        description="Trains a tiny Mixture-of-Experts model on the documentation of Python's standard library, with "
        "the commands that train a large one, and lets it answer through Transformers. Takes a few minutes, no GPU.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=cache / "phalanx" / "demo",
        metavar="DIR",
        help="folder (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, help=f"draws the {ASKED} questions (default: a new one each time)"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    start = time.monotonic()
    try:
        places = Places(args.output)
        program, recipe = find_tools()
        clear(places.root)
        pairs = make_inputs(places)
        train(program, recipe, places)
        seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
        passed = examine(places, pairs, seed)
    except UserError as error:
        print(f"phalanx demo: error: {error}", file=sys.stderr)
        return 1
    report(places, time.monotonic() - start)
    return 0 if passed else 1


def find_tools() -> tuple[Path, Path]:
    """The program and the recipe."""
    program = find_program()
    if program is None:
        raise UserError(
            "the program `phalanx` is not on the PATH; build it with ./dev build, or name it in PHALANX_BIN"
        )
    package = Path(__file__).parents[1]
    for folder in (package / "recipes", package.parents[1] / "recipes"):  # installed, or in the source tree
        if (folder / "demo.yaml").is_file():
            return program, folder / "demo.yaml"
    raise UserError(f"{package}/recipes/demo.yaml: no such file; install the package again")


def clear(root: Path) -> None:
    """Makes an empty folder, in place of an earlier demo's."""
    if root.is_dir() and any(root.iterdir()) and not (root / MARKER).is_file():
        raise UserError(
            f"{root}: the folder holds other files; choose an empty or a new folder with --output"
        )
    try:
        if root.exists():
            shutil.rmtree(root)
        root.mkdir(parents=True)
        (root / MARKER).write_text(json.dumps({"written_by": "phalanx demo"}))
    except OSError as error:
        raise UserError(
            f"{root}: cannot be written: {error.strerror}; choose another folder with --output"
        ) from None


def make_inputs(places: Places) -> list[Pair]:
    pairs = collect_pairs()
    say(
        f"{len(pairs)} questions about {len({pair.module for pair in pairs})} modules of Python's standard library"
    )
    write_chats(places.train, [(pair.question, pair.answer) for pair in pairs])
    # The same facts asked in other words: no other words are ever trained.
    write_chats(places.validation, [(pair.reworded, pair.answer) for pair in pairs[::4]])
    texts = [text for pair in pairs for text in (pair.question, pair.reworded, pair.answer)]
    parameters = write_tiny_model(places.untrained, texts, MODEL_SEED)
    say(f"a Qwen3-MoE with {parameters / 1e6:.1f} million random parameters: {places.untrained}")
    return pairs


def write_chats(path: Path, exchanges: Sequence[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for question, answer in exchanges:
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")


def train(program: Path, recipe: Path, places: Places) -> None:
    """The commands as anybody would type them."""
    model = ("--model", places.untrained)
    prepare = ("prepare", *model, "--overwrite", "--data")
    call(program, *prepare, places.train, "--output", places.prepared)
    call(program, *prepare, places.validation, "--output", places.prepared_validation)
    call(
        program,
        "finetune",
        *("--config", recipe),
        *model,
        *("--data", places.prepared),
        *("--validation", places.prepared_validation),
        *("--output", places.run),
    )
    call(program, "plot", places.run, "--output", places.plot)
    call(program, "export", places.run, "--output", places.model)


def call(program: Path, *words: str | Path) -> None:
    command = [str(word) for word in words]
    say(f"\n$ phalanx {shlex.join(command)}")
    environment = os.environ | {"PHALANX_PYTHON": sys.executable}
    status = subprocess.run([program, *command], env=environment).returncode
    if status != 0:
        raise UserError(f"`phalanx {command[0]}` ended with exit code {status}; its own message is above")


def examine(places: Places, pairs: list[Pair], seed: int) -> bool:
    """Asks questions that nobody could choose before the training."""
    drawn = random.Random(seed).sample(range(len(pairs)), ASKED)
    asked = [pairs[number] for number in drawn]
    before = ask(places.untrained, [pair.question for pair in asked])
    after_all = ask(places.model, [pair.question for pair in pairs])
    after = [after_all[number] for number in drawn]

    say(f"\n{ASKED} questions drawn with seed {seed}, answered through Transformers")
    for pair, untrained, trained in zip(asked, before, after, strict=True):
        say(f"\n  {pair.question}")
        say(f"    untrained  {shorten(untrained)}")
        say(f"    trained    {shorten(trained)}  [{'right' if trained == pair.answer else 'wrong'}]")
        if trained != pair.answer:
            say(f"    expected   {pair.answer}")
    right_before, right, right_of_all = (
        count_right(asked, before),
        count_right(asked, after),
        count_right(pairs, after_all),
    )
    say(
        f"\nright word for word: {right} of {ASKED} (untrained: {right_before}); over all pairs {right_of_all} of "
        f"{len(pairs)} ({100 * right_of_all / len(pairs):.1f}%)"
    )
    passed = right >= WANTED and right_before == 0
    if not passed:
        say(
            f"that is not enough: at least {WANTED} of {ASKED} were expected, and none from the untrained model"
        )
    return passed


def shorten(answer: str, width: int = 90) -> str:
    text = " ".join(answer.split())
    return text if len(text) <= width else text[: width - 3] + "..."


def report(places: Places, seconds: float) -> None:
    say(f"\nplot     {places.plot}")
    say(f"metrics  {places.run / 'metrics.jsonl'}")
    say(f"model    {places.model}")
    say(f"\n{seconds:.0f} s in all. Next, with a model folder and chat data of your own:\n")
    say("  phalanx finetune --model MODEL_FOLDER --data chat.jsonl --output runs/first")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
