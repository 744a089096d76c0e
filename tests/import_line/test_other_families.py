"""Models without a family in the engine: its pieces are put in where they compute the same, and nowhere else."""

import copy
import pickle
from collections import Counter

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM as TheirAutoModel
from twins import DENSE, assert_same_gradients, assert_same_step, relative_error, tokens, twin_of

import phalanx
from families import FAMILIES
from oracle import unsettle
from phalanx import AutoModelForCausalLM, explain

DEEPSEEK = dict(
    num_key_value_heads=4,
    moe_intermediate_size=16,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=8,
)
GPT_OSS = dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8)
GPT_OSS_ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))
# A configuration -> how much of each kind of work is put in, and what is left as it is, by class.
CASES = {
    "llama": (transformers.LlamaConfig(**DENSE), dict(norm=5, mlp=2, rope=2), {}),
    "qwen2": (transformers.Qwen2Config(**DENSE), dict(norm=5, mlp=2, rope=2), {}),
    "qwen3": (transformers.Qwen3Config(**DENSE, head_dim=8), dict(norm=9, mlp=2, rope=2), {}),
    "mistral": (transformers.MistralConfig(**DENSE), dict(norm=5, mlp=2, rope=2), {}),
    "gemma3": (
        transformers.Gemma3TextConfig(**DENSE, head_dim=8, sliding_window=8),
        dict(norm=13, rope=2),
        {"Gemma3MLP": "act_fn"},
    ),
    "deepseek_v3": (
        transformers.DeepseekV3Config(**{**DENSE, **DEEPSEEK}),
        dict(norm=9, mlp=2, experts=1, rope=2),
        {},
    ),
    "deepseek_v3, halves of a head turn": (
        transformers.DeepseekV3Config(**{**DENSE, **DEEPSEEK}, rope_interleave=False),
        dict(norm=9, mlp=2, experts=1, rope=2),
        {},
    ),
    "gpt_oss": (
        transformers.GptOssConfig(**DENSE, **GPT_OSS, **GPT_OSS_ROPE),
        dict(norm=5, rope=2),
        {"GptOssExperts": "other parameters"},
    ),
    "llama with another activation": (
        transformers.LlamaConfig(**DENSE, hidden_act="gelu"),
        dict(norm=5, rope=2),
        {"LlamaMLP": "act_fn"},
    ),
    "llama with biases": (
        transformers.LlamaConfig(**DENSE, mlp_bias=True),
        dict(norm=5, rope=2),
        {"LlamaMLP": "bias"},
    ),
}
IDS = tokens(2, 12)


def plain(config, dtype=torch.float32):
    torch.manual_seed(0)
    model = TheirAutoModel.from_config(
        copy.deepcopy(config), attn_implementation="sdpa" if config.model_type != "gpt_oss" else "eager"
    )
    unsettle(model)
    return model.to(dtype).train()


def put_in(model):
    return Counter(row.name.split(" ", 1)[1] for row in explain(model).rows)


def assert_all_fused(model, passes=1):
    explanation = explain(model)
    assert explanation.reasons() == {}, str(explanation)
    assert all(row.calls.fused == passes for row in explanation.rows), str(explanation)


@pytest.mark.parametrize("case", CASES)
def test_through_the_import_line(case):
    config, expected, left = CASES[case]
    theirs = plain(config)
    ours = twin_of(theirs)
    assert type(ours) is type(theirs)
    assert put_in(ours) == Counter(expected) + Counter({"head and loss": 1})
    kept = {cls: reason for _, cls, reason in explain(ours).kept}
    assert kept.keys() == left.keys() and all(left[cls] in kept[cls] for cls in left), kept
    assert [type(m).__name__ for m in ours.modules()] == [type(m).__name__ for m in theirs.modules()]
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS, use_cache=False)
    assert_all_fused(ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_a_model_of_a_bound_family(family):
    """One that plain Transformers has made."""
    config_class, base, _ = FAMILIES[family]
    theirs = plain(config_class(**base))
    ours = phalanx.patch(copy.deepcopy(theirs))
    assert {"norm", "rope", "experts", "head and loss"} <= put_in(ours).keys()
    assert explain(ours).kept == {}
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS, use_cache=False)
    assert_all_fused(ours)


def llamas(**changes):
    theirs = plain(transformers.LlamaConfig(**DENSE), **changes)
    return phalanx.patch(copy.deepcopy(theirs)), theirs


def test_other_models_of_the_class_stay_as_they_are():
    ours, theirs = llamas()
    before = {id(module): type(module) for module in theirs.modules()}
    assert {type(module).__module__.split(".")[0] for module in theirs.modules()} == {"torch", "transformers"}
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert {id(module): type(module) for module in theirs.modules()} == before
    assert explain(theirs).rows == []


def test_patching_again_changes_nothing():
    ours, theirs = llamas()
    classes = [type(module) for module in ours.modules()]
    assert phalanx.patch(ours) is ours
    assert [type(module) for module in ours.modules()] == classes
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_all_fused(ours)


def test_patching_draws_no_random_numbers():
    theirs = plain(transformers.LlamaConfig(**DENSE))
    state = torch.random.get_rng_state()
    phalanx.patch(theirs)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_a_copy_is_fused_on_its_own_parameters(copied):
    ours, theirs = llamas()
    twin = copied(ours)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert_same_step(twin, theirs, input_ids=IDS, labels=IDS)
    assert_all_fused(twin)
    assert explain(ours).fused == 0


def test_loaded_saved_and_generating(tmp_path):
    _, theirs = llamas()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert sum(put_in(ours).values()) == 10
    ours.save_pretrained(tmp_path / "ours")
    found, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / who).iterdir()} for who in ("ours", "theirs")
    )
    assert found == expected
    arguments = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(ours.eval().generate(IDS, **arguments), theirs.eval().generate(IDS, **arguments))
    assert explain(ours).fused == 0  # without gradients nothing is


def test_logits_without_labels_are_a_tensor():
    ours, theirs = llamas()
    found, expected = (model(IDS).logits for model in (ours, theirs))
    assert type(found) is torch.Tensor and relative_error(found, expected) <= 1e-5
    assert not isinstance(ours(IDS, labels=IDS).logits, torch.Tensor)
    assert type(ours(IDS).logits) is torch.Tensor


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant):
    ours, theirs = llamas()
    for model in (ours, theirs):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.enable_input_require_grads()
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert explain(ours).fallen_back == 0


def test_in_bfloat16_and_under_autocast():
    for dtype, autocast in ((torch.bfloat16, False), (torch.float32, True)):
        ours, theirs = llamas(dtype=dtype)
        losses = []
        for model in (ours, theirs):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                losses.append(model(IDS, labels=IDS).loss)
            losses[-1].backward()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-2)
        found, expected = (
            torch.cat([p.grad.float().flatten() for p in model.parameters()]) for model in (ours, theirs)
        )
        assert torch.nn.functional.cosine_similarity(found, expected, dim=0) > 0.99
        assert {"mlp", "head and loss"} <= {
            r.name.split(" ", 1)[1] for r in explain(ours).rows if r.calls.fused
        }


def test_changed_parts_are_honoured():
    ours, theirs = llamas()
    for model in (ours, theirs):
        model.model.layers[0].mlp.up_proj.register_forward_hook(lambda module, args, output: 2 * output)
        model.model.layers[1].mlp.act_fn = torch.nn.GELU()
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert set(explain(ours).reasons()) == {"up_proj has a hook", "act_fn is torch's GELU"}


def test_an_adapter_trains_as_with_plain_transformers():
    models = []
    for model in llamas():
        torch.manual_seed(3)
        models.append(get_peft_model(model, LoraConfig(target_modules=["q_proj", "down_proj"])))
    with torch.no_grad():
        for name, parameter in models[1].named_parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
                models[0].get_parameter(name).copy_(parameter)
    for model in models:
        model(input_ids=IDS, labels=IDS).loss.backward()
    assert_same_gradients(*models)
    assert set(explain(models[0]).reasons()) == {"down_proj is peft's Linear"}


def test_compiled_it_runs_on_transformers_path():
    ours, theirs = llamas()
    found = torch.compile(ours, backend="eager")(IDS, labels=IDS).loss
    assert relative_error(found, theirs(IDS, labels=IDS).loss) <= 1e-5


class DoubledNorm(torch.nn.Module):
    """Has the looks of a norm of the engine, and another mathematics."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.variance_epsilon = 1e-6

    def forward(self, x):
        return 2 * self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class LookalikeRMSNorm(DoubledNorm):
    pass


def test_another_mathematics_stays_as_it_is():
    theirs = plain(transformers.LlamaConfig(**DENSE))
    theirs.model.norm = LookalikeRMSNorm(DENSE["hidden_size"])
    ours = phalanx.patch(copy.deepcopy(theirs))
    assert explain(ours).kept == {("norm", "LookalikeRMSNorm", "its mathematics is another"): 1}
    assert "norm of 1 LookalikeRMSNorm is left to Transformers: its mathematics is another" in str(
        explain(ours)
    )
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)


def apply_rotary_pos_emb(q, k, cos, sin):
    return 2 * q * cos, k * sin


class OddAttention(torch.nn.Module):
    def forward(self, q, k, cos, sin):
        return apply_rotary_pos_emb(q, k, cos, sin)


def test_another_rotation_stays_as_it_is():
    attention = phalanx.patch(OddAttention())
    assert type(attention) is OddAttention
    reason = "the mathematics of apply_rotary_pos_emb is another"
    assert explain(attention).kept == {("rope", "OddAttention", reason): 1}


def test_a_model_without_memory_is_left_alone():
    with torch.device("meta"):
        ours = phalanx.patch(TheirAutoModel.from_config(transformers.LlamaConfig(**DENSE)))
    assert put_in(ours) == {"rope": 2}
    assert {reason for _, _, reason in explain(ours).kept} == {"it has no memory yet"}
