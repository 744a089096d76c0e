"""Bad data files and recipes.

What is wrong with a job is said at once, with file, place, cause and cure, before torch is loaded and before
anything is written. One case a row of the tables; every one goes through the real program.
"""

import json

import pytest

from bad_input import Case, options, run_phalanx


def data_text(text):
    return lambda job: job.data.write_bytes(text if isinstance(text, bytes) else text.encode())


def data_array(text):
    def write(job):
        path = job.folder / "chat.json"
        path.write_text(text)
        job.options += ["--data", str(path)]

    return write


def data_folder(manifest=None):
    def write(job):
        folder = job.folder / "prepared"
        folder.mkdir()
        if manifest is not None:
            (folder / "manifest.json").write_text(manifest)
        job.options += ["--data", str(folder)]

    return write


GOOD_LINE = '{"question": "a", "answer": "b"}\n'
DATA_CASES = [
    Case("data-missing", lambda job: job.data.unlink(), ("{data}", "no such file", "--data")),
    Case("data-empty", data_text(""), ("{data}", "empty", "a record is")),
    Case("data-blank", data_text("\n \n\n"), ("{data}", "no record", "a record is")),
    Case(
        "data-broken-line",
        data_text(GOOD_LINE * 2 + '{"question": "a", "answer": }\n'),
        ("{data}:3:29", "correct the file at this place"),
    ),
    Case(
        "data-cut-line",
        data_text(GOOD_LINE + '{"question": "a'),
        ("{data}:2:", "correct the file at this place"),
    ),
    Case(
        "data-not-object", data_text(GOOD_LINE + "[1]\n"), ("{data}:2", "found array", "expected an object")
    ),
    Case(
        "data-utf8",
        data_text(GOOD_LINE.encode() + b'{"question": "\xff", "answer": "b"}\n'),
        ("{data}:2:", "correct the file at this place"),
    ),
    Case("data-array-empty", data_array("[]"), ("{folder}/chat.json", "no record", "a record is")),
    Case(
        "data-array-broken",
        data_array('[{"question": "a"},\n{"question" "b"}]'),
        ("{folder}/chat.json:2:", "correct the file at this place"),
    ),
    Case(
        "data-array-item",
        data_array('[{"question": "a"}, 3]'),
        ("{folder}/chat.json: record 2", "found integer"),
    ),
    Case("data-folder", data_folder(), ("{folder}/prepared", "no manifest.json", "name the data files")),
    Case(
        "data-manifest",
        data_folder('{"shards": ['),
        ("{folder}/prepared/manifest.json:1:", "run `phalanx prepare` again"),
    ),
    # Python's turn: what a record means.
    Case(
        "data-columns",
        data_text('{"foo": "a", "bar": "b"}\n'),
        ("{data}:1", "foo", "messages", "rename them"),
    ),
    Case(
        "data-role",
        data_text('{"messages": [{"role": "usr", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'),
        ("{data}:1", "usr", "assistant", "correct this row"),
    ),
    Case(
        "data-nothing-to-learn",
        data_text('{"messages": [{"role": "user", "content": "a"}]}\n'),
        ("{data}", "assistant", "every row needs an assistant turn"),
    ),
]


def recipe(text):
    return lambda job: job.write_recipe(text)


RECIPE_CASES = [
    Case(
        "recipe-missing",
        options("--config", "{folder}/none.yaml"),
        ("{folder}/none.yaml", "no such", "--config"),
    ),
    Case("recipe-empty", recipe(""), ("{recipe}", "empty", "write at least")),
    Case(
        "recipe-field",
        recipe("train:\n  seed: 1\noptimizer:\n  lerning_rate: 1e-5\n"),
        ("{recipe}:4: optimizer.lerning_rate", "unknown field", "did you mean 'optimizer.learning_rate'?"),
    ),
    Case(
        "recipe-elsewhere",
        recipe("seed: 1\nnum_train_epochs: 3\n"),
        ("{recipe}:2: num_train_epochs", "'train.epochs'"),
    ),
    Case(
        "recipe-type",
        recipe("# mine\noptimizer: {learning_rate: fast}\n"),
        ("{recipe}:2: optimizer.learning_rate", 'found "fast"', "expected a number in (0, 1]"),
    ),
    Case(
        "recipe-range",
        recipe("train:\n  epochs: -2\n"),
        ("{recipe}:2: train.epochs", "found -2", "expected a number in (0"),
    ),
    Case(
        "recipe-choice",
        recipe("train: {precision: bf16}\n"),
        ("{recipe}:1: train.precision", '"bf16"', "bf16_master"),
    ),
    Case(
        "recipe-section", recipe("data: chat.jsonl\n"), ("{recipe}:1: data", "expected a section", "indent")
    ),
    Case(
        "recipe-indent",
        recipe("optimizer:\n  eps: 1e-8\n   beta1: 0.9\n"),
        ("{recipe}:3:9", "not valid YAML", "indentation"),
    ),
    Case("recipe-tab", recipe("optimizer:\n\teps: 1e-8\n"), ("{recipe}:2:", "not valid YAML", "spaces only")),
    Case(
        "recipe-twice",
        recipe("log_every: 1\nlog_every: 2\n"),
        ("{recipe}:2:1: log_every", "first in line 1", "keep one"),
    ),
    Case(
        "recipe-documents",
        recipe("log_every: 1\n---\nlog_every: 2\n"),
        ("{recipe}:3", "2 YAML documents", "is one"),
    ),
    Case(
        "recipe-tag",
        recipe("model: !!python/object:os.system x\n"),
        ("{recipe}:1:", "python/object", "plain values"),
    ),
    Case(
        "recipe-merge",
        recipe("a: &a {eps: 1}\noptimizer:\n  <<: *a\n"),
        ("{recipe}:3:3", "merge keys", "write the fields out"),
    ),
    Case(
        "recipe-bomb",
        recipe(
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{y}: &{y} [{','.join([f'*{x}'] * 10)}]\n" for x, y in zip("abcd", "bcde", strict=True)
            )
        ),
        ("{recipe}:", "too many values", "without nested aliases"),
    ),
    Case(
        "recipe-together",
        recipe("eval_every: 5\n"),
        ("{recipe}:1: eval_every", "no validation data", "set data.validation"),
    ),
]


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda case: case.name)
def test_bad_data_is_refused(case, job):
    case.check(job)


@pytest.mark.parametrize("case", RECIPE_CASES, ids=lambda case: case.name)
def test_bad_recipe_is_refused(case, job):
    case.check(job)


LONG_ROW = json.dumps({"question": "a" * 10000, "answer": "b"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.json", f"{LONG_ROW}\n{LONG_ROW}\n"),
        ("array.json", f"[\n{LONG_ROW},\n{LONG_ROW}]"),
        ("wrapped.json", f'{{\n"data": [{LONG_ROW}]}}'),
        ("marked.jsonl", f"\ufeff{LONG_ROW}\r\n\r\n{LONG_ROW}"),
    ],
)
def test_every_layout_of_good_data_is_accepted(job, name, text):
    path = job.folder / name
    path.write_bytes(text.encode())
    job.edit_config(max_position_embeddings=16384)
    job.options += ["--data", str(path), "--sequence-length", "16384"]
    done = run_phalanx(*job.command(), "--dry-run", XDG_CACHE_HOME=str(job.folder / "cache"))
    assert done.returncode == 0, done.stderr
