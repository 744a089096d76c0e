"""`python -m phalanx bench step`: a training step of the engine beside other systems on the same GPU, in one run.

Every system gets the same model, weights and tokens, one after the other; their losses must agree before a time counts.
With --data the tokens are chat samples packed into rows, which attend to themselves alone; a rate counts real tokens.
"""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from phalanx.arguments import Parser
from phalanx.bench.batches import IGNORED, Batch, packed_batch, random_batch
from phalanx.bench.breakdown import table
from phalanx.bench.measure import Plan, Result, device_state, measure
from phalanx.bench.shapes import MODELS, flops_per_token, model_config
from phalanx.bench.systems import SYSTEMS, Setting, free
from phalanx.engine import EngineError
from phalanx.errors import NOT_ACCEPTABLE, UserError

EXAMPLES = """\
examples:
  python -m phalanx bench step --model qwen3-30b-a3b --layers 24 --batch 4 --against transformers,liger
  python -m phalanx bench step --layers 24 --batch 1 --experts grouped_mm --json step.json
  python -m phalanx bench step --layers 12 --batch 4 --optimizer bf16 --against transformers
  python -m phalanx bench step --layers 48 --batch 4 --optimizer 8bit --update in_backward --recompute full
  python -m phalanx bench table step.json
"""
LOSS_TOLERANCE = 2e-3  # relative, between systems in bf16
SHOWN_KERNELS = 25


def parser() -> Parser:
    result = Parser(prog="phalanx bench", description=__doc__, epilog=EXAMPLES)
    result.add_argument(
        "what",
        choices=["step", "table"],
        help="step: forward, backward and optimizer on one batch; table: where its time went",
    )
    result.add_argument("record", nargs="?", type=Path, help="of table: what --json wrote")
    result.add_argument(
        "--model", choices=sorted(MODELS), default="qwen3-30b-a3b", help="shapes of the model"
    )
    result.add_argument("--layers", type=int, help="layers; default: all of the model")
    result.add_argument("--batch", type=int, default=4, help="sequences of a step (default 4)")
    result.add_argument("--sequence", type=int, default=4096, help="tokens of a sequence (default 4096)")
    result.add_argument(
        "--against", default="", help="other systems: transformers, liger, or both with a comma"
    )
    result.add_argument(
        "--experts", default="auto", help="the engine's experts_implementation (default auto)"
    )
    result.add_argument(
        "--data", type=Path, help="rows packed from a folder of `phalanx prepare`; default: random tokens"
    )
    result.add_argument(
        "--optimizer",
        choices=["none", "fp32", "bf16", "8bit"],
        default="none",
        help="AdamW with states of that kind; none (default): forward and backward alone",
    )
    result.add_argument(
        "--update",
        choices=["after_backward", "in_backward"],
        default="after_backward",
        help="when the engine's optimizer runs (default after_backward)",
    )
    result.add_argument(
        "--recompute", choices=["none", "selective", "full"], default="none", help="activation checkpointing"
    )
    result.add_argument(
        "--hold-gradients",
        action="store_true",
        help="add to the gradients of the step before, as accumulation does",
    )
    result.add_argument(
        "--repeats",
        type=int,
        default=0,
        help="run forward and backward so often more and count distinct gradients",
    )
    result.add_argument(
        "--warm-limit",
        type=float,
        default=600,
        help="seconds after which no more warm-up steps start (default 600)",
    )
    result.add_argument("--warmup", type=int, default=4, help="steps before the measured ones (default 4)")
    result.add_argument("--steps", type=int, default=8, help="measured steps (default 8)")
    result.add_argument("--deterministic", action="store_true", help="torch.use_deterministic_algorithms")
    result.add_argument("--json", type=Path, help="file for the whole record")
    return result


def systems_of(against: str) -> list[str]:
    """The engine first, the others in an order that keeps each undisturbed."""
    others = [name for name in against.split(",") if name]
    for name in others:
        if name not in SYSTEMS or name == "phalanx":
            raise UserError(f"--against {name}: expected {' or '.join(n for n in SYSTEMS if n != 'phalanx')}")
    return [name for name in SYSTEMS if name == "phalanx" or name in others]


def check_losses(results: list[Result]) -> None:
    first = results[0]
    for other in results[1:]:
        if abs(other.loss - first.loss) > LOSS_TOLERANCE * abs(first.loss):
            raise UserError(
                f"the losses do not agree: {first.system} {first.loss:.6f}, {other.system} {other.loss:.6f}; "
                "the systems do not compute the same"
            )


def print_kernels(result: Result) -> None:
    total = sum(kernel.ms for kernel in result.kernels)
    if total == 0:
        return
    print(
        f"\n{result.system}: {total:.1f} ms in kernels, {result.idle_ms:.1f} ms between them, "
        f"step {result.step_ms:.1f} ms"
    )
    for kernel in result.kernels[:SHOWN_KERNELS]:
        print(f"  {kernel.ms:9.2f} ms {kernel.calls:6d} x  {kernel.name[:120]}")


def print_table(results: list[Result]) -> None:
    print(
        f"\n{'system':14}{'ms':>9}{'tokens/s':>11}{'TFLOP/s':>9}{'GiB':>8}{'reserved':>10}{'first s':>9}{'loss':>9}"
    )
    for r in results:
        print(
            f"{r.system:14}{r.step_ms:9.1f}{r.tokens_per_second:11.0f}{r.model_tflops:9.1f}{r.allocated_gib:8.1f}"
            f"{r.reserved_gib:10.1f}{r.first_step_s:9.1f}{r.loss:9.4f}"
        )
    ours = results[0]
    if ours.distinct_gradients:
        print(f"{ours.system}: {ours.distinct_gradients} distinct gradients")
    for r in results[1:]:
        print(f"{ours.system} is {ours.tokens_per_second / r.tokens_per_second:.2f} x {r.system}")


def batch_of(options, vocabulary: int) -> Batch:
    if options.data is None:
        return random_batch(vocabulary, options.batch, options.sequence)
    return packed_batch(options.data, vocabulary, options.batch, options.sequence)


def check_options(options) -> None:
    if options.update == "in_backward" and (
        options.optimizer == "none" or options.hold_gradients or options.repeats
    ):
        raise UserError(
            "--update in_backward: needs --optimizer, and leaves no gradients to hold or to compare"
        )


def bench_step(options) -> None:
    check_options(options)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = model_config(options.model, options.layers, "bfloat16" if device == "cuda" else "float32")
    batch = batch_of(options, config["vocab_size"])
    setting = Setting(
        config=config,
        batch=batch,
        sequence=options.sequence,
        device=device,
        experts=options.experts,
        states=options.optimizer,
        in_backward=options.update == "in_backward",
        recompute=options.recompute,
    )
    plan = Plan(options.warmup, options.warm_limit, options.steps, options.hold_gradients, options.repeats)
    if options.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    # Of whole rows: documents have fewer pairs of tokens, which is what packing gains.
    flops = flops_per_token(config, options.sequence)
    before, results = device_state(), []
    for name in systems_of(options.against):
        system = SYSTEMS[name](setting)
        results.append(measure(system, plan, batch.tokens.numel(), flops))
        free(system)
        print_kernels(results[-1])
        check_losses(results)
    print_table(results)
    if options.json:
        record = {
            "command": shlex.join(["python", "-m", "phalanx", *sys.argv[1:]]),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": {"before": before, "after": device_state()},
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "model": options.model,
            "config": config,
            "batch": options.batch,
            "sequence": options.sequence,
            "tokens": batch.tokens.numel(),
            "documents": len(batch.lengths),
            "supervised_tokens": int((batch.labels != IGNORED).sum()),
            "experts": options.experts,
            "optimizer": options.optimizer,
            "update": options.update,
            "recompute": options.recompute,
            "hold_gradients": options.hold_gradients,
            "repeats": options.repeats,
            "deterministic": options.deterministic,
            "gflop_per_token": flops / 1e9,
            "results": [result.as_json() for result in results],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.what == "table":
            if options.record is None:
                raise UserError("table: name the record that `bench step --json` wrote")
            print(table(json.loads(options.record.read_text())))
        else:
            bench_step(options)
    except (UserError, EngineError) as error:
        print(f"phalanx: error: {error}", file=sys.stderr)
        return NOT_ACCEPTABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
