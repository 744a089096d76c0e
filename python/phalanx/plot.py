"""`phalanx plot`: the curves of one or more runs in a PNG."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.arguments import Parser
from phalanx.errors import NOT_ACCEPTABLE, UserError

EXAMPLES = """\
examples:
  phalanx plot runs/first
  phalanx plot runs/first runs/second --output comparison.png
"""
METRICS = "metrics.jsonl"
SMOOTHED_FROM = 100  # points: above, the loss is drawn as a moving average over the faint raw line
COLOURS = ("#1f77b4", "#d1495b", "#2a9d5c", "#e08e0b", "#7b5ea7", "#4aa3a2", "#8c564b", "#666666")
# Key in the metrics, title of the panel, label of the axis. A panel without a value other than 0 is left out.
PANELS = (
    ("learning_rate", "Learning rate", ""),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("tokens_per_second", "Throughput", "tokens / s"),
    ("expert_load", "Expert load", "busiest / mean"),
)


@dataclass
class Run:
    """The curves of a run; of steps that were trained again after a resume, the later record counts."""

    name: str
    training: dict[int, dict[str, float]] = field(default_factory=dict)  # by step
    validation: dict[int, float] = field(default_factory=dict)  # loss by step

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        steps = sorted(step for step, record in self.training.items() if key in record)
        return steps, [self.training[step][key] for step in steps]


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="phalanx plot",
        description="Draws loss, validation loss, learning rate, gradient norm, throughput and expert load.",
        epilog=EXAMPLES,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folder, or a metrics.jsonl")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.png",
        help="default: plot.png in the run, comparison.png here for several",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    try:
        output = args.output or (
            Path("comparison.png") if len(args.runs) > 1 else default_output(args.runs[0])
        )
        if output.suffix.lower() != ".png":
            raise UserError(f"{output}: only PNG is written; give --output a name that ends in .png")
        runs = [read_run(path) for path in args.runs]
        name_apart(runs, args.runs)
        draw(runs, output)
    except UserError as error:
        print(f"phalanx plot: error: {error}", file=sys.stderr)
        return NOT_ACCEPTABLE
    print(output)
    return 0


def default_output(run: Path) -> Path:
    return (run if run.is_dir() else run.parent) / "plot.png"


def read_run(path: Path) -> Run:
    metrics = path / METRICS if path.is_dir() else path
    try:
        data = metrics.read_bytes()
    except OSError as error:
        raise UserError(
            f"{metrics}: cannot be read: {error.strerror}; name a run, the --output of `phalanx finetune`"
        ) from None
    folder = path if path.is_dir() else path.parent
    run = Run(folder.resolve().name)
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = parse_line(line)
        if record is None and number == len(lines):
            break  # the run is writing this line now, or was killed while it did
        if record is None:
            raise UserError(
                f"{metrics}:{number}: no metrics record: {printable(line)}; expected an object with an integer 'step' "
                "and numbers; delete this line"
            )
        add_record(run, record)
    if not run.training and not run.validation:
        raise UserError(f"{metrics}: no step is recorded yet; wait for the first one, or name another run")
    return run


def parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    known = [record.get(key) for key in ("loss", "validation_loss", *(key for key, _, _ in PANELS))]
    return record if all(value is None or isinstance(value, int | float) for value in known) else None


def add_record(run: Run, record: dict[str, Any]) -> None:
    numbers = {key: float(value) for key, value in record.items() if isinstance(value, int | float)}
    if "validation_loss" in numbers:
        run.validation[record["step"]] = numbers.pop("validation_loss")
    if "loss" in numbers:
        run.training[record["step"]] = numbers


def printable(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", "replace")) + ("..." if len(line) > 60 else "")


def name_apart(runs: list[Run], paths: Sequence[Path]) -> None:
    """Runs of one name are called by their paths."""
    names = [run.name for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if names.count(run.name) > 1:
            run.name = str(path)


def draw(runs: Sequence[Run], output: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e6e6e6",
        "axes.axisbelow": True,
        "axes.edgecolor": "#888888",
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
    }
    with plt.rc_context(style):
        panels = panels_of(runs)
        figure = plt.figure(figsize=(12, 7.5), layout="constrained")
        grid = figure.add_gridspec(2, max(1, len(panels)), height_ratios=(1.7, 1))
        draw_loss(figure.add_subplot(grid[0, :]), runs)
        for column, (key, title, label) in enumerate(panels):
            draw_panel(figure.add_subplot(grid[1, column]), runs, key, title, label)
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(output, dpi=150)
        except OSError as error:
            raise UserError(
                f"{output}: cannot be written: {error.strerror}; choose another --output"
            ) from None
        finally:
            plt.close(figure)


def panels_of(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    return [panel for panel in PANELS if any(any(run.curve(panel[0])[1]) for run in runs)]


def draw_loss(axes: Any, runs: Sequence[Run]) -> None:
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        name = f"{run.name} " if len(runs) > 1 else ""
        steps, losses = run.curve("loss")
        if len(steps) >= SMOOTHED_FROM:
            axes.plot(steps, losses, color=colour, alpha=0.2, linewidth=0.8)
            losses = moving_average(losses)
        if steps:
            axes.plot(
                steps, losses, color=colour, linewidth=1.8, label=f"{name}training", **marker_if_few(steps)
            )
        if run.validation:
            points = sorted(run.validation.items())
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linewidth=1.4,
                linestyle=(0, (4, 2)),
                marker="o",
                markersize=5,
                markerfacecolor="white",
                markeredgewidth=1.4,
                label=f"{name}validation",
            )
    axes.set_title("Loss")
    axes.set_xlabel("step")
    axes.set_ylabel("nats per token")
    finish_axes(axes)
    axes.legend(frameon=False, ncols=max(1, math.ceil(len(runs) / 4)))


def draw_panel(axes: Any, runs: Sequence[Run], key: str, title: str, label: str) -> None:
    for number, run in enumerate(runs):
        steps, values = run.curve(key)
        axes.plot(steps, values, color=COLOURS[number % len(COLOURS)], linewidth=1.1, **marker_if_few(steps))
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    finish_axes(axes)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}")


def finish_axes(axes: Any) -> None:
    """Zero in sight, air above the curve, whole steps."""
    axes.margins(x=0.015, y=0.06)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def marker_if_few(steps: Sequence[int]) -> dict[str, Any]:
    """A single point would make no visible line."""
    return {"marker": "o", "markersize": 4} if len(steps) < 3 else {}


def moving_average(values: Sequence[float]) -> list[float]:
    """The mean of the finite values around each, over a window of a fiftieth of the curve; shorter at both ends."""
    reach = len(values) // 100
    averages = []
    for at in range(len(values)):
        around = min(reach, at, len(values) - 1 - at)
        window = [value for value in values[at - around : at + around + 1] if math.isfinite(value)]
        averages.append(sum(window) / len(window) if window else math.nan)
    return averages


if __name__ == "__main__":
    sys.exit(main())
