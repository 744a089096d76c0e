"""transformers.Trainer with a model of the import line: the same run as with plain Transformers, in the engine."""

import ctypes
import gc

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainingArguments
from twins import LAYERS, assert_fused, llamas, relative_error, tokens, twins

from families import FAMILIES
from phalanx import explain


def examples(count, seed=0):
    """Rows of different lengths; the collator pads."""
    lengths = [7 + (5 * row + seed) % 6 for row in range(count)]
    return [{"input_ids": tokens(length, seed=seed + row)} for row, length in enumerate(lengths)]


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    pad = [torch.nn.functional.pad for _ in range(3)]
    ids, mask, labels = (
        torch.stack([pad[i](row, (0, longest - len(row)), value=value) for row in tensors])
        for i, (tensors, value) in enumerate(
            [
                ([row["input_ids"] for row in rows], 0),
                ([torch.ones_like(row["input_ids"]) for row in rows], 0),
                ([row["input_ids"] for row in rows], -100),
            ]
        )
    )
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def make_trainer(model, folder, compute_metrics=None, **arguments):
    defaults = dict(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        max_steps=3,
        logging_steps=1,
        optim="sgd",
        learning_rate=0.05,
        lr_scheduler_type="constant",
        save_strategy="no",
        seed=1,
    )
    return Trainer(
        model,
        TrainingArguments(**{**defaults, **arguments}),
        data_collator=collate,
        train_dataset=examples(24),
        eval_dataset=examples(6, seed=50),
        compute_metrics=compute_metrics,
    )


def history(trainer, *names):
    return [
        row[name]
        for row in trainer.state.log_history
        for name in names
        if name in row and "runtime" not in row
    ]


def assert_close(found, expected, tolerance):
    assert len(found) == len(expected) > 0
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=tolerance, atol=tolerance)


def train_both(tmp_path, twin_changes=None, **arguments):
    trainers = []
    for model, name in zip(twins(**(twin_changes or {})), ("ours", "theirs"), strict=True):
        trainer = make_trainer(model, tmp_path / name, **arguments)
        trainer.train()
        trainers.append(trainer)
    return trainers


CASES = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "neftune": {"neftune_noise_alpha": 5.0},
    "checkpointing": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
    "reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "adamw": {"optim": "adamw_torch", "learning_rate": 1e-3, "weight_decay": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_in_fp32(tmp_path, case):
    ours, theirs = train_both(tmp_path, **CASES[case])
    tolerance = 1e-4 if case == "adamw" else 2e-5  # Adam's first steps divide by gradients of rounding's size
    assert_close(history(ours, "loss"), history(theirs, "loss"), 1e-4)  # rounded to four digits
    assert_close(history(ours, "grad_norm"), history(theirs, "grad_norm"), tolerance)
    for (name, found), expected in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert relative_error(found, expected) <= tolerance, name
    passes = 3 * CASES[case].get("gradient_accumulation_steps", 1)
    calls = 2 * LAYERS + 2
    if "gradient_checkpointing" in CASES[case]:
        calls += 2 * LAYERS  # the halves run again in backward
    if case == "label smoothing":
        calls -= 1  # the Trainer takes logits and computes the loss itself
    assert explain(ours.model).reasons() == {}
    assert explain(ours.model).fused == passes * calls


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen3_moe"}))
def test_a_run_of_every_other_family(tmp_path, family):
    ours, theirs = train_both(tmp_path, {"family": family})
    assert_close(history(ours, "grad_norm"), history(theirs, "grad_norm"), 2e-5)
    for (name, found), expected in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert relative_error(found, expected) <= 2e-5, name
    assert_fused(ours.model, passes=3)


def test_a_run_of_a_family_that_the_engine_has_not(tmp_path):
    trainers = [make_trainer(model, tmp_path / "run") for model in llamas()]
    for trainer in trainers:
        trainer.train()
    ours, theirs = trainers
    assert_close(history(ours, "grad_norm"), history(theirs, "grad_norm"), 2e-5)
    for (name, found), expected in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert relative_error(found, expected) <= 2e-5, name
    rows = explain(ours.model).rows
    assert len(rows) == 5 + 2 + 2 + 1  # norms, MLPs, rotary embeddings, the head
    assert all(row.calls.fused == 3 and not row.calls.fallbacks for row in rows), explain(ours.model)


def test_the_auxiliary_loss(tmp_path):
    ours, theirs = train_both(tmp_path, {"output_router_logits": True})
    assert_close(history(ours, "grad_norm"), history(theirs, "grad_norm"), 2e-5)
    assert_fused(ours.model, passes=3)


def test_a_run_in_bf16(tmp_path):
    """fp32 parameters under autocast. Both round, at places that differ."""
    ours, theirs = train_both(tmp_path, bf16=True)
    assert_close(history(ours, "loss"), history(theirs, "loss"), 5e-3)
    assert_close(history(ours, "grad_norm"), history(theirs, "grad_norm"), 3e-2)
    assert_fused(ours.model, passes=3)


def test_evaluation_and_metrics(tmp_path):
    seen = []

    def metrics(prediction):
        assert prediction.predictions.shape == (6, 12, 96)  # real logits and nothing beside them
        seen.append(torch.from_numpy(prediction.predictions[prediction.label_ids != -100]))
        return {
            "accuracy": float(
                (prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]).mean()
            )
        }

    arguments = dict(compute_metrics=metrics, eval_strategy="steps", eval_steps=1, max_steps=2)
    ours, theirs = train_both(tmp_path, **arguments)
    for name in ("eval_loss", "eval_accuracy"):
        assert_close(history(ours, name), history(theirs, name), 1e-5)
    for found, expected in zip(seen[:2], seen[2:], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # Trainer asks for no cache in evaluation, so that the halves run fused there too.
    assert explain(ours.model).reasons() == {}
    assert explain(ours.model).fused == 2 * (2 * LAYERS + 2) + 2 * 3 * 2 * LAYERS


SHARDS = {"one shard": None, "many shards": "20KB"}


@pytest.fixture(params=SHARDS)
def saved_in(request, monkeypatch):
    """How many files a checkpoint has."""
    size = SHARDS[request.param]
    if size is not None:
        cls = type(twins()[0])
        plain = cls.save_pretrained
        monkeypatch.setattr(
            cls, "save_pretrained", lambda self, *a, **k: plain(self, *a, **{**k, "max_shard_size": size})
        )
    return request.param


def test_a_resumed_run_equals_an_unbroken_one(tmp_path, saved_in):
    arguments = dict(
        max_steps=4, save_strategy="steps", save_steps=2, optim="adamw_torch", learning_rate=1e-2
    )
    unbroken = make_trainer(twins()[0], tmp_path, **arguments)
    unbroken.train()
    files = list((tmp_path / "checkpoint-2").glob("*.safetensors"))
    assert (len(files) > 1) == (saved_in == "many shards")
    resumed = make_trainer(twins(seed=5)[0], tmp_path, **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    expected = dict(unbroken.model.named_parameters())
    different = [n for n, p in resumed.model.named_parameters() if not torch.equal(p, expected[n])]
    assert different == []
    assert history(resumed, "grad_norm")[-2:] == history(unbroken, "grad_norm")[-2:]
    assert_fused(resumed.model, passes=2)


def test_the_best_model_is_loaded_at_the_end(tmp_path, saved_in):
    trainer = make_trainer(
        twins()[0],
        tmp_path,
        max_steps=4,
        learning_rate=3.0,  # gets worse soon
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
    )
    trainer.train()
    losses = history(trainer, "eval_loss")
    assert min(losses) != losses[-1]
    assert trainer.evaluate()["eval_loss"] == min(losses)
    best = type(trainer.model).from_pretrained(trainer.state.best_model_checkpoint)
    assert all(map(torch.equal, trainer.model.parameters(), best.parameters()))


def resident_bytes():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def bytes_held_for_backward(checkpointing, reentrant=True):
    """What the process holds more after a forward pass than before it."""
    model, _ = twins(hidden_size=256, moe_intermediate_size=256, num_hidden_layers=4)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.enable_input_require_grads()
    ids = tokens(2, 1024)
    before = resident_bytes()
    loss = model(ids, labels=ids).loss
    held = resident_bytes() - before
    loss.backward()
    assert explain(model).reasons() == {}
    return held


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_holds_less_memory(reentrant):
    assert bytes_held_for_backward(True, reentrant) < bytes_held_for_backward(False) / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_files_load_into_parameters(tmp_path, family):
    ours, theirs = twins(family=family)
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    other = twins(seed=5, family=family)[0]
    other.load_state_dict(state)
    assert all(map(torch.equal, other.parameters(), ours.parameters()))
    with torch.device("meta"):
        empty = type(ours)(ours.config)
    empty.load_state_dict(state, assign=True)
    assert all(map(torch.equal, empty.parameters(), ours.parameters()))


def test_what_fits_nothing_is_reported(tmp_path):
    ours, theirs = twins()
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.0.mlp.experts.99.up_proj.weight"] = torch.zeros(16, 32)
    state["model.layers.1.mlp.experts.2.up_proj.weight"] = torch.zeros(16, 31)
    found = ours.load_state_dict(state, strict=False)
    assert found.missing_keys == []
    assert sorted(found.unexpected_keys) == [
        "model.layers.0.mlp.experts.99.up_proj.weight",
        "model.layers.1.mlp.experts.2.up_proj.weight",
    ]
