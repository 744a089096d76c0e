"""The import line against plain Transformers, in turns in one run: step, checks, loading, import.

Seconds are processor time, so that other work on the machine matters little; with --threads 1 it hardly does.

- step: forward with labels, backward, clipping and torch's AdamW(fused=True) in fp32, on the same weights and tokens.
  The peer is Transformers with sdpa attention and the faster of its `grouped_mm` and `eager` experts.
- checks: what each layer looks at before it decides that its halves run in the engine; the quickest of many.
- loading: `from_pretrained` of a random checkpoint with one tensor per expert, each in a process of its own, files
  in the page cache. The peak is that of the process's resident memory, less what was resident before.
- import: the line itself, each in a process of its own.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit

import torch
import transformers
from cpu import ADAMW, SIZES, measure
from load_save import write_checkpoint

import phalanx
from phalanx import halves

SOURCES = {"phalanx": phalanx, "transformers": transformers}


class Trained:
    """A model and its optimizer, as a script of a user has them."""

    def __init__(self, source, config, state, tokens, experts):
        options = {"attn_implementation": "sdpa", "experts_implementation": experts}
        self.model = SOURCES[source].AutoModelForCausalLM.from_config(config, **options).train()
        self.model.load_state_dict(state)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True, **ADAMW)
        self.tokens = tokens

    def step(self):
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def bench_step(size):
    setting = SIZES[size]
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        norm_topk_prob=True, max_position_embeddings=4096, **setting["config"]
    )
    tokens = torch.randint(0, config.vocab_size, (setting["rows"], setting["length"]))
    state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    runners = {"phalanx": Trained("phalanx", config, state, tokens, "eager")}
    for experts in ("grouped_mm", "eager"):
        runners[f"transformers {experts}"] = Trained("transformers", config, state, tokens, experts)
    losses = {name: runner.step() for name, runner in runners.items()}
    if max(losses.values()) - min(losses.values()) > 1e-4:
        sys.exit(f"the losses of the first step differ: {losses}")
    seconds = measure(runners, setting["steps"], time.process_time)
    explanation = phalanx.explain(runners["phalanx"].model)
    if explanation.fallen_back:
        sys.exit(f"not all ran in the engine:\n{explanation}")
    best = min(value for name, value in seconds.items() if name != "phalanx")
    return {
        "size": size,
        "parameters": sum(tensor.numel() for tensor in state.values()),
        "tokens": tokens.numel(),
        "seconds": seconds,
        "ratio": best / seconds["phalanx"],
    }


def bench_checks():
    """Microseconds a layer."""
    config = transformers.Qwen3MoeConfig(**SIZES["tiny"]["config"])
    layer = phalanx.AutoModelForCausalLM.from_config(config).model.layers[0]
    hidden, weight = torch.zeros(1, 8, config.hidden_size), layer.input_layernorm.weight

    def checks():
        for half in layer.phalanx_calls:
            if layer.why_not_fused(half) or halves.why_not_tensors(hidden, weight, weight):
                sys.exit("the layer of the benchmark does not run in the engine")

    number = 20
    return min(timeit.repeat(checks, number=number, repeat=3000)) / number * 1e6


LOAD = """
import importlib, json, time, torch
def resident(field):
    return int(open("/proc/self/status").read().split(field + ":")[1].split()[0]) * 1024
auto = importlib.import_module({source!r}).AutoModelForCausalLM
import transformers.models.qwen3_moe.modeling_qwen3_moe
if {source!r} == "phalanx":
    from phalanx import engine, families
    engine.load()
before = resident("VmRSS")
begin = time.process_time()
model = auto.from_pretrained({folder!r})
seconds = time.process_time() - begin
size = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
print(json.dumps([seconds, resident("VmHWM") - before, size]))
"""


def in_process(source, code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{source} fails:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def bench_loading(gib, turns):
    seen = {source: [] for source in SOURCES}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(pathlib.Path(folder), gib, 1 << 29)
        for turn in range(turns + 1):
            for source in SOURCES:
                found = in_process(source, LOAD.format(folder=folder, source=source))
                if turn > 0:  # the first brings the files into the page cache
                    seen[source].append(found)
    rows = {}
    for source, runs in seen.items():
        seconds, peak, size = (statistics.median(values) for values in zip(*runs, strict=True))
        rows[source] = {"seconds": seconds, "peak_bytes": peak, "model_bytes": size}
    return {**rows, "ratio": rows["transformers"]["seconds"] / rows["phalanx"]["seconds"]}


IMPORT = """
import json, time
begin = time.process_time()
from {source} import AutoModelForCausalLM
print(json.dumps(time.process_time() - begin))
"""


def bench_import(turns):
    seen = {source: [] for source in SOURCES}
    for _ in range(turns):
        for source in SOURCES:
            seen[source].append(in_process(source, IMPORT.format(source=source)))
    return {source: statistics.median(values) for source, values in seen.items()}


def print_tables(record):
    print("step, fp32     parameters  tokens   ms: phalanx, grouped_mm, eager         ratio")
    for row in record.get("step", []):
        times = "  ".join(f"{1e3 * value:9.1f}" for value in row["seconds"].values())
        print(f"{row['size']:12} {row['parameters']:12,} {row['tokens']:7,}  {times}   {row['ratio']:5.2f} x")
    print(f"checks: {record['checks_microseconds']:.1f} us a layer")
    for source in SOURCES:
        row = record["loading"][source]
        sizes = f"{row['model_bytes'] / 2**20:.0f} MiB, peak {row['peak_bytes'] / 2**20:.0f} MiB"
        print(f"loading with {source}: {row['seconds']:.2f} s, {sizes}")
    imports = record["import_seconds"]
    print(f"import: phalanx {imports['phalanx']:.2f} s, transformers {imports['transformers']:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, action="append", help="of the step; default: all")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the checkpoint that is loaded")
    parser.add_argument("--turns", type=int, default=5, help="of loading and of the import")
    parser.add_argument("--threads", type=int, help="of the step; default: torch's choice")
    parser.add_argument("--output", type=pathlib.Path, help="where to write the JSON record")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    record = {
        "command": "./dev bench import_line"
        + (f" --threads {arguments.threads}" if arguments.threads else ""),
        "date": datetime.date.today().isoformat(),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "step": [bench_step(size) for size in arguments.size or SIZES],
        "checks_microseconds": bench_checks(),
        "loading": bench_loading(arguments.gib, arguments.turns),
        "import_seconds": bench_import(arguments.turns),
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=2) + "\n")
    print_tables(record)


if __name__ == "__main__":
    main()
