"""What `--data` may name, weights, and rows that are left out on request."""

import json

import pytest

from chat_data import read_samples, run_prepare, write_chat_model

GOOD = '{"question": "1 + 1?", "answer": "2"}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("sources") / "model")


def write(path, text=GOOD):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names_of(folder):
    return [source["path"] for source in json.loads((folder / "manifest.json").read_text())["sources"]]


@pytest.fixture
def tree(tmp_path):
    for name in ("b.jsonl", "a.json", "deep/c.jsonl", "notes.md", ".hidden.jsonl", ".cache/d.jsonl"):
        write(tmp_path / "data" / name)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["{}"], ["a.json", "b.jsonl", "deep/c.jsonl"]),
        (["{}/*.jsonl"], ["b.jsonl"]),
        (["{}/**/*.jsonl"], ["b.jsonl", "deep/c.jsonl"]),
        (["{}/deep", "{}/[ab].*"], ["deep/c.jsonl", "a.json", "b.jsonl"]),
    ],
)
def test_folders_and_patterns(model, tree, tmp_path, given, found):
    names = [name.format(tree) for name in given]
    done = run_prepare("--model", model, "--data", *names, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert names_of(tmp_path / "out") == [str(tree / name) for name in found]
    assert len(read_samples(tmp_path / "out")) == len(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["{}/none*"], "{}/none*: no file fits this pattern; check --data"),
        (["{}/empty"], "{}/empty: the folder holds no data file (.json, .jsonl, "),
        (["{}", "{}/deep/../b.jsonl"], "b.jsonl: named twice by --data; name it once, with --weights 2"),
        (["{}/notes.md"], "{}/notes.md: files named *.md are not read"),
    ],
)
def test_names_without_data(model, tree, tmp_path, given, message):
    (tree / "empty").mkdir()
    names = [name.format(tree) for name in given]
    done = run_prepare("--model", model, "--data", *names, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert message.format(tree) in done.stderr


def test_prepared_data_is_no_data_file(model, tree, tmp_path):
    assert run_prepare("--model", model, "--data", tree, "--output", tmp_path / "out").returncode == 0
    done = run_prepare("--model", model, "--data", tmp_path / "out", "--output", tmp_path / "again")
    assert done.returncode == 2
    assert f"{tmp_path}/out: is prepared already; give the folder to `phalanx finetune" in done.stderr


def test_weights_stand_in_the_manifest_and_decide_the_cache(model, tree, tmp_path):
    command = ("--model", model, "--data", tree / "b.jsonl", tree / "deep", "--output", tmp_path / "out")
    assert run_prepare(*command, "--weights", "2", "0.5").returncode == 0
    sources = json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"]
    assert [source["weight"] for source in sources] == [2.0, 0.5]
    assert "up to date" in run_prepare(*command, "--weights", "2", "0.5").stderr
    assert "holds prepared data" in run_prepare(*command).stderr


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (["1", "2"], "--weights has 2 numbers, --data 1 names"),
        (["0"], "--weights: found 0, expected a number above 0 and at most 1000"),
        (["nan"], "--weights: found nan"),
    ],
)
def test_wrong_weights(model, tree, tmp_path, weights, message):
    done = run_prepare("--model", model, "--data", tree, "--output", tmp_path / "out", "--weights", *weights)
    assert done.returncode == 2
    assert message in done.stderr


MIXED = (
    '{"broken": \n'
    + GOOD
    + '{"question": "a"}\n'
    + GOOD
    + "[]\n"
    + '{"question": "a<|im_end|>", "answer": "b"}\n'
    + '{"question": "caf\ufffd", "answer": "b"}\n'
)


def test_bad_rows_are_skipped_counted_and_listed(model, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(MIXED.encode().replace("\ufffd".encode(), b"\xe9"))
    command = ("--model", model, "--data", path, "--output", tmp_path / "out", "--on-bad-sample")
    refused = run_prepare(*command, "fail")
    assert refused.returncode == 2
    assert f"{path}:1:11: broken JSON" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = run_prepare(*command, "skip")
    assert done.returncode == 0, done.stderr
    assert "2 samples of 7 rows" in done.stderr
    assert "warning: 5 bad rows skipped, all listed in manifest.json:" in done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["counts"]["dropped"] == {"no_target": 0, "bad": 5}
    for place, message in zip((1, 3, 5, 6, 7), manifest["skipped"], strict=True):
        assert message.startswith(f"{path}:{place}")
        assert message in done.stderr
    assert [line for *_, line in read_samples(tmp_path / "out")] == [2, 4]


def test_bad_elements_of_an_array_and_bad_records_are_skipped(model, tmp_path):
    array = write(tmp_path / "a.json", f'[{GOOD}, 3, {{"question": "a", "question": "b"}}, {GOOD}]')
    table = write(tmp_path / "b.csv", "question,answer\na,b\nc\nd,e\n")
    options = ("--output", tmp_path / "out", "--on-bad-sample", "skip")
    done = run_prepare("--model", model, "--data", array, table, *options)
    assert done.returncode == 0, done.stderr
    assert "4 samples of 7 rows" in done.stderr


def test_a_set_of_bad_rows_alone_is_refused(model, tmp_path):
    path = write(tmp_path / "data.jsonl", '{"question": 3, "answer": "b"}\n' * 12)
    options = ("--output", tmp_path / "out", "--on-bad-sample", "skip")
    done = run_prepare("--model", model, "--data", path, *options)
    assert done.returncode == 2
    assert f"{path}: all 12 rows are bad:\n  {path}:1: question: found a number" in done.stderr
    assert done.stderr.count("found a number") == 10


def test_bad_rows_in_front_are_found_before_the_tokenizer_is_loaded(model, tmp_path):
    (model_copy := tmp_path / "model").mkdir()
    for file in model.iterdir():
        (model_copy / file.name).write_bytes(file.read_bytes())
    (model_copy / "tokenizer.json").write_text("{}")  # loading it would fail
    path = write(tmp_path / "data.jsonl", GOOD * 50 + '{"question": "a"}\n')
    done = run_prepare("--model", model_copy, "--data", path, "--output", tmp_path / "out")
    assert f"{path}:51: no key 'answer'" in done.stderr
