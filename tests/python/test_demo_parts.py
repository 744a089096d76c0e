"""The parts of the demo: its questions, its tokenizer and model, how answers are asked and counted."""

import subprocess
import sys

import pytest

from phalanx.data.formats import Conversation
from phalanx.data.supervision import Supervisor
from phalanx.demo.__main__ import clear, write_chats
from phalanx.demo.answers import ask, count_right
from phalanx.demo.pairs import collect_pairs, first_sentence
from phalanx.demo.tiny_model import write_tiny_model
from phalanx.errors import UserError


@pytest.fixture(scope="module")
def pairs():
    return collect_pairs()


@pytest.fixture(scope="module")
def folder(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "untrained"
    texts = [text for pair in pairs for text in (pair.question, pair.reworded, pair.answer)]
    assert write_tiny_model(folder, texts, seed=0) > 2_000_000
    return folder


def test_enough_pairs_and_none_twice(pairs):
    assert len(pairs) >= 200
    assert len({pair.module for pair in pairs}) >= 40
    assert len({pair.question for pair in pairs}) == len(pairs)
    assert len({pair.answer for pair in pairs}) == len(pairs)
    assert "What does `os.path.join` do?" in {pair.question for pair in pairs}
    assert all(pair.answer.isascii() and pair.answer.endswith(".") for pair in pairs)


def test_every_process_finds_the_same_pairs(monkeypatch):
    code = "from phalanx.demo.pairs import collect_pairs; print(collect_pairs())"
    runs = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        runs.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True))
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stderr == ""  # no module warns or prints while it is imported


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("Join two parts.  Then more.", "Join two parts."),
        ("Join\n    two parts.\n\nMore.", "Join two parts."),
        ("Use a.b to join. More", "Use a.b to join."),
        ("join two parts.", None),
        ("Join(a, b) -> c", None),
        ("Caf\u00e9 first.", None),
        ("", None),
    ],
)
def test_first_sentence(docstring, sentence):
    assert first_sentence(docstring) == sentence


def test_the_tokenizer_marks_answer_and_end(pairs, folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    supervisor = Supervisor(tokenizer, "assistant", len(tokenizer))
    for pair in pairs:
        roles = [{"role": "user", "content": pair.question}, {"role": "assistant", "content": pair.answer}]
        sample = supervisor.encode(Conversation("place", roles))
        assert tokenizer.decode(sample.tokens[sample.loss_mask == 1]) == pair.answer + "<|im_end|>"


def test_the_model_has_the_promised_size(folder):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    assert config.num_hidden_layers >= 4
    assert config.num_experts >= 8
    assert config.eos_token_id == 2


def test_an_untrained_model_answers_nothing_right(pairs, folder):
    answers = ask(folder, [pair.question for pair in pairs[:16]])
    assert len(answers) == 16
    assert count_right(pairs[:16], answers) == 0


def test_only_word_for_word_counts(pairs):
    answers = [pair.answer for pair in pairs[:4]]
    assert count_right(pairs[:4], answers) == 4
    answers[0] += " "
    answers[1] = answers[1].lower()
    answers[2] = answers[3]
    assert count_right(pairs[:4], answers) == 1


def test_clear_spares_other_folders(tmp_path):
    work = tmp_path / "demo"
    clear(work)
    write_chats(work / "train.jsonl", [("a", "b")])
    clear(work)
    assert not (work / "train.jsonl").exists()
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match=r"holds other files; choose .* --output"):
        clear(tmp_path)
    assert (tmp_path / "thesis.txt").exists()
