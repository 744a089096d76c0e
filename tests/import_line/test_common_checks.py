"""The checks that Transformers' own tests make of every model class, made of ours.

Each test says which. All run on a tiny model without plain Transformers beside it: they are about the class.
"""

import copy
import tempfile

import pytest
import torch
import transformers
from twins import LAYERS, TINY, assert_fused, relative_error, tokens, twins

from phalanx import explain

IDS = tokens(2, 10)


@pytest.fixture
def model():
    return twins()[0]


def padded():
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    return {"input_ids": IDS, "attention_mask": mask, "labels": IDS.masked_fill(mask == 0, -100)}


def without_random_parts(model):
    return model.eval().generate(IDS, max_new_tokens=5, do_sample=False)


def test_training(model):
    """A step lowers the loss, and every parameter gets a gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(2):
        loss = model(**padded()).loss
        loss.backward()
        losses.append(loss.item())
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert losses[1] < losses[0]
    assert_fused(model, passes=2)


def test_it_overfits_one_batch(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model(**padded()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.1
    assert_fused(model, passes=60)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_equals_none(model, reentrant):
    """Loss and gradients with gradient checkpointing are those without; it can be switched off again."""
    plain = copy.deepcopy(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert model.is_gradient_checkpointing
    if reentrant:
        model.enable_input_require_grads()
    for other in (plain, model):
        other(**padded()).loss.backward()
    for (name, mine), other in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert relative_error(mine.grad, other[1].grad) <= 1e-6, name
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    explain(model).reset()
    model(**padded()).loss.backward()
    assert_fused(model)


@pytest.mark.parametrize("training", [False, True])
def test_attention_implementations_agree(model, training):
    """Eager and sdpa attention, with padding on either side: the same logits where there are tokens."""
    outputs = []
    for side in (slice(0, 3), slice(7, None)):
        mask = torch.ones_like(IDS)
        mask[0, side] = 0
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            with torch.set_grad_enabled(training):
                logits = model.train(training)(IDS, attention_mask=mask).logits
            outputs.append(logits[mask.bool()])
    assert relative_error(outputs[0], outputs[1]) <= 1e-5
    assert relative_error(outputs[2], outputs[3]) <= 1e-5


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm"])
def test_experts_implementations_agree(model, experts):
    expected = model(IDS, labels=IDS).loss
    model.set_experts_implementation(experts)
    assert relative_error(model(IDS, labels=IDS).loss, expected) <= 1e-6


def test_padding_does_not_matter(model):
    """Tokens and positions padded on the left give the logits that they give alone."""
    alone = model(IDS).logits[:, -1]
    ids = torch.cat([torch.zeros(2, 4, dtype=torch.long), IDS], 1)
    mask = (torch.arange(14) >= 4).long().expand(2, -1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = model(ids, attention_mask=mask, position_ids=positions).logits[:, -1]
    assert relative_error(found, alone) <= 1e-5


def test_packing_equals_padding(model):
    """Documents in a row give the loss that they give as rows."""
    labels = IDS.clone()
    labels[:, 0] = -100
    rows = model(IDS, labels=labels).loss
    packed = model(
        IDS.view(1, -1), labels=labels.view(1, -1), position_ids=torch.arange(10).repeat(2)[None]
    ).loss
    assert relative_error(packed, rows) <= 1e-6
    assert_fused(model, passes=2)


def test_saving_and_loading(model, tmp_path):
    model.eval().save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    config = type(model.config).from_pretrained(tmp_path)
    assert config.architectures == ["Qwen3MoeForCausalLM"]


def test_saving_a_state_dict_that_is_given(model, tmp_path):
    state = {name: 2 * tensor for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=state)
    again = type(model).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


def test_keys_to_ignore_and_tied_weights():
    model, _ = twins(tie_word_embeddings=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again, info = type(model).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    again.model.embed_tokens.weight.data.fill_(3)
    assert (again.lm_head.weight == 3).all()


def test_resizing_the_vocabulary(model):
    """Larger, smaller, to a multiple; old rows stay; training and generation go on."""
    old = model.model.embed_tokens.weight.detach().clone()
    for size, expected in ((106, 106), (90, 90), (None, 90)):
        model.resize_token_embeddings(size, mean_resizing=False)
        assert model.config.vocab_size == expected == model.lm_head.weight.shape[0]
    model.resize_token_embeddings(90, pad_to_multiple_of=8)
    assert model.config.vocab_size == 96
    assert torch.equal(model.model.embed_tokens.weight[:90], old[:90])
    ids = IDS.clamp(max=80)
    explain(model).reset()
    model.train()(ids, labels=ids).loss.backward()
    assert_fused(model)
    assert without_random_parts(model).shape == (2, 15)


def test_embeddings_in_place_of_tokens(model):
    embeds = model.model.embed_tokens(IDS)
    assert torch.equal(model(inputs_embeds=embeds).logits, model(IDS).logits)
    with pytest.raises(ValueError):
        model(input_ids=IDS, inputs_embeds=embeds)


def test_the_cache_changes_nothing(model):
    """Token by token with a cache gives the logits of all at once, in evaluation and in training."""
    for training in (False, True):
        model.train(training)
        whole = model(IDS, use_cache=False).logits
        cache, pieces = None, []
        name = "cache" if "cache" in model(IDS[:, :1], use_cache=True) else "past_key_values"
        for position in range(IDS.shape[1]):
            given = {} if cache is None else {name: cache}
            output = model(IDS[:, position : position + 1], use_cache=True, **given)
            cache = output[name]
            pieces.append(output.logits)
        assert relative_error(torch.cat(pieces, 1), whole) <= 1e-5


def test_generation_with_and_without_a_cache(model):
    """Greedy, sampled, beams; from embeddings; continued; the same with the cache and without."""
    model.eval()
    for options in ({}, {"do_sample": True, "top_k": 5}, {"num_beams": 2}):
        produced = []
        for cache in (True, False):
            torch.manual_seed(0)
            produced.append(
                model.generate(IDS, max_new_tokens=6, use_cache=cache, **{"do_sample": False, **options})
            )
        assert torch.equal(*produced)
    greedy = without_random_parts(model)
    embeds = model.model.embed_tokens(IDS)
    assert torch.equal(
        model.generate(inputs_embeds=embeds, max_new_tokens=5, do_sample=False), greedy[:, 10:]
    )
    part = model.generate(IDS, max_new_tokens=2, do_sample=False)
    assert torch.equal(model.generate(part, max_new_tokens=3, do_sample=False), greedy)


def test_outputs_as_tuples_and_dictionaries(model):
    model.eval()
    arguments = dict(input_ids=IDS, output_hidden_states=True, output_router_logits=True, use_cache=False)
    named, plain = model(**arguments), model(**arguments, return_dict=False)
    assert len(plain) == len([value for value in named.values() if value is not None])
    assert torch.equal(named.logits, next(value for value in plain if getattr(value, "ndim", 0) == 3))
    assert len(named.hidden_states) == LAYERS + 1


def test_hidden_states_keep_their_gradient(model):
    output = model(IDS, output_hidden_states=True)
    for state in output.hidden_states[:-1]:
        state.retain_grad()
    output.logits.sum().backward()
    assert all(state.grad is not None for state in output.hidden_states[:-1])


def test_initialisation():
    """A new model has the scale of its configuration, norms of one, and no tensor without memory."""
    config = transformers.Qwen3MoeConfig(**{**TINY, "initializer_range": 0.02})
    from phalanx import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert 0.01 < parameter.std() < 0.03, name


def test_half_precision_and_casts(model):
    assert model.to(torch.bfloat16).dtype == torch.bfloat16
    assert model.eval()(IDS).logits.isfinite().all()
    assert model.half().dtype == torch.float16
    with torch.no_grad():
        model(IDS)
    assert model.float()(IDS).logits.dtype == torch.float32


def test_determinism(model):
    model.eval()
    assert torch.equal(model(IDS).logits, model(IDS).logits)
    losses = []
    for _ in range(2):
        model.zero_grad()
        model.train()(**padded()).loss.backward()
        losses.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *losses))


def test_moving_between_threads_and_sharing_memory(model):
    expected = model(IDS, labels=IDS).loss
    model.share_memory()
    assert torch.equal(model(IDS, labels=IDS).loss, expected)


def test_problems_are_errors(model):
    with pytest.raises(ValueError):
        model()
    with pytest.raises((IndexError, RuntimeError)):
        model(IDS + TINY["vocab_size"])
    with pytest.raises((ValueError, RuntimeError)):
        model(IDS, labels=IDS[:, :-1])
