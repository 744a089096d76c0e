"""What `phalanx prepare` refuses: each message names file, place, cause and cure; nothing is written."""

import json
import os
import stat

import pytest

from chat_data import CHATML, CHATML_MARKED, CHATML_REWRITING, run_prepare, write_chat_model

GOOD = '{"question": "1 + 1?", "answer": "2"}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("prepare") / "model")


def refuse(model, folder, data, pieces, *options, name="data.jsonl"):
    """Runs on a file of this content; every piece must be in the message, in this order."""
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    before = sorted(folder.iterdir())
    done = run_prepare("--model", model, "--data", path, "--output", folder / "out", *options)
    assert done.returncode == 2
    message, at = done.stderr, 0
    for piece in pieces:
        piece = piece.replace("FILE", str(path))
        assert piece in message[at:], f"{piece!r} is not in its place in: {message}"
        at = message.index(piece, at) + len(piece)
    assert sorted(folder.iterdir()) == before
    return message


def chat(*roles):
    return {"messages": [{"role": role, "content": f"text {n}"} for n, role in enumerate(roles)]}


LINES = {
    "broken JSON": (
        GOOD + '{"question": "x" "answer": "y"}\n',
        ["FILE:2:18: broken JSON", "Expecting ','", "correct"],
    ),
    "cut off in the last line": (
        GOOD + GOOD + '{"question": "x", "ans',
        ["FILE:3:19: broken JSON", "was it cut off?"],
    ),
    "invalid UTF-8": (b'{"question": "caf\xe9"}\n', ["FILE:1:18: byte 0xe9 is not valid UTF-8", "iconv"]),
    "NUL": (GOOD.encode() + b'{"question": "a\x00"}\n', ["FILE:2:16: a NUL byte", "write it again as UTF-8"]),
    "two marks at the start": (
        b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD.encode(),
        ["FILE:1:1: broken JSON", "correct"],
    ),
    "duplicate key": (
        '{"question": "a", "question": "b"}\n',
        ["FILE:1: key 'question' occurs twice", "correct"],
    ),
    "NaN": ('{"question": NaN}\n', ["FILE:1: NaN is no JSON", "correct"]),
    "lone surrogate": (
        '{"question": "\\ud800", "answer": ""}\n',
        ["FILE:1: the text of 'question'", "surrogate"],
    ),
    "deep nesting": ("[" * 100_000 + "\n", ["FILE:1: nested too deeply", "correct"]),
    "a number as a row": (GOOD + "7\n", ["FILE:2: found a number, expected an object", "correct this row"]),
    "only blanks": ("\n \r\n", ["FILE: the file has no row", "at least one sample"]),
    "empty": ("", ["FILE: the file is empty", "at least one row"]),
    "unknown columns": (
        '{"story": "a"}\n',
        ["FILE:1: the columns story fit no known format", "--columns", "alpaca: instr"],
    ),
    "two formats": (
        json.dumps({"question": "a", "answer": "b", **chat("user")}) + "\n",
        [
            "FILE:1: the columns question, answer, messages fit several formats (messages, question_answer)",
            "--format",
        ],
    ),
    "missing key": (
        GOOD + '{"question": "a", "reply": "b"}\n',
        ["FILE:2: no key 'answer'", "question, reply", "add it"],
    ),
    "wrong type": (
        '{"question": "a", "answer": 5}\n',
        ["FILE:1: answer: found a number, expected a string", "correct"],
    ),
    "unknown role": (
        json.dumps(chat("user", "robot")) + "\n",
        [
            "FILE:1: messages[1].role: found the unknown role 'robot'",
            "system, developer, user, assistant, tool",
        ],
    ),
    "unknown sharegpt role": (
        '{"conversations": [{"from": "robot", "value": "a"}]}\n',
        ["FILE:1: conversations[0].from: found the unknown role 'robot'", "one of system, human, user"],
    ),
    "no content": (
        '{"messages": [{"role": "user", "text": "a"}]}\n',
        ["FILE:1: messages[0] has no key 'content'", "role, text"],
    ),
    "messages of the wrong type": (
        '{"messages": "hello"}\n',
        ["FILE:1: messages: found a string, expected an array of objects"],
    ),
    "no messages": ('{"messages": []}\n', ["FILE:1: messages: found an empty array"]),
    "image part": (
        '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}\n',
        ["FILE:1: messages[0].content[0]: found type 'image'", "images are not trained"],
    ),
    "loss weight": (
        '{"messages": [{"role": "assistant", "content": "a", "weight": 0}]}\n',
        ["FILE:1: messages[0].weight: a loss weight", "not supported", "remove the key"],
    ),
    "tool call that is no JSON": (
        '{"conversations": [{"from": "function_call", "value": "search(x)"}]}\n',
        ["FILE:1: conversations[0].value: the string is no JSON", "correct"],
    ),
    "history of the wrong shape": (
        '{"instruction": "a", "output": "b", "history": [["c"]]}\n',
        ["FILE:1: history[0]: found an array, expected an array of two strings"],
    ),
    "control token in the text": (
        '{"question": "a<|im_end|>b", "answer": "c"}\n',
        ["FILE:1: messages[0] (user) holds the text '<|im_end|>'", "control token", "remove it"],
    ),
    "assistant first": (
        json.dumps(chat("assistant")) + "\n",
        ["FILE:1: the conversation begins with the assistant", "add"],
    ),
    "nothing to learn": (
        json.dumps(chat("user")) + "\n" + json.dumps(chat("user")) + "\n",
        [
            "FILE: none of the 2 rows has anything to be learnt",
            "FILE:1, ",
            "FILE:2",
            "needs an assistant turn",
        ],
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_lines(model, tmp_path, case):
    data, pieces = LINES[case]
    refuse(model, tmp_path, data, pieces)


DOCUMENTS = {
    "broken element": (
        '[\n{"question": "a", "answer": "b"},\n{"question": }\n]',
        ["FILE:3:14: broken JSON in element 2"],
    ),
    "cut off": (
        '[\n{"question": "a", "answer": "b"},\n{"question": "a',
        ["FILE:3:14: broken JSON in element 2", "cut off?"],
    ),
    "no end": ('[{"question": "a", "answer": "b"}', ["FILE:1:34: broken JSON: expected ']'", "cut off?"]),
    "wrong key": (
        '[{"question": "a", "answer": "b"},\n {"question": "a"}]',
        ["FILE:2 (element 2): no key 'answer'"],
    ),
    "duplicate key": (
        '[{"question": "a", "question": "b"}]',
        ["FILE:1 (element 1): key 'question' occurs twice"],
    ),
    "number": ("[1]", ["FILE:1 (element 1): found a number, expected an object"]),
    "empty array": ("[]", ["FILE: the file has no row", "at least one sample"]),
    "no rows in the object": (
        '{\n"a": 1}',
        ["FILE:1: one JSON object with the keys a", "data, rows, train, examples"],
    ),
    "blanks": (" \n ", ["FILE: the file holds only blanks"]),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_documents(model, tmp_path, case):
    data, pieces = DOCUMENTS[case]
    refuse(model, tmp_path, data, pieces, name="data.json")


def test_line_beyond_the_limit(model, tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.data.json_rows.MAX_LINE_BYTES", 1 << 20)
    data = GOOD + json.dumps({"question": "a" * (1 << 20), "answer": ""}) + "\n"
    refuse(model, tmp_path, data, ["FILE:2: the line is longer than 1 MiB", "split it"])


def test_other_kinds_of_file(model, tmp_path):
    refuse(model, tmp_path, "a,b\n", ["FILE: files named *.xlsx are not read", "to_json("], name="data.xlsx")
    done = run_prepare("--model", model, "--data", tmp_path / "no.jsonl", "--output", tmp_path / "out")
    assert f"{tmp_path}/no.jsonl: cannot be read: No such file" in done.stderr
    assert "--data" in done.stderr


def test_the_first_bad_row_is_named_whatever_the_processes(model, tmp_path):
    rows = [GOOD] * 3000
    rows[700] = rows[2900] = '{"question": "a"}\n'
    refuse(model, tmp_path, "".join(rows), ["FILE:701: no key 'answer'"], "--processes", "3")


TEMPLATES = {
    "none": (None, chat("user", "assistant"), ["the tokenizer has no chat template", "--chat-template"]),
    "syntax": (
        "text\n{% for %}",
        chat("user", "assistant"),
        ["MODEL: line 2 of the chat template is no valid Jinja", "--chat-template"],
    ),
    "raises": (
        "{{ raise_exception('no tools here') }}",
        chat("user", "assistant"),
        [
            "FILE:1: the chat template refuses this conversation (roles user, assistant): no tools here",
            "--chat-template",
        ],
    ),
    "rewrites earlier turns": (
        CHATML_REWRITING,
        chat("user", "assistant", "user", "assistant"),
        [
            "FILE:1: the chat template writes messages[1] (assistant) differently",
            "--train-on last",
            "--chat-template",
        ],
    ),
    "leaves out the answer": (
        CHATML.replace("message['content']", "message['content'][:3]"),
        chat("user", "assistant"),
        ["FILE:1: the chat template leaves out 'text 1' of messages[1] (assistant)", "--chat-template"],
    ),
    "end of turn not marked": (
        CHATML_MARKED.replace(
            "+ '<|im_end|>' }}{% endgeneration %}", "}}{% endgeneration %}{{ '<|im_end|>' }}"
        ),
        chat("user", "assistant"),
        [
            "FILE:1: the chat template's generation marks leave out <|im_end|>",
            "never learn to stop",
            "endgeneration",
        ],
    ),
    "turn not marked": (
        CHATML_MARKED.replace("== 'assistant'", "== 'assistant' and loop.last"),
        chat("user", "assistant", "user", "assistant"),
        [
            "FILE:1: the chat template marks 1 spans as generated, the conversation has 2 assistant turns",
            "correct",
        ],
    ),
    "leaves out tools": (
        CHATML,
        chat("user", "assistant") | {"tools": [{"type": "function", "function": {"name": "find_flat"}}]},
        ["FILE:1: the chat template leaves out the tool 'find_flat'", "remove the column 'tools'"],
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_templates(tmp_path, case):
    template, row, pieces = TEMPLATES[case]
    model = write_chat_model(tmp_path / "model", template)
    work = tmp_path / "work"
    work.mkdir()
    refuse(model, work, json.dumps(row) + "\n", [piece.replace("MODEL", str(model)) for piece in pieces])


def test_a_broken_template_file_is_named_itself(model, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages")
    refuse(model, tmp_path, GOOD, [f"{template}: line 1 of the chat template"], "--chat-template", template)


def test_a_rewriting_template_is_fine_for_single_turns(tmp_path):
    model = write_chat_model(tmp_path / "model", CHATML_REWRITING)
    (tmp_path / "data.jsonl").write_text(GOOD)
    done = run_prepare("--model", model, "--data", tmp_path / "data.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_models(model, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    refuse(tmp_path / "none", work, GOOD, [f"{tmp_path}/none: no such model folder", "--model"])
    bare = tmp_path / "bare"
    bare.mkdir()
    refuse(bare, work, GOOD, [f"{bare}: no tokenizer in the folder", "copy the tokenizer"])
    (bare / "tokenizer.json").write_text("{}")
    refuse(bare, work, GOOD, [f"{bare}/config.json: cannot be read", "complete model folder"])
    (bare / "config.json").write_text('{"vocab_size": "many"}')
    refuse(bare, work, GOOD, [f"{bare}/config.json: vocab_size is 'many'", "positive integer"])
    (bare / "config.json").write_text('{"vocab_size": 100}')
    refuse(bare, work, GOOD, [f"{bare}: the tokenizer cannot be loaded", "copy the model's tokenizer files"])
    small = write_chat_model(tmp_path / "small", vocab_size=50)
    refuse(
        small, work, GOOD, ["FILE:1: token ", "outside the model's vocabulary of 50", "belongs to the model"]
    )


def test_outputs(model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(GOOD)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("precious")
    done = run_prepare("--model", model, "--data", data, "--output", foreign)
    assert done.returncode == 2
    assert f"{foreign}: the folder holds other files" in done.stderr
    assert "--output" in done.stderr
    assert (foreign / "thesis.txt").read_text() == "precious"
    done = run_prepare("--model", model, "--data", data, "--output", data)
    assert f"{data}: is a file; choose a folder with --output" in done.stderr


def test_other_prepared_data_is_replaced_only_when_told_so(model, tmp_path):
    data, output = tmp_path / "data.jsonl", tmp_path / "out"
    command = ("--model", model, "--data", data, "--output", output)
    data.write_text(GOOD)
    assert run_prepare(*command).returncode == 0
    manifest = (output / "manifest.json").read_bytes()
    data.write_text(GOOD * 2)
    done = run_prepare(*command)
    assert done.returncode == 2
    assert f"{output}: holds prepared data of other files" in done.stderr
    assert "(1 samples of 1 rows" in done.stderr and "--overwrite" in done.stderr
    assert (output / "manifest.json").read_bytes() == manifest
    assert run_prepare(*command, "--overwrite").returncode == 0
    assert (output / "manifest.json").read_bytes() != manifest


def test_output_without_permission(model, tmp_path, monkeypatch):
    data, closed = tmp_path / "data.jsonl", tmp_path / "closed"
    data.write_text(GOOD)
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() == 0:  # root may write everywhere
        monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(closed))
    done = run_prepare("--model", model, "--data", data, "--output", closed / "out")
    assert done.returncode == 2
    assert f"{closed}/out: no permission to write in {closed}" in done.stderr


ACCEPTED = {
    "mark at the start": b"\xef\xbb\xbf" + GOOD.encode(),
    "CRLF and blank lines": (GOOD.strip() + "\r\n\r\n  \n" + GOOD.strip() + "\r\n").encode(),
    "no final newline": GOOD.strip().encode(),
    "U+2028 and U+0085 inside a string": '{"question": "a\u2028b\u0085c", "answer": "d"}\n'.encode(),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted_lines(model, tmp_path, case):
    (tmp_path / "data.jsonl").write_bytes(ACCEPTED[case])
    done = run_prepare("--model", model, "--data", tmp_path / "data.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    expected = len([line for line in ACCEPTED[case].split(b"\n") if line.strip()])
    assert f"{expected} samples of {expected} rows" in done.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "rows.json",
            '{"version": 1, "data": [{"question": "a", "answer": "b"}, {"question": "c", "answer": "d"}]}',
        ),
        (
            "written_out.json",
            '{\n  "data": [\n{"question": "a", "answer": "b"}, {"question": "c", "answer": "d"}\n]}',
        ),
        ("lines.json", GOOD + GOOD),
        ("array.json", "[" + GOOD + "," + GOOD + "]"),
    ],
)
def test_layouts_of_json(model, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    done = run_prepare("--model", model, "--data", tmp_path / name, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "2 samples of 2 rows" in done.stderr
