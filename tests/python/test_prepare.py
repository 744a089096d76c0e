"""`phalanx prepare`: masks against an independent computation, the folder it writes, the cache, and its C++ reader."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from chat_data import (
    CHATML,
    CHATML_MARKED,
    CHATML_REWRITING,
    CHATML_TOOLS,
    data_file,
    read_samples,
    run_prepare,
    write_chat_model,
)
from tree import BUILD, ROOT

FILES = ("gsm8k_test.jsonl", "alpaca_en_demo.json", "sharegpt_dummy.json")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("prepare")


@pytest.fixture(scope="module")
def model(home):
    return write_chat_model(home / "model")


def prepare(*arguments):
    done = run_prepare(*arguments)
    assert done.returncode == 0, done.stderr
    return done


def read(folder):
    """Manifest and samples."""
    return json.loads((folder / "manifest.json").read_text()), read_samples(folder)


class TokenBytes:
    """How many bytes each token of the byte-level vocabulary stands for, and which are control tokens."""

    def __init__(self, model):
        vocabulary = json.loads((model / "tokenizer.json").read_text())
        self.length = {i: len(text) for text, i in vocabulary["model"]["vocab"].items()}
        self.control = {token["id"]: token["content"] for token in vocabulary["added_tokens"]}
        self.text = {i: text for text, i in vocabulary["model"]["vocab"].items()}

    def expected_mask(self, tokens):
        """Walks over the ids alone: between the header of an assistant's message and its end, the end included."""
        header = "assistantĊ"  # byte-level writes the line feed so
        mask, open_message, seen = [], False, ""
        for token in tokens:
            if self.control.get(token) == "<|im_start|>":
                open_message, seen = True, ""
                mask.append(0)
            elif self.control.get(token) == "<|im_end|>":
                mask.append(int(open_message and seen.startswith(header)))
                open_message = False
            else:
                mask.append(int(open_message and seen.startswith(header)))
                seen += self.text[token]
        return mask


def messages_of(row):
    """The conversation of a row, written anew for this test."""
    if "question" in row:
        return [("user", row["question"]), ("assistant", row["answer"])]
    if "instruction" in row:
        prompt = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
        return [("user", prompt), ("assistant", row["output"])]
    return [({"human": "user", "gpt": "assistant"}[m["from"]], m["value"]) for m in row["conversations"]]


def rows_of(path):
    text = path.read_text(encoding="utf-8")
    return (
        json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n") if line]
    )


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED], ids=["prefixes", "generation marks"])
def test_masks_equal_an_independent_computation(home, model, tmp_path, template):
    from transformers import AutoTokenizer

    files = [data_file(name, home) for name in FILES]
    (tmp_path / "template.jinja").write_text(template)
    prepare(
        "--model",
        model,
        "--data",
        *files,
        "--output",
        tmp_path / "out",
        "--chat-template",
        tmp_path / "template.jinja",
    )
    manifest, samples = read(tmp_path / "out")
    rows = [(n, row) for n, file in enumerate(files) for row in rows_of(file)]
    assert len(samples) == len(rows) == manifest["counts"]["samples"]
    expected, tokenizer = TokenBytes(model), AutoTokenizer.from_pretrained(model)
    supervised = 0
    for (tokens, mask, source, _), (number, row) in zip(samples, rows, strict=True):
        text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages_of(row))
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == tokens.tolist()
        assert source == number
        assert mask.tolist() == expected.expected_mask(tokens.tolist())
        supervised += int(mask.sum())
    assert manifest["counts"]["supervised_tokens"] == supervised
    assert manifest["counts"]["tokens"] == sum(len(sample[0]) for sample in samples)


def test_train_on_all(home, model, tmp_path):
    path = data_file("sharegpt_dummy.json", home)
    prepare("--model", model, "--data", path, "--output", tmp_path / "out", "--train-on", "all")
    for tokens, mask, _, _ in read(tmp_path / "out")[1]:
        assert mask.tolist() == [0] + [1] * (len(tokens) - 1)


@pytest.mark.parametrize(
    "template", [CHATML, CHATML_MARKED, CHATML_REWRITING], ids=["prefixes", "marks", "rewriting"]
)
def test_train_on_last(home, model, tmp_path, template):
    from transformers import AutoTokenizer

    tokenizer, path = AutoTokenizer.from_pretrained(model), data_file("sharegpt_dummy.json", home)
    (tmp_path / "template.jinja").write_text(template)
    options = ("--chat-template", tmp_path / "template.jinja", "--train-on", "last")
    prepare("--model", model, "--data", path, "--output", tmp_path / "out", *options)
    thought = "<think></think>" if template == CHATML_REWRITING else ""
    for (tokens, mask, _, _), row in zip(read(tmp_path / "out")[1], rows_of(path), strict=True):
        assert (
            tokenizer.decode(tokens[mask == 1]) == thought + row["conversations"][-1]["value"] + "<|im_end|>"
        )


def test_tool_calls(home, model, tmp_path):
    path = data_file("glaive_toolcall_en_demo.json", home)
    (tmp_path / "tools.jinja").write_text(CHATML_TOOLS)
    prepare(
        "--model",
        model,
        "--data",
        path,
        "--output",
        tmp_path / "out",
        "--chat-template",
        tmp_path / "tools.jinja",
    )
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    calls = 0
    for (tokens, mask, _, _), row in zip(read(tmp_path / "out")[1], rows_of(path), strict=True):
        learnt = tokenizer.decode(tokens[mask == 1])
        ignored = tokenizer.decode(tokens[mask == 0])
        for message in row["conversations"]:
            if message["from"] == "function_call":
                calls += 1
                assert json.loads(message["value"])["name"] in learnt
            elif message["from"] == "gpt":
                assert message["value"] in learnt
            else:
                assert message["value"] in ignored
    assert calls > 0


def test_processes_give_the_same_folder(home, model, tmp_path):
    path = data_file("alpaca_en_demo.json", home)
    for processes in (1, 3):
        prepare(
            "--model", model, "--data", path, "--output", tmp_path / str(processes), "--processes", processes
        )
    names = sorted(file.name for file in (tmp_path / "1").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "3").iterdir())
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_small_shards_hold_the_same_samples(home, model, tmp_path):
    from phalanx.data.shards import ShardWriter
    from phalanx.data.supervision import Sample

    path = data_file("sharegpt_dummy.json", home)
    prepare("--model", model, "--data", path, "--output", tmp_path / "one")
    whole = read(tmp_path / "one")[1]
    with ShardWriter(tmp_path / "many", shard_tokens=5000) as writer:
        for tokens, mask, source, line in whole:
            writer.add(Sample(tokens, mask), source, line)
        writer.finish({})
    manifest, samples = read(tmp_path / "many")
    assert len(manifest["shards"]) > 5
    assert all(entry["tokens"] < 5000 + 1000 for entry in manifest["shards"])
    for a, b in zip(whole, samples, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_unchanged_input_is_a_hit_and_everything_else_a_miss(home, model, tmp_path):
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    shutil.copy(data_file("gsm8k_test.jsonl", home), data)
    arguments = ("--model", model, "--data", data, "--output", out)
    prepare(*arguments)
    before = (out / "manifest.json").stat().st_mtime_ns
    imports = [sys.executable, "-X", "importtime", "-m", "phalanx", "prepare", *map(str, arguments)]
    hit = subprocess.run(imports, capture_output=True, text=True)
    assert "up to date" in hit.stderr
    assert "torch" not in hit.stderr and "transformers" not in hit.stderr.replace(str(ROOT), "")
    assert (out / "manifest.json").stat().st_mtime_ns == before

    arguments = (*arguments, "--overwrite")
    assert "up to date" not in prepare(*arguments, "--train-on", "all").stderr
    with data.open("a") as file:
        file.write('{"question": "1 + 1?", "answer": "2"}\n')
    assert "1,320 samples" in prepare(*arguments).stderr
    other = write_chat_model(tmp_path / "other", CHATML_MARKED)
    assert "up to date" not in prepare("--model", other, *arguments[2:]).stderr
    next(out.glob("shard-*")).unlink()  # a damaged folder is written again
    assert "up to date" not in prepare("--model", other, *arguments[2:]).stderr
    assert len(list(out.glob("shard-*"))) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_hit_names_the_files_given_now(model, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for path in (first, second):
        path.write_text('{"question": "1 + 1?", "answer": "2"}\n')
        done = prepare("--model", model, "--data", path, "--output", tmp_path / "out")
    assert "up to date" in done.stderr
    manifest, samples = read(tmp_path / "out")
    assert [source["path"] for source in manifest["sources"]] == [str(second)] and len(samples) == 1


def test_without_output_the_folder_lies_in_the_cache(home, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ("--model", model, "--data", data_file("sharegpt_dummy.json", home), "--print-folder")
    first = prepare(*arguments).stdout.strip()
    assert first.startswith(str(tmp_path / "phalanx" / "prepared"))
    assert os.path.isfile(os.path.join(first, "manifest.json"))
    again = prepare(*arguments)
    assert again.stdout.strip() == first
    assert "up to date" in again.stderr


@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "alpaca_en_demo.json"])
def test_the_loader_reads_and_packs_the_folder(home, model, tmp_path, name):
    prepare("--model", model, "--data", data_file(name, home), "--output", tmp_path / "out")
    command = [BUILD / "bin" / "test_data", "--gtest_filter=PreparedFolder.*"]
    environment = os.environ | {"PHALANX_TEST_TOKEN_FOLDER": str(tmp_path / "out")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout
    assert str(tmp_path / "out") in done.stdout
    assert "[  PASSED  ]" in done.stdout
