"""TRL's SFTTrainer with a model of the import line: the same metrics as with plain Transformers, in the engine."""

import random

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from twins import LAYERS, TINY, relative_error, twins

from families import FAMILIES
from phalanx import explain

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>", "user", "assistant"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }} <eos> {% endgeneration %}"
    "{% else %}{{ message['content'] }} {% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    words = [*SPECIAL, *(f"w{number}" for number in range(TINY["vocab_size"] - len(SPECIAL)))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    made.chat_template = TEMPLATE
    return made


def conversations(count=16):
    generator = random.Random(0)

    def sentence(shortest, longest):
        words = (f"w{generator.choice([7, 7, 7, 7, generator.randrange(80)])}" for _ in range(longest))
        return " ".join(list(words)[: generator.randint(shortest, longest)])

    roles = ["user", "assistant"] * 2
    rows = [[{"role": role, "content": sentence(2, 9)} for role in roles] for _ in range(count)]
    return Dataset.from_dict({"messages": rows})


CASES = {
    "default": {},
    "whole logits": {"loss_type": "nll"},
    "assistant only": {"assistant_only_loss": True},
    "packing": {"packing": True, "max_length": 64},
    "wrapped packing": {"packing": True, "packing_strategy": "wrapped", "max_length": 32},
    "padding free": {"padding_free": True, "max_length": None},
    "checkpointing": {"gradient_checkpointing": True},
}


def train(model, tokenizer, folder, **arguments):
    defaults = dict(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        gradient_checkpointing=False,
        per_device_train_batch_size=2,
        max_steps=STEPS,
        logging_steps=1,
        optim="sgd",
        learning_rate=0.2,
        lr_scheduler_type="constant",
        max_length=40,
        save_strategy="no",
        seed=1,
        dataset_num_proc=None,
    )
    config = SFTConfig(**{**defaults, **arguments})
    trainer = SFTTrainer(model, config, train_dataset=conversations(), processing_class=tokenizer)
    trainer.train()
    return trainer


STEPS = 3
NAMES = ("loss", "grad_norm", "mean_token_accuracy", "entropy", "aux_loss", "num_tokens")


def metrics(trainer):
    return [
        {name: row[name] for name in NAMES if name in row}
        for row in trainer.state.log_history
        if "grad_norm" in row
    ]


# With the kernels that padding-free needs missing on the CPU, TRL warns that documents may see each other.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family, case",
    [
        *(("qwen3_moe", case) for case in CASES),
        *((f, case) for f in sorted(FAMILIES) if f != "qwen3_moe" for case in ("default", "packing")),
    ],
)
def test_metrics_and_weights_of_a_run(tokenizer, tmp_path, family, case):
    # GLM-4.5 balances its experts by a bias, not by a loss.
    changes = {} if family == "glm4_moe" else {"output_router_logits": True}
    ours, theirs = (
        train(model, tokenizer, tmp_path / name, **CASES[case])
        for model, name in zip(twins(family=family, **changes), ("ours", "theirs"), strict=True)
    )
    found, expected = metrics(ours), metrics(theirs)
    assert len(found) == len(expected) == STEPS
    assert expected[-1]["mean_token_accuracy"] > 0
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys() >= {"loss", "grad_norm", "mean_token_accuracy"}
        for name in other:
            assert mine[name] == pytest.approx(other[name], rel=1e-4 if name == "loss" else 2e-5), name
    for (name, mine), other in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert relative_error(mine, other) <= 2e-5, name
    assert explain(ours.model).reasons() == {}
    halves = [row.calls.fused for row in explain(ours.model).rows if row.name.startswith("model.layers")]
    assert halves == [STEPS * (2 if case == "checkpointing" else 1)] * (2 * LAYERS)
