"""Training through the real program: learning, exact resuming, signals, batch cuts, agreement with its peers."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig

from chat_data import write_chat_model
from finetune_run import checkpoint, finetune, finetune_command, losses, metrics, write_chats


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny random Qwen3-MoE with a tokenizer and chat template."""
    folder = write_chat_model(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)),
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data(model, tmp_path_factory):
    """Forty chats, prepared."""
    folder = tmp_path_factory.mktemp("data")
    chats = write_chats(folder / "chats.jsonl", 40)
    subprocess.run(
        ["phalanx", "prepare", "--model", model, "--data", chats, "--output", folder / "tokens"], check=True
    )
    return folder / "tokens"


def test_learns_and_exports_for_transformers(model, data, tmp_path):
    output = tmp_path / "run"
    finetune(
        model, data, output, train__max_steps=80, train__micro_batch_size=4, data__validation_fraction=0.1
    )
    curve = losses(output)
    assert curve[80] < 0.4 * curve[1]
    assert any("validation_loss" in line for line in metrics(output))
    before = AutoModelForCausalLM.from_pretrained(model)
    after = AutoModelForCausalLM.from_pretrained(output / "model")
    trained = load_file(checkpoint(output, 80) / "model.safetensors")
    assert {name: True for name in trained} == {
        name: torch.equal(tensor, trained[name]) for name, tensor in after.state_dict().items()
    }
    assert not torch.equal(before.lm_head.weight, after.lm_head.weight)
    assert AutoTokenizer.from_pretrained(output / "model").chat_template is not None


@pytest.mark.parametrize(
    ("precision", "states"),
    [("fp32", "fp32"), ("bf16_master", "bf16"), ("bf16_stochastic", "fp32"), ("bf16_stochastic", "8bit")],
)
def test_a_resumed_run_is_bitwise_equal_to_an_unbroken_one(model, data, tmp_path, precision, states):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    fields = {
        "train__precision": precision,
        "optimizer__states": states,
        "train__accumulation": 2,
        "export_model": False,
    }
    finetune(model, data, whole, **fields)
    (resumed / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / "config.json", resumed)
    shutil.copytree(checkpoint(whole, 5), checkpoint(resumed, 5))
    run = finetune(model, data, resumed, **fields)
    assert "resumed from" in run.stdout and "step 5 of 12" in run.stdout
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (checkpoint(whole, 12) / name).read_bytes() == (checkpoint(resumed, 12) / name).read_bytes(), (
            name
        )
    assert losses(resumed) == {step: loss for step, loss in losses(whole).items() if step > 5}


def test_narrow_optimizer_states_learn_as_wide_ones_do(model, data, tmp_path):
    final = {}
    for states in ("fp32", "bf16", "8bit"):
        fields = {"train__max_steps": 60, "train__micro_batch_size": 4, "optimizer__states": states}
        finetune(model, data, tmp_path / states, export_model=False, **fields)
        final[states] = sum(losses(tmp_path / states)[step] for step in range(51, 61)) / 10
    assert final["bf16"] == pytest.approx(final["fp32"], rel=0.03)
    assert final["8bit"] == pytest.approx(final["fp32"], rel=0.05)
    saved = load_file(checkpoint(tmp_path / "8bit", 60) / "optimizer.safetensors")
    parameters = sum(tensor.numel() for name, tensor in saved.items() if name.startswith("exp_avg."))
    assert sum(tensor.nbytes for tensor in saved.values()) < 2.1 * parameters


def test_updates_within_backward_and_recomputed_layers_change_no_bit(model, data, tmp_path):
    common = {"train__precision": "bf16_stochastic", "optimizer__states": "8bit", "export_model": False}
    common |= {"train__max_steps": 4, "optimizer__clip_norm": 0}
    finetune(model, data, tmp_path / "a", **common)
    finetune(model, data, tmp_path / "b", optimizer__update="in_backward", train__recompute="full", **common)
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, expected = (checkpoint(tmp_path / run, 4) / name for run in ("b", "a"))
        assert ours.read_bytes() == expected.read_bytes()
    assert losses(tmp_path / "b") == losses(tmp_path / "a")


def test_two_backward_passes_clip_to_the_global_norm(model, data, tmp_path):
    common = {"train__max_steps": 4, "optimizer__clip_norm": 0.5, "export_model": False}
    finetune(model, data, tmp_path / "a", **common)
    finetune(model, data, tmp_path / "b", optimizer__update="in_backward_twice", **common)
    for ours, expected in zip(metrics(tmp_path / "b"), metrics(tmp_path / "a"), strict=True):
        if "loss" in ours:
            assert expected["grad_norm"] > 0.5
            assert ours["loss"] == pytest.approx(expected["loss"], rel=1e-5)
            assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    refused = finetune(model, data, tmp_path / "c", expected=2, optimizer__update="in_backward")
    assert "optimizer.clip_norm to 0" in refused.stderr and "in_backward_twice" in refused.stderr


def test_the_same_job_is_bitwise_equal_on_any_number_of_threads(model, tmp_path):
    # MKL would cut a sum over 1024 tokens and more between the threads.
    data = write_chats(tmp_path / "chats.jsonl", 160)
    wide = shutil.copytree(model, tmp_path / "wide")
    config = AutoConfig.from_pretrained(wide, hidden_size=64, head_dim=32)
    AutoModelForCausalLM.from_config(config).save_pretrained(wide)
    fields = {"train__micro_batch_size": 32, "train__max_steps": 3, "export_model": False}
    trained = []
    for name, threads in (("a", 2), ("b", 2), ("c", 1)):
        finetune(wide, data, tmp_path / name, train__threads=threads, **fields)
        trained.append((checkpoint(tmp_path / name, 3) / "model.safetensors").read_bytes())
    assert metrics(tmp_path / "a")[0]["tokens"] > 1024
    assert trained[0] == trained[1]
    assert trained[0] == trained[2]


def test_the_step_does_not_depend_on_how_the_batch_is_cut(model, data, tmp_path):
    first = {}
    for rows, cuts in ((4, 1), (2, 2), (1, 4)):
        output = tmp_path / f"{rows}x{cuts}"
        finetune(
            model, data, output, train__max_steps=1, train__micro_batch_size=rows, train__accumulation=cuts,
            export_model=False,
        )  # fmt: skip
        first[cuts] = metrics(output)[0]
    for cuts in (2, 4):
        assert first[cuts]["supervised_tokens"] == first[1]["supervised_tokens"]
        assert first[cuts]["loss"] == pytest.approx(first[1]["loss"], rel=1e-6)
        assert first[cuts]["grad_norm"] == pytest.approx(first[1]["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(model, data, tmp_path, number):
    output = tmp_path / "run"
    fields = {"train__max_steps": 150, "checkpoint__every_steps": 0, "export_model": False}
    command = finetune_command(model, data, output, **fields)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for_step(output, 3)
    process.send_signal(number)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 75, log
    (saved,) = (output / "checkpoints").iterdir()
    stopped = int(saved.name.removeprefix("step-"))
    assert 3 <= stopped < 150
    finetune(model, data, output, **fields)
    assert sorted(losses(output)) == list(range(1, 151))


def test_a_killed_run_goes_on_from_its_last_checkpoint(model, data, tmp_path):
    output = tmp_path / "run"
    fields = {"train__max_steps": 60, "checkpoint__every_steps": 4, "export_model": False}
    process = subprocess.Popen(finetune_command(model, data, output, **fields), stdout=subprocess.DEVNULL)
    wait_for_step(output, 9)
    process.kill()
    process.wait()
    run = finetune(model, data, output, **fields)
    assert "resumed from" in run.stdout
    assert sorted(losses(output)) == list(range(1, 61))
    whole = tmp_path / "whole"
    finetune(model, data, whole, **fields)
    assert losses(whole) == losses(output)


def wait_for_step(output, step):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        path = output / "metrics.jsonl"
        if path.exists() and path.read_text().count('"loss"') >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"no step {step} within two minutes")


def test_steps_equal_those_of_torch_and_transformers(model, tmp_path):
    """Three AdamW steps on one chat: the weights afterwards."""
    chats = write_chats(tmp_path / "one.jsonl", 1)
    output = tmp_path / "run"
    finetune(model, chats, output, train__max_steps=3, schedule__kind="constant", optimizer__weight_decay=0.1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    row = json.loads(chats.read_text())
    chat = [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=False)
    ids = tokenizer.apply_chat_template(chat, return_dict=False)
    end = ids.index(tokenizer.eos_token_id, len(prompt)) + 1
    labels = [token if len(prompt) <= at < end else -100 for at, token in enumerate(ids)]
    peer = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    ).train()
    decayed = [p for p in peer.parameters() if p.dim() > 1]
    others = [p for p in peer.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=0.1), dict(params=others, weight_decay=0.0)],
        lr=0.003,
        betas=(0.9, 0.95),
    )
    for _ in range(3):
        peer(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]), use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    ours = AutoModelForCausalLM.from_pretrained(output / "model").state_dict()
    start = AutoModelForCausalLM.from_pretrained(model).state_dict()
    for name, expected in peer.state_dict().items():
        moved = (expected - start[name]).abs().max()
        # AdamW's first steps divide a gradient by its own size: rounding shows where that is nearly zero.
        off = (ours[name] - expected).abs()
        assert off.mean() <= 1e-3 * moved and off.quantile(0.99) <= 1e-2 * moved, name


def test_eval_gives_the_loss_that_transformers_gives(model, data, tmp_path):
    run = subprocess.run(
        ["phalanx", "eval", "--model", model, "--data", data, "--set", "data.sequence_length=64"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    shards = [load_file(path) for path in sorted(data.glob("*.safetensors"))]
    peer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    total, count = 0.0, 0
    for shard in shards:
        offsets = shard["offsets"].tolist()
        for begin, end in itertools.pairwise(offsets):
            ids = shard["tokens"][begin:end].long()
            mask = shard["loss_mask"][begin:end].bool()
            logits = peer(ids[None]).logits[0, :-1].log_softmax(-1)
            loss = -logits.gather(1, ids[1:, None])[:, 0]
            total += loss[mask[1:]].sum().item()
            count += int(mask[1:].sum())
    words = run.stdout.replace("supervised tokens", "supervised_tokens").split()[-12:]
    printed = dict(zip(words[::2], words[1::2], strict=True))
    assert int(printed["supervised_tokens"]) == count
    assert float(printed["loss"]) == pytest.approx(total / count, rel=1e-4)


def test_a_loss_that_is_not_finite_stops_the_run(model, data, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    from safetensors.torch import save_file

    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][3] = float("inf")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    run = finetune(broken, data, tmp_path / "run", expected=1)
    assert "step 1" in run.stderr and "weights have not been touched" in run.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_export_of_an_unfinished_run(model, data, tmp_path):
    output = tmp_path / "run"
    finetune(model, data, output, train__max_steps=4, export_model=False)
    subprocess.run(["phalanx", "export", output, "--output", tmp_path / "hf"], check=True, env=os.environ)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    trained = load_file(checkpoint(output, 4) / "model.safetensors")
    assert all(torch.equal(exported[name], trained[name]) for name in trained)


def test_a_checkpoint_of_another_job_is_refused_field_by_field(model, data, tmp_path):
    finetune(model, data, tmp_path / "first", train__max_steps=1, export_model=False)
    saved = str(checkpoint(tmp_path / "first", 1))
    run = finetune(model, data, tmp_path / "second", expected=2, checkpoint__resume=saved, train__seed=5)
    assert saved in run.stderr and "train.seed: saved 0, now 5" in run.stderr
    assert "learning_rate" not in run.stderr
    finetune(model, data, tmp_path / "third", checkpoint__resume=saved, optimizer__learning_rate=0.001)
    assert sorted(losses(tmp_path / "third")) == list(range(2, 13))
