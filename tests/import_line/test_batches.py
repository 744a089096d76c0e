"""Masks, packing and the other arguments of a forward pass, against plain Transformers."""

import pytest
import torch
from transformers import masking_utils
from twins import LAYERS, assert_fused, assert_same_step, fallbacks, gradients, relative_error, tokens, twins

from phalanx import explain

IDS = tokens(3, 12)


def mask_of(kind):
    mask = torch.ones_like(IDS)
    if kind in ("left", "both"):
        mask[1, :4] = 0
        mask[2, :7] = 0
    if kind in ("right", "both"):
        mask[0, 9:] = 0
        mask[2, 10:] = 0
    if kind == "holes":
        mask[1, 4:6] = 0
    return mask


@pytest.mark.parametrize("kind", ["left", "right", "both", "ones"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_runs_fused(kind, implementation):
    ours, theirs = twins(attn=implementation)
    mask = mask_of(kind)
    labels = IDS.masked_fill(mask == 0, -100)
    if implementation == "eager":  # there the token before the first sees all others, and must not count
        labels[1, 4] = labels[2, 7] = -100
    assert_same_step(ours, theirs, input_ids=IDS, attention_mask=mask, labels=labels)
    assert_fused(ours)


def test_a_boolean_mask():
    ours, theirs = twins()
    labels = IDS.masked_fill(mask_of("left") == 0, -100)
    assert_same_step(ours, theirs, input_ids=IDS, attention_mask=mask_of("left").bool(), labels=labels)
    assert_fused(ours)


def test_a_row_of_padding_only():
    ours, theirs = twins()
    mask = torch.ones_like(IDS)
    mask[1] = 0
    labels = IDS.masked_fill(mask == 0, -100)
    assert_same_step(ours, theirs, input_ids=IDS, attention_mask=mask, labels=labels)
    assert_fused(ours)


@pytest.mark.parametrize("kind", ["holes", "right"])
def test_what_the_engine_does_not_mask_goes_to_transformers(kind):
    """A mask with holes, and labels on trailing padding, which sees other tokens there."""
    ours, theirs = twins()
    mask = mask_of(kind)
    labels = IDS if kind == "right" else IDS.masked_fill(mask.roll(1, 1) == 0, -100)
    assert_same_step(ours, theirs, input_ids=IDS, attention_mask=mask, labels=labels)
    reason = "an attention mask with holes" if kind == "holes" else "labels on padding tokens"
    assert fallbacks(ours) == {"attention": {reason}}
    assert explain(ours).fused == LAYERS + 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_with_four_dimensions(dtype):
    ours, theirs = twins()
    seen = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0)) > 0.3
    seen |= torch.eye(12, dtype=torch.bool)
    mask = seen if dtype == torch.bool else torch.zeros(seen.shape).masked_fill(~seen, -1e9)
    assert_same_step(ours, theirs, input_ids=IDS, attention_mask=mask, labels=IDS)
    assert fallbacks(ours) == {"attention": {"an attention mask that is not [batch, tokens]"}}


def packed_positions(*lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


def test_packed_documents_equal_transformers():
    ours, theirs = twins()
    ids = tokens(2, 12)
    positions = torch.cat([packed_positions(5, 7), packed_positions(1, 8, 3)])
    # Plain Transformers takes packed documents apart only without a cache.
    assert_same_step(
        ours, theirs, input_ids=ids, position_ids=positions, labels=ids, their_arguments={"use_cache": False}
    )
    assert_fused(ours)


def test_packed_documents_do_not_see_each_other(monkeypatch):
    def no_mask(*args, **kwargs):
        raise AssertionError("a [tokens, tokens] mask is made")

    for name in ("sdpa_mask", "eager_mask"):
        monkeypatch.setattr(masking_utils, name, no_mask)
        monkeypatch.setitem(
            masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name.split("_")[0], no_mask
        )
    ours, _ = twins()
    positions = packed_positions(5, 7)
    second = tokens(1, 7, seed=2)
    labels = torch.cat([torch.full((1, 6), -100), second[:, 1:]], 1)  # of the second document alone
    kept = []
    for seed in (3, 4):
        ours.zero_grad()
        ids = torch.cat([tokens(1, 5, seed=seed), second], 1)
        ours(ids, position_ids=positions, labels=labels).loss.backward()
        kept.append({name: grad.clone() for name, grad in gradients(ours).items()})
    for name in kept[0]:
        assert relative_error(kept[0][name], kept[1][name]) <= 1e-6, name
    assert_fused(ours, passes=2)


def test_positions_beside_a_mask_do_not_pack():
    """As in Transformers: with a mask the positions only turn the rotary embedding."""
    ours, theirs = twins()
    ids = tokens(1, 12)
    arguments = dict(
        input_ids=ids, position_ids=packed_positions(5, 7), attention_mask=torch.ones_like(ids), labels=ids
    )
    assert_same_step(ours, theirs, **arguments)
    assert_fused(ours)


def test_positions_of_left_padding():
    ours, theirs = twins()
    mask = mask_of("left")
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    labels = IDS.masked_fill(mask == 0, -100)
    assert_same_step(ours, theirs, input_ids=IDS, attention_mask=mask, position_ids=positions, labels=labels)
    assert_fused(ours)


def test_inputs_embeds():
    ours, theirs = twins()
    embeds = torch.randn(2, 9, 32)
    grads = []
    for model in (ours, theirs):
        given = embeds.clone().requires_grad_()
        model(inputs_embeds=given, labels=tokens(2, 9)).loss.backward()
        grads.append(given.grad)
    assert relative_error(*grads) <= 1e-5
    assert_fused(ours)


def test_ignored_labels():
    ours, theirs = twins()
    labels = IDS.masked_fill(torch.rand(IDS.shape, generator=torch.Generator().manual_seed(0)) < 0.5, -100)
    assert_same_step(ours, theirs, input_ids=IDS, labels=labels)
    assert_fused(ours)


def test_no_label_at_all():
    ours, theirs = twins()
    labels = torch.full_like(IDS, -100)
    assert ours(IDS, labels=labels).loss.isnan() and theirs(IDS, labels=labels).loss.isnan()


@pytest.mark.parametrize("items", [7, torch.tensor(7)], ids=["int", "tensor"])
def test_num_items_in_batch(items):
    ours, theirs = twins()
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS, num_items_in_batch=items)
    assert_fused(ours)


def test_shift_labels():
    ours, theirs = twins()
    shifted = torch.cat([IDS[:, 1:], torch.full((3, 1), -100)], 1)
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS, shift_labels=shifted)
    assert_fused(ours)


def test_ignore_index():
    ours, theirs = twins()
    labels = IDS.masked_fill(IDS % 3 == 0, 5)
    assert_same_step(ours, theirs, input_ids=IDS, labels=labels, ignore_index=5)
    assert_fused(ours)


def test_logits_to_keep():
    ours, theirs = twins()
    found, expected = (model(IDS, logits_to_keep=4).logits for model in (ours, theirs))
    assert found.shape == expected.shape == (3, 4, 96)
    assert relative_error(found, expected) <= 1e-5
    shifted = IDS[:, -4:].contiguous()
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS, shift_labels=shifted, logits_to_keep=4)


def test_arguments_by_position_and_tuples():
    ours, theirs = twins()
    mask = mask_of("left")
    found, expected = (model(IDS, mask, return_dict=False)[0] for model in (ours, theirs))
    assert relative_error(found[mask.bool()], expected[mask.bool()]) <= 1e-5
    losses = [model(IDS, labels=IDS, return_dict=False)[0] for model in (ours, theirs)]
    assert relative_error(*losses) <= 1e-5


def test_evaluation_without_a_cache_is_fused():
    ours, theirs = (model.eval() for model in twins())
    with torch.no_grad():
        found, expected = (model(IDS, use_cache=False).logits for model in (ours, theirs))
    assert relative_error(found, expected) <= 1e-5
    assert explain(ours).fused == 2 * LAYERS


def test_a_cache_that_is_asked_for():
    ours, theirs = twins()
    found, expected = (model(IDS, use_cache=True) for model in (ours, theirs))
    assert relative_error(found.logits, expected.logits) <= 1e-5
    assert fallbacks(ours) == {
        "attention": {"a key/value cache is used"},
        "experts": {"a key/value cache is used"},
    }
