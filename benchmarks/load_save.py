"""Loading and saving a checkpoint against safetensors, in one run on one machine.

A random Qwen3-MoE checkpoint with one tensor per expert is written to a temporary folder. Then, in turns and each in
a process of its own:

- ours: read every byte into merged parameters in ordinary memory; write them back, one tensor per expert, durably.
- safetensors: `load_file` and a copy into the same merged parameters; `save_file` of the tensors as they lie in the
  files, then fsync of files and folder. Taking the merged parameters apart again, which Transformers does before it
  saves, is not counted.

All files are in the page cache when they are read. The extra memory is the peak of anonymous memory beyond the model.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).parents[1]
BUILD = pathlib.Path(os.environ.get("PHALANX_BUILD_DIR", ROOT / "build/cpu"))
MIB = 1 << 20


# ---- The checkpoint ----


def model_config(gib: float) -> transformers.Qwen3MoeConfig:
    config = transformers.Qwen3MoeConfig(
        vocab_size=32000,
        hidden_size=1024,
        moe_intermediate_size=512,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=64,
        num_experts_per_tok=8,
        architectures=["Qwen3MoeForCausalLM"],
        dtype="bfloat16",
    )
    layer = config.num_experts * 3 * config.moe_intermediate_size * config.hidden_size * 2
    config.num_hidden_layers = max(1, round(gib * 2**30 / layer))
    return config


def tensor_shapes(config) -> dict[str, tuple[int, ...]]:
    hidden, width, head = config.hidden_size, config.moe_intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_hidden_layers):
        layer = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "mlp.gate": (config.num_experts, hidden),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for expert in range(config.num_experts):
            layer[f"mlp.experts.{expert}.gate_proj"] = (width, hidden)
            layer[f"mlp.experts.{expert}.up_proj"] = (width, hidden)
            layer[f"mlp.experts.{expert}.down_proj"] = (hidden, width)
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (config.vocab_size, hidden)}


def write_checkpoint(folder: pathlib.Path, gib: float, shard_bytes: int) -> None:
    config = model_config(gib)
    shapes = tensor_shapes(config)
    shards: list[list[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        if filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    config.save_pretrained(folder)
    weight_map = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        numbers = {name: torch.randint(-(2**15), 2**15, shapes[name], dtype=torch.int16) for name in names}
        save_file({k: v.view(torch.bfloat16) for k, v in numbers.items()}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    index_file = folder / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


# ---- safetensors, in a process of its own ----


class AnonymousMemory:
    """The peak of anonymous memory between enter and exit, sampled every millisecond."""

    def __enter__(self):
        self.before = self.peak = self.now()
        self.done = False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done = True
        self.thread.join()
        self.growth = self.peak - self.before

    def watch(self):
        while not self.done:
            self.peak = max(self.peak, self.now())
            time.sleep(0.001)

    @staticmethod
    def now() -> int:
        status = pathlib.Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024


def merged_place(name: str, config) -> tuple[str, tuple[int, ...], slice]:
    """Parameter, its shape and the part of its first two dimensions that a tensor of the file fills."""
    experts, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
    prefix, _, rest = name.partition(".experts.")
    expert, projection = rest.split(".")[:2]
    if projection == "down_proj":
        return f"{prefix}.experts.down_proj", (experts, hidden, width), (int(expert), slice(None))
    rows = slice(0, width) if projection == "gate_proj" else slice(width, 2 * width)
    return f"{prefix}.experts.gate_up_proj", (experts, 2 * width, hidden), (int(expert), rows)


def load_with_safetensors(folder: pathlib.Path, config) -> dict[str, torch.Tensor]:
    parameters: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if ".experts." in name:
                parameter, shape, place = merged_place(name, config)
                if parameter not in parameters:
                    parameters[parameter] = torch.empty(shape, dtype=tensor.dtype)
                parameters[parameter][place].copy_(tensor)
            else:
                parameters[name] = torch.empty_like(tensor).copy_(tensor)
    return parameters


def save_with_safetensors(shards: dict[str, dict[str, torch.Tensor]], folder: pathlib.Path) -> None:
    folder.mkdir()
    for file, tensors in shards.items():
        save_file(tensors, folder / file, {"format": "pt"})
    for path in [*(folder / file for file in shards), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def run_safetensors(source: pathlib.Path, target: pathlib.Path) -> dict:
    config = transformers.AutoConfig.from_pretrained(source)
    torch.empty(1).add_(1)  # threads and allocator are up before the clock starts
    with AnonymousMemory() as memory:
        start = time.perf_counter()
        parameters = load_with_safetensors(source, config)
        load_seconds = time.perf_counter() - start
    model_bytes = sum(t.nbytes for t in parameters.values())
    load = {"seconds": load_seconds, "extra_bytes": max(0, memory.growth - model_bytes)}
    del parameters
    shards = {
        p.name: {k: v.clone() for k, v in load_file(p).items()} for p in sorted(source.glob("*.safetensors"))
    }
    with AnonymousMemory() as memory:
        start = time.perf_counter()
        save_with_safetensors(shards, target)
        save_seconds = time.perf_counter() - start
    return {
        "model_bytes": model_bytes,
        "load": load,
        "save": {"seconds": save_seconds, "extra_bytes": memory.growth},
    }


# ---- The comparison ----


def run_in_process(command: list, target: pathlib.Path) -> dict:
    os.sync()  # nothing of the run before is left to be written
    # torch's threads spin while they wait: where other programs use the machine, that slows its copies several times.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        raise SystemExit(run.stderr)
    for path in target.iterdir():
        path.unlink()
    target.rmdir()
    return json.loads(run.stdout)


def compare(folder: pathlib.Path, rounds: int, shard_bytes: int) -> dict:
    source, target = folder / "in", folder / "out"
    commands = {
        "phalanx": [BUILD / "bin/checkpoint_copy", source, target, "--shard-bytes", str(shard_bytes)],
        "safetensors": [sys.executable, __file__, "--safetensors", source, target],
    }
    runs = {who: [] for who in commands}
    for _ in range(rounds):
        for who, command in commands.items():
            runs[who].append(run_in_process(command, target))
    return runs


def median(runs: list[dict], what: str, figure: str) -> float:
    return statistics.median(run[what][figure] for run in runs)


def summarise(runs: dict, largest_tensor: int) -> dict:
    summary = {"model_bytes": runs["phalanx"][0]["model_bytes"], "largest_tensor_bytes": largest_tensor}
    for what in ("load", "save"):
        ours, theirs = (median(runs[who], what, "seconds") for who in ("phalanx", "safetensors"))
        summary[what] = {
            "phalanx_seconds": ours,
            "safetensors_seconds": theirs,
            "speedup": theirs / ours,
            "phalanx_extra_bytes": max(run[what]["extra_bytes"] for run in runs["phalanx"]),
            "safetensors_extra_bytes": max(run[what]["extra_bytes"] for run in runs["safetensors"]),
        }
    return summary


def table(summary: dict) -> str:
    gib = summary["model_bytes"] / 2**30
    lines = [
        f"{gib:.2f} GiB, largest tensor {summary['largest_tensor_bytes'] / MIB:.1f} MiB",
        "          phalanx            safetensors        speed-up   extra memory MiB (phalanx, safetensors)",
    ]
    for what in ("load", "save"):
        row = summary[what]
        rates = [
            f"{row[f'{who}_seconds']:6.2f} s {gib / row[f'{who}_seconds']:5.2f} GiB/s"
            for who in ("phalanx", "safetensors")
        ]
        extra = ", ".join(f"{row[f'{who}_extra_bytes'] / MIB:.1f}" for who in ("phalanx", "safetensors"))
        lines.append(f"{what:8}  {rates[0]}  {rates[1]}  {row['speedup']:5.2f} x    {extra}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=2.2, help="size of the experts in GiB (default 2.2)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs of each, in turns; the median counts (default 5)"
    )
    parser.add_argument("--shard-mib", type=int, default=1024, help="size of a shard in MiB (default 1024)")
    parser.add_argument(
        "--folder", type=pathlib.Path, help="where to put the checkpoints (default: a temporary one)"
    )
    parser.add_argument("--output", type=pathlib.Path, help="JSON file for all figures")
    parser.add_argument(
        "--safetensors", nargs=2, type=pathlib.Path, metavar=("IN", "OUT"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.safetensors:
        print(json.dumps(run_safetensors(*arguments.safetensors)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = pathlib.Path(name)
        (folder / "in").mkdir()
        shard_bytes = arguments.shard_mib * MIB
        write_checkpoint(folder / "in", arguments.gib, shard_bytes)
        runs = compare(folder, arguments.rounds, shard_bytes)
    config = model_config(arguments.gib)
    largest = max(2 * torch.Size(shape).numel() for shape in tensor_shapes(config).values())
    summary = summarise(runs, largest)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "command": "./dev bench load_save",
            "date": datetime.date.today().isoformat(),
            "versions": {"torch": torch.__version__, "safetensors": safetensors.__version__},
            "cores": os.cpu_count(),
            "summary": summary,
            "runs": runs,
        }
        arguments.output.write_text(json.dumps(record, indent=2) + "\n")
    print(table(summary))


if __name__ == "__main__":
    main()
