"""Chat data and a small tokenizer for tests.

Real files from the folder PHALANX_TEST_DATA; without it, generated ones with the same lengths.
"""

import contextlib
import io
import json
import os
import pathlib
import random
from typing import NamedTuple

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The same text, with the answer and the token that ends it marked.
CHATML_MARKED = CHATML.replace(
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}",
    "{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}",
)
# Tool calls and descriptions as JSON.
CHATML_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}"
    + CHATML.replace(
        "message['content'] +",
        "message['content'] + (message['tool_calls'] | tojson if message['tool_calls'] else '') +",
    )
)
# As hybrid reasoning models do: an empty thought in the last turn alone.
CHATML_REWRITING = CHATML.replace(
    "message['content'] +",
    "('<think></think>' if loop.last and message['role'] == 'assistant' else '') + message['content'] +",
)

# Quantiles (0%, 10%, ... 100%) of the lengths in characters of question and answer in the real files.
GSM8K_CHARACTERS = (
    [42, 134, 158, 177, 196, 217, 239, 264, 300, 361, 985],
    [50, 135, 168, 197, 227, 257, 293, 336, 390, 481, 1228],
)
ALPACA_CHARACTERS = (
    [16, 40, 47, 54, 61, 68, 76, 89, 107, 137, 802],
    [1, 42, 77, 145, 265, 465, 697, 1067, 1379, 1727, 2837],
)


def data_file(name: str, folder: pathlib.Path) -> pathlib.Path:
    """The real file of this name, or one generated into `folder`."""
    if root := os.environ.get("PHALANX_TEST_DATA"):
        return pathlib.Path(root) / name
    path = folder / name
    if not path.exists():
        path.write_text(GENERATORS[name](random.Random(name)), encoding="utf-8")
    return path


def _prose(rng: random.Random, quantiles: list[int]) -> str:
    at = rng.random() * (len(quantiles) - 1)
    share = at - int(at)
    length = int(quantiles[int(at)] * (1 - share) + quantiles[int(at) + 1] * share)
    text = ""
    while len(text) < length:
        text += rng.choice(
            ("the ", "a ", "price ", "of ", "apples, ", "12 ", "3.5 ", "and ", "été ", "then\n", "Sum: ")
        )
    return text[:length].strip() or "1"


def _gsm8k(rng: random.Random, count: int) -> str:
    question, answer = GSM8K_CHARACTERS
    rows = [{"question": _prose(rng, question), "answer": _prose(rng, answer)} for _ in range(count)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _alpaca(rng: random.Random) -> str:
    question, answer = ALPACA_CHARACTERS
    return json.dumps(
        [
            {
                "instruction": _prose(rng, question),
                "input": rng.choice(("", "2 + 2")),
                "output": _prose(rng, answer),
            }
            for _ in range(999)
        ],
        indent=2,
    )


def _sharegpt(rng: random.Random) -> str:
    def turns(count: int) -> list[dict]:
        return [{"from": ("human", "gpt")[n % 2], "value": _prose(rng, [10, 60, 200])} for n in range(count)]

    return json.dumps([{"id": str(n), "conversations": turns(rng.choice((2, 4, 6)))} for n in range(500)])


def _glaive(rng: random.Random) -> str:
    call = json.dumps({"name": "search", "arguments": {"what": "flats"}})
    tools = json.dumps([{"name": "search", "description": "finds", "parameters": {"type": "object"}}])
    roles = ("human", "function_call", "observation", "gpt")
    values = {"function_call": call, "observation": '{"found": 3}'}
    rows = [
        {
            "conversations": [{"from": r, "value": values.get(r) or _prose(rng, [10, 90])} for r in roles],
            "tools": tools,
        }
        for _ in range(300)
    ]
    return json.dumps(rows)


GENERATORS = {
    "gsm8k_train.jsonl": lambda rng: _gsm8k(rng, 7473),
    "gsm8k_test.jsonl": lambda rng: _gsm8k(rng, 1319),
    "alpaca_en_demo.json": _alpaca,
    "sharegpt_dummy.json": _sharegpt,
    "glaive_toolcall_en_demo.json": _glaive,
}


def write_chat_model(
    folder: pathlib.Path, chat_template: str | None = CHATML, vocab_size: int | None = None
) -> pathlib.Path:
    """A folder with a byte-level BPE tokenizer trained here, and a config.json that names its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    lines = data_file("gsm8k_test.jsonl", folder).read_text(encoding="utf-8").splitlines()
    core.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    config = {"model_type": "qwen3_moe", "vocab_size": vocab_size or len(tokenizer)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read_samples(folder: pathlib.Path) -> list[tuple]:
    """Of each sample in a prepared folder its tokens, mask, source and line."""
    from safetensors.numpy import load_file

    samples = []
    for entry in json.loads((folder / "manifest.json").read_text())["shards"]:
        shard = load_file(folder / entry["name"])
        for n, (begin, end) in enumerate(zip(shard["offsets"][:-1], shard["offsets"][1:], strict=True)):
            part = shard["tokens"][begin:end], shard["loss_mask"][begin:end]
            samples.append((*part, int(shard["sources"][n]), int(shard["lines"][n])))
    return samples


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_prepare(*arguments) -> Outcome:
    """`phalanx prepare` in this process, which imports Transformers once instead of at each call."""
    from phalanx.prepare import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())
