"""Runs `phalanx finetune` on made-up chats and reads what it leaves behind."""

import json
import subprocess

WORDS = ["red", "green", "blue", "round", "square", "heavy", "light", "old"]
WORDS += ["new", "warm", "cold", "deep", "thin", "loud", "wet"]


def write_chats(path, count):
    rows = [
        {
            "question": f"What is {WORDS[i % 15]} and {WORDS[i * 7 % 15]} {i}?",
            "answer": f"{WORDS[i * 4 % 15]} {i * 3}",
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def finetune_command(model, data, output, **fields):
    defaults = {
        "data.sequence_length": 64,
        "optimizer.learning_rate": 0.003,
        "train.max_steps": 12,
        "checkpoint.every_steps": 5,
        "checkpoint.keep_last": 10,
        "train.threads": 2,
    }
    fields = {**defaults, **{name.replace("__", "."): value for name, value in fields.items()}}
    sets = [part for name, value in fields.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    return ["phalanx", "finetune", "--model", model, "--data", data, "--output", output, *sets]


def finetune(model, data, output, expected=0, **fields):
    run = subprocess.run(finetune_command(model, data, output, **fields), capture_output=True, text=True)
    assert run.returncode == expected, run.stdout + run.stderr
    return run


def metrics(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def losses(output):
    return {line["step"]: line["loss"] for line in metrics(output) if "loss" in line}


def checkpoint(output, step):
    return output / "checkpoints" / f"step-{step:08d}"
