"""Kinds of data files and of columns that `phalanx prepare` takes: each gives exactly the text and mask one expects."""

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest
from transformers import AutoTokenizer

from chat_data import CHATML, CHATML_TOOLS, read_samples, run_prepare, write_chat_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("formats") / "model")


@pytest.fixture(scope="module")
def tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


def prepare(model, folder, *names, options=()):
    done = run_prepare("--model", model, "--data", *names, "--output", folder / "out", *options)
    assert done.returncode == 0, done.stderr
    return done


def write_lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chatml(*messages):
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)


ONE = chatml(("user", "2 + 2?"), ("assistant", "4"))
TOLD = chatml(("system", "Be brief."), ("user", "2 + 2?"), ("assistant", "4"))
LONGER = chatml(("user", "1 + 1?"), ("assistant", "2"), ("user", "2 + 2?"), ("assistant", "4"))
ASKED = [{"role": "user", "content": "2 + 2?"}]
ANSWERED = [{"role": "assistant", "content": "4"}]
COLUMNS = {
    "messages": ({"messages": ASKED + ANSWERED}, "messages", ONE),
    "messages with a system column": (
        {"system": "Be brief.", "messages": ASKED + ANSWERED},
        "messages",
        TOLD,
    ),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}, *ANSWERED]},
        "messages",
        ONE,
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        "sharegpt",
        ONE,
    ),
    "sharegpt, names of chat models": (
        {"conversations": [{"from": "user", "value": "2 + 2?"}, {"from": "assistant", "value": "4"}]},
        "sharegpt",
        ONE,
    ),
    "conversations with role and content": ({"conversations": ASKED + ANSWERED}, "sharegpt", ONE),
    "alpaca": ({"instruction": "2 +", "input": "2?", "output": "4"}, "alpaca", ONE.replace("2 + ", "2 +\n")),
    "alpaca with history and system": (
        {"instruction": "2 + 2?", "output": "4", "history": [["1 + 1?", "2"]], "system": "Be brief."},
        "alpaca",
        chatml(("system", "Be brief.")) + LONGER,
    ),
    "alpaca with the text column of the original": (
        {"instruction": "2 + 2?", "input": "", "output": "4", "text": "Below is an instruction"},
        "alpaca",
        ONE,
    ),
    "Dolly": (
        {"instruction": "2 +", "context": "2?", "response": "4", "category": "open_qa"},
        "instruction_response",
        ONE.replace("2 + ", "2 +\n"),
    ),
    "prompt and completion": ({"prompt": "2 + 2?", "completion": "4"}, "prompt_completion", ONE),
    "prompt and completion of messages": (
        {"prompt": ASKED, "completion": ANSWERED},
        "prompt_completion",
        ONE,
    ),
    "prompt and response": ({"prompt": "2 + 2?", "response": "4"}, "prompt_response", ONE),
    "query and response with history": (
        {"query": "2 + 2?", "response": "4", "history": [["1 + 1?", "2"]]},
        "query_response",
        LONGER,
    ),
    "question and answer": ({"question": "2 + 2?", "answer": "4"}, "question_answer", ONE),
    "OpenOrca": (
        {"id": "7", "system_prompt": "Be brief.", "question": "2 + 2?", "response": "4"},
        "question_response",
        TOLD,
    ),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns(model, tokenizer, tmp_path, case):
    row, name, expected = COLUMNS[case]
    done = prepare(model, tmp_path, write_lines(tmp_path / "data.jsonl", row))
    assert f"data.jsonl: format {name} (its first row has" in done.stderr
    ((tokens, mask, _, line),) = read_samples(tmp_path / "out")
    assert tokenizer.decode(tokens) == expected
    answers = "".join(part + "<|im_end|>" for part in (("2", "4") if "1 + 1?" in expected else ("4",)))
    assert tokenizer.decode(tokens[mask == 1]) == answers
    assert line == 1


def test_plain_text_is_learnt_as_a_whole_without_a_template(tmp_path):
    model = write_chat_model(tmp_path / "model", chat_template=None)
    prepare(model, tmp_path, write_lines(tmp_path / "data.jsonl", {"text": "Once upon a time"}))
    ((tokens, mask, _, _),) = read_samples(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(model).decode(tokens) == "Once upon a time<|im_end|>"
    assert mask.tolist() == [0] + [1] * (len(tokens) - 1)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["sources"][0]["format"] == "text"


def test_control_tokens_in_plain_text_are_refused(model, tmp_path):
    path = write_lines(tmp_path / "data.jsonl", {"text": "a<|im_end|>b"})
    done = run_prepare("--model", model, "--data", path, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert f"{path}:1: text holds the text '<|im_end|>'" in done.stderr


THINKING = CHATML.replace(
    "message['content'] +",
    "('<think>' + message['reasoning_content'] + '</think>' if message['reasoning_content'] else '') "
    "+ message['content'] +",
)


def test_reasoning_is_written_as_the_template_has_it(tmp_path):
    model = write_chat_model(tmp_path / "model", THINKING)
    answer = {"role": "assistant", "content": "4", "reasoning_content": "twice two"}
    prepare(model, tmp_path, write_lines(tmp_path / "data.jsonl", {"messages": [*ASKED, answer]}))
    ((tokens, mask, _, _),) = read_samples(tmp_path / "out")
    learnt = AutoTokenizer.from_pretrained(model).decode(tokens[mask == 1])
    assert learnt == "<think>twice two</think>4<|im_end|>"


def test_reasoning_that_the_template_does_not_write_is_refused(model, tmp_path):
    answer = {"role": "assistant", "content": "4", "thinking": "twice two"}
    path = write_lines(tmp_path / "data.jsonl", {"messages": [*ASKED, answer]})
    done = run_prepare("--model", model, "--data", path, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert f"{path}:1: the chat template leaves out 'thinking' of the last message" in done.stderr
    assert "reasoning_content" in done.stderr


ROWS = [
    {"question": "été,\n2 + 2?", "answer": 'a "4"'},
    {"question": "1", "answer": ""},
    {"question": "x", "answer": "y"},
]


def write_table(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("name", "lines"), [("d.csv", [2, 4, 5]), ("d.tsv", [2, 4, 5]), ("d.parquet", [1, 2, 3])]
)
def test_tables(model, tokenizer, tmp_path, name, lines):
    path = write_table(tmp_path / name, ROWS)
    prepare(model, tmp_path, path)
    samples = read_samples(tmp_path / "out")
    assert [tokenizer.decode(tokens) for tokens, _, _, _ in samples] == [
        chatml(("user", row["question"]), ("assistant", row["answer"])) for row in ROWS
    ]
    assert [line for _, _, _, line in samples] == lines


def test_messages_in_tables(tmp_path):
    """Nested in Parquet, where keys that a message does not have come as null; written as JSON in CSV."""
    model = write_chat_model(tmp_path / "model", CHATML_TOOLS)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    tools = [{"type": "function", "function": {"name": "add"}}]
    messages = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
    ]
    row = {"messages": [*messages, *ANSWERED], "tools": tools}
    encoded = {key: json.dumps(value) for key, value in row.items()}
    texts = []
    for name, content in (("d.jsonl", row), ("d.csv", encoded), ("d.parquet", row)):
        path = tmp_path / name
        if name == "d.jsonl":
            write_lines(path, content)
        else:
            write_table(path, [content])
        prepare(model, tmp_path, path, options=("--overwrite",))
        texts.append([sample[0].tolist() for sample in read_samples(tmp_path / "out")])
    assert texts[0] == texts[1] == texts[2]


BAD_TABLES = {
    "too few fields": (
        "d.csv",
        b"question,answer\na,b\nc\n",
        ["FILE:3: 1 fields", "2 columns (question, answer)", "correct"],
    ),
    "no name": ("d.csv", b"question,\na,b\n", ["FILE:1: column 2 has no name"]),
    "a name twice": ("d.csv", b"answer,answer\na,b\n", ["FILE:1: two columns are named 'answer'", "rename"]),
    "open quote": (
        "d.csv",
        b'question,answer\na,b\n"c,d\ne,f\n',
        ["FILE:4: broken CSV in the record that begins in line 3"],
    ),
    "no UTF-8": ("d.csv", b"question,answer\na,\xe9\n", ["FILE:2:3: byte 0xe9 is not valid UTF-8", "iconv"]),
    "header alone": ("d.csv", b"question,answer\n", ["FILE: the file has no row"]),
    "no Parquet": ("d.parquet", b"PAR1 and then nothing", ["FILE:1: no readable Parquet file", "again"]),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables(model, tmp_path, case):
    name, content, pieces = BAD_TABLES[case]
    path = tmp_path / name
    path.write_bytes(content)
    done = run_prepare("--model", model, "--data", path, "--output", tmp_path / "out")
    assert done.returncode == 2
    for piece in pieces:
        assert piece.replace("FILE", str(path)) in done.stderr
    assert not (tmp_path / "out").exists()


def test_columns_of_other_names(model, tokenizer, tmp_path):
    path = write_lines(tmp_path / "data.jsonl", {"problem": "2 + 2?", "solution": "4", "answer": "no"})
    options = ("--columns", "question=problem", "answer=solution")
    prepare(model, tmp_path, path, options=options)
    ((tokens, _, _, _),) = read_samples(tmp_path / "out")
    assert tokenizer.decode(tokens) == ONE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["question=task"], "data.jsonl:1: no column 'task', which --columns question=task names"),
        (["quest=problem"], "--columns: quest=problem: no format has a column 'quest'; known: answer, "),
        (["question"], "--columns: found 'question', expected each column once as"),
        (["answer=a", "answer=b"], "--columns: found 'answer=b', expected each column once as"),
    ],
)
def test_wrong_names_of_columns(model, tmp_path, words, message):
    path = write_lines(tmp_path / "data.jsonl", {"problem": "2 + 2?", "solution": "4"})
    done = run_prepare("--model", model, "--data", path, "--output", tmp_path / "out", "--columns", *words)
    assert done.returncode == 2
    assert message in done.stderr
