"""A job that would run, and ways to look at what `phalanx finetune` says after something in it was broken."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

GOOD_ROW = {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}


@dataclass
class Job:
    """`phalanx finetune` on a copy of a good model and good data, all inside `folder`."""

    folder: pathlib.Path
    good_model: pathlib.Path
    options: list[str] = field(default_factory=list)

    def __post_init__(self):
        shutil.copytree(self.good_model, self.model)
        self.write_rows([GOOD_ROW] * 8)

    @property
    def model(self):
        return self.folder / "model"

    @property
    def data(self):
        return self.folder / "chat.jsonl"

    @property
    def recipe(self):
        return self.folder / "recipe.yaml"

    @property
    def output(self):
        return self.folder / "run"

    def write_rows(self, rows):
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write_recipe(self, text):
        self.recipe.write_text(text)
        self.options += ["--config", str(self.recipe)]

    def edit_config(self, **fields):
        path = self.model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    def command(self):
        given = " ".join(self.options)
        command = ["finetune"]
        for flag, value in (("--model", self.model), ("--data", self.data), ("--output", self.output)):
            if flag not in given:
                command += [flag, str(value)]
        if "--sequence-length" not in given:
            command += ["--sequence-length", "64"]
        return command + self.options


@dataclass
class Case:
    """`harm` breaks the job; the message must hold every text of `says`: file, place, cause and cure.

    `{folder}` and the like are filled in from the job."""

    name: str
    harm: Callable[[Job], None]
    says: tuple[str, ...]

    def check(self, job: Job):
        self.harm(job)
        before = snapshot(job.folder)
        done = run_phalanx(*job.command(), XDG_CACHE_HOME=str(job.folder / "cache"))
        assert done.returncode == 2, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
        for text in self.says:
            wanted = text.format(
                model=job.model, data=job.data, recipe=job.recipe, output=job.output, folder=job.folder
            )
            assert wanted in done.stderr, f"{wanted!r} is not in\n{done.stderr}"
        assert "Traceback" not in done.stderr
        assert snapshot(job.folder) == before, "the command wrote something"


def run_phalanx(*arguments, **environment):
    return subprocess.run(
        ["phalanx", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def snapshot(folder):
    """Every path below with its kind, size and time of change."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        entries[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return entries


def read_safetensors(path):
    """Header and bytes of the tensors."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def edit_weights(job, edit):
    """`edit` changes the header in place; the bytes stay."""
    path = job.model / "model.safetensors"
    header, data = read_safetensors(path)
    edit(header)
    write_safetensors(path, header, data)


def shard(job, file_name="model-00001-of-00001.safetensors", stored_as=None):
    """Turns the single file into a shard with an index that calls it `file_name`."""
    path = job.model / "model.safetensors"
    header, data = read_safetensors(path)
    names = [name for name in header if name != "__metadata__"]
    path.rename(job.model / (stored_as or file_name))
    index = {"metadata": {"total_size": len(data)}, "weight_map": dict.fromkeys(names, file_name)}
    (job.model / "model.safetensors.index.json").write_text(json.dumps(index))


def options(*words):
    return lambda job: job.options.extend(word.format(folder=job.folder) for word in words)
