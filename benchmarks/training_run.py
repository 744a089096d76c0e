"""A real training run: GSM8K through `phalanx finetune`, stopped by SIGTERM in the middle, gone on with, exported;
and the same batches through Transformers.

    ./dev bench training_run --train gsm8k_train.jsonl --test gsm8k_test.jsonl --folder run

Both start from one random Qwen3-MoE with a tokenizer trained on the data, and train in bf16 with fp32 master weights.
The record has both curves; it must show the same mean loss over the last steps within 1%.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from phalanx.bench.batches import IGNORED, samples
from phalanx.bench.measure import device_state
from phalanx.demo.tiny_model import train_tokenizer

ROOT = Path(__file__).parents[1]
SIZES = {
    "1b": dict(
        hidden_size=1024, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
        num_experts=64, num_experts_per_tok=8, moe_intermediate_size=320, intermediate_size=1024,
    ),
    "tiny": dict(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, intermediate_size=64,
    ),
}  # fmt: skip
VOCABULARY = 8000
EVALUATED = 200  # samples of the test file
LEARNING_RATE, BETAS, DECAY, CLIP, WARMUP = 3e-4, (0.9, 0.95), 0.1, 1.0, 20
LAST = 100  # steps whose mean loss is compared


def questions(path, count=None):
    return [json.loads(line) for line in path.read_text().splitlines()[:count]]


def write_model(folder, options):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    texts = [row[key] for row in questions(options.train) for key in ("question", "answer")]
    tokenizer = train_tokenizer(texts, VOCABULARY)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        norm_topk_prob=True,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES[options.size],
    )
    torch.manual_seed(0)
    with torch.device(options.device):
        model = Qwen3MoeForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.num_parameters()


def run(*command, expected=0):
    print("$", shlex.join(map(str, command)), flush=True)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != expected:
        sys.exit(
            f"exit code {done.returncode}, expected {expected}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def settings(options):
    values = {
        "data.sequence_length": options.sequence,
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.weight_decay": DECAY,
        "optimizer.clip_norm": CLIP,
        "schedule.warmup_steps": WARMUP,
        "train.max_steps": options.steps,
        "train.micro_batch_size": options.rows,
        "train.precision": "bf16_master",
        "train.device": options.device,
        "train.router_aux_loss_coef": 0.0,
        "log_every": 20,
    }
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


def steps_of(output):
    path = output / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return {line["step"]: line for line in whole if "loss" in line}


def train_ours(model, data, output, options):
    """Stopped in the middle and gone on with: the steps, the one at which it was stopped, what it held at most."""
    command = [
        "phalanx",
        "finetune",
        "--model",
        model,
        "--data",
        data,
        "--output",
        output,
        *settings(options),
    ]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    while len(steps_of(output)) < options.steps // 2 and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    if process.wait() != 75:
        sys.exit(f"after SIGTERM: exit code {process.returncode}, expected 75")
    stopped = len(steps_of(output))
    log = run(*command)
    if f"at step {stopped} of" not in log:
        sys.exit(f"the second run did not go on from step {stopped}:\n{log[:2000]}")
    memory = [
        json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines() if "gpu_" in line
    ]
    return steps_of(output), stopped, memory


def rate_at(step, steps):
    """Linear warm-up, then a cosine to zero: as schedule.kind cosine."""
    if step <= WARMUP:
        return LEARNING_RATE * step / WARMUP
    return LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * (step - 1 - WARMUP) / (steps - WARMUP)))


def batches_of(output, data, count):
    """ids, labels and position ids [1, T] of each step of the run."""
    tool = os.environ.get("PHALANX_PRINT_BATCHES", ROOT / "build/cpu/bin/print_batches")
    numbers = run(tool, output / "config.json", count).splitlines()
    chats = list(samples(data))
    for line in numbers:
        chosen = [chats[number] for number in json.loads(line)]
        ids = torch.cat([tokens for tokens, _ in chosen])
        # Unshifted, as Transformers takes them; nothing is predicted across a boundary.
        labels = torch.cat([torch.where(mask, tokens, IGNORED).index_fill(0, torch.tensor([0]), IGNORED)
                            for tokens, mask in chosen])  # fmt: skip
        positions = torch.cat([torch.arange(len(tokens)) for tokens, _ in chosen])
        yield tuple(part[None] for part in (ids, labels, positions))


def train_theirs(model, batches, options):
    """bf16 weights for the model, fp32 copies and moments for torch's AdamW."""
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation="grouped_mm"
    ).to(options.device)
    peer.train()
    masters = dict(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(options.device).named_parameters()
    )
    groups = [
        dict(params=[p for p in masters.values() if p.dim() > 1], weight_decay=DECAY),
        dict(params=[p for p in masters.values() if p.dim() == 1], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=1e-8)
    losses = []
    for step, (ids, labels, positions) in enumerate(batches, start=1):
        inputs = dict(input_ids=ids, labels=labels, position_ids=positions)
        inputs = {name: tensor.to(options.device) for name, tensor in inputs.items()}
        loss = peer(**inputs, use_cache=False).loss
        loss.backward()
        for name, parameter in peer.named_parameters():
            masters[name].grad = parameter.grad.float()
            parameter.grad = None
        torch.nn.utils.clip_grad_norm_(masters.values(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, options.steps)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in peer.named_parameters():
                parameter.copy_(masters[name])
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def loss_of_export(folder, data, options):
    """Transformers' loss per supervised token of the exported model, in fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(options.device).eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for tokens, mask in samples(data):
            logits = model(tokens[None].to(options.device)).logits[0, :-1].log_softmax(-1)
            wanted = tokens[1:, None].to(options.device)
            loss = -logits.gather(1, wanted)[:, 0].cpu()
            total += loss[mask[1:]].sum().item()
            count += int(mask[1:].sum())
    return total / count


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True, help="gsm8k_train.jsonl")
    parser.add_argument("--test", type=Path, required=True, help="gsm8k_test.jsonl")
    parser.add_argument("--folder", type=Path, required=True, help="a new folder for everything")
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=8, help="packed rows of a step")
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args()
    before = device_state()
    options.folder.mkdir(parents=True)
    model, data, held_out, output = (options.folder / name for name in ("model", "train", "test", "run"))
    parameters = write_model(model, options)
    test = options.folder / "test.jsonl"
    test.write_text("".join(json.dumps(row) + "\n" for row in questions(options.test, EVALUATED)))
    for source, target in ((options.train, data), (test, held_out)):
        run("phalanx", "prepare", "--model", model, "--data", source, "--output", target)
    begin = time.perf_counter()
    steps, stopped, memory = train_ours(model, data, output, options)
    ours = [steps[step]["loss"] for step in range(1, options.steps + 1)]
    seconds = {"ours, two starts and export": time.perf_counter() - begin}
    begin = time.perf_counter()
    theirs = train_theirs(model, batches_of(output, data, options.steps), options)
    seconds["transformers"] = time.perf_counter() - begin
    printed = run("phalanx", "eval", "--model", output / "model", "--data", held_out, "--set",
                  f"data.sequence_length={options.sequence}", "--set", f"train.device={options.device}")  # fmt: skip
    last = min(LAST, options.steps)
    means = [sum(curve[-last:]) / last for curve in (ours, theirs)]
    record = {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": {"before": before, "after": device_state()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
        },
        "parameters": parameters,
        "stopped_after_step": stopped,
        "seconds": seconds,
        "tokens_per_second": sorted(s["tokens_per_second"] for s in steps.values())[len(steps) // 2],
        "memory": memory,
        "mean_loss_of_last_steps": {"steps": last, "phalanx": means[0], "transformers": means[1]},
        "loss_of_export": {
            "phalanx": float(printed.split()[1]),
            "transformers": loss_of_export(output / "model", held_out, options),
        },
        "losses": {"phalanx": ours, "transformers": theirs},
    }
    print(json.dumps({name: value for name, value in record.items() if name != "losses"}, indent=1))
    print(f"mean loss of the last {last} steps: {means[0] / means[1] - 1:+.3%} beside Transformers")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
