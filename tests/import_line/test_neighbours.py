"""What stands beside training: generation, pipelines, compilers, resized vocabularies, registered classes."""

import copy

import accelerate
import pytest
import torch
import transformers
from test_sft import tokenizer  # noqa: F401
from transformers import pipeline
from twins import (
    LAYERS,
    TINY,
    assert_fused,
    assert_same_step,
    relative_error,
    tiny_config,
    tokens,
    twins,
)

from phalanx import AutoModelForCausalLM, explain

IDS = tokens(2, 12)
GENERATION = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_p": 0.9},
    "beams": {"do_sample": False, "num_beams": 3},
    "without a cache": {"do_sample": False, "use_cache": False},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
    "with scores": {"do_sample": False, "output_scores": True, "return_dict_in_generate": True},
}


def generate(model, **arguments):
    torch.manual_seed(7)
    return model.generate(**{"max_new_tokens": 8, "pad_token_id": 0, **arguments})


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("case", GENERATION)
def test_generation_gives_the_same_tokens(case, training):
    mask = torch.ones_like(IDS)
    mask[0, :5] = 0
    arguments = dict(input_ids=IDS.masked_fill(mask == 0, 0), attention_mask=mask, **GENERATION[case])
    found, expected = (generate(model.train(training), **arguments) for model in twins())
    if case == "with scores":
        for mine, other in zip(found.scores, expected.scores, strict=True):
            assert relative_error(mine, other) <= 1e-5
        found, expected = found.sequences, expected.sequences
    assert torch.equal(found, expected)
    assert found.shape == (2, 20)


def test_generation_with_checkpointing_switched_on():
    ours, theirs = twins()
    for model in (ours, theirs):
        model.gradient_checkpointing_enable()
    assert torch.equal(*(generate(model, input_ids=IDS, do_sample=False) for model in (ours, theirs)))


def test_training_goes_on_fused_after_generation():
    ours, theirs = twins()
    for model in (ours, theirs):
        generate(model, input_ids=IDS)
    explain(ours).reset()
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours)


def test_a_pipeline(tokenizer):  # noqa: F811
    texts = [
        pipeline("text-generation", model=model, tokenizer=tokenizer)(
            "user w1 w2 w3", max_new_tokens=6, do_sample=False
        )
        for model in twins()
    ]
    assert texts[0] == texts[1]


def test_a_pipeline_for_a_folder(tokenizer, tmp_path):  # noqa: F811
    ours, theirs = twins()
    ours.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = [
        pipeline("text-generation", model=model, tokenizer=tokenizer)(
            "user w1", max_new_tokens=6, do_sample=False
        )
        for model in (str(tmp_path), theirs)
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_compiled_model():
    ours, theirs = twins()
    compiled = torch.compile(ours, backend="aot_eager")
    found = compiled(IDS, labels=IDS, use_cache=False)
    expected = theirs(IDS, labels=IDS)
    assert relative_error(found.loss, expected.loss) <= 1e-5
    found.loss.backward()
    expected.loss.backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert relative_error(mine.grad, other.grad) <= 1e-5, name


@pytest.mark.slow
def test_an_exported_model():
    ours, theirs = (model.eval() for model in twins(experts="grouped_mm"))

    class Loss(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids, labels=ids, use_cache=False).loss

    exported = [torch.export.export(Loss(model), (IDS,), strict=False).module() for model in (ours, theirs)]
    expected = theirs(IDS, labels=IDS, use_cache=False).loss
    assert relative_error(exported[0](IDS), expected) <= 1e-5
    assert relative_error(exported[1](IDS), expected) <= 1e-5


@pytest.mark.parametrize("tied", [False, True])
def test_a_resized_vocabulary_keeps_the_fused_head(tied):
    ours, theirs = twins(tie_word_embeddings=tied)
    for model in (ours, theirs):
        torch.manual_seed(3)
        model.resize_token_embeddings(101, mean_resizing=False)
    ours.load_state_dict(theirs.state_dict())
    ids = IDS.clone()
    ids[0, 0] = 100
    assert_same_step(ours, theirs, input_ids=ids, labels=ids)
    assert_fused(ours)
    assert ours.lm_head.weight.shape == (101, 32) and ours.config.vocab_size == 101
    assert (ours.lm_head.weight is ours.model.embed_tokens.weight) == tied


def test_another_head_and_other_embeddings():
    ours, theirs = twins()
    torch.manual_seed(3)
    head, embeddings = torch.nn.Linear(32, 96, bias=False), torch.nn.Embedding(96, 32)
    for model in (ours, theirs):
        model.set_output_embeddings(copy.deepcopy(head))
        model.set_input_embeddings(copy.deepcopy(embeddings))
    assert_same_step(ours, theirs, input_ids=IDS, labels=IDS)
    assert_fused(ours)


def test_a_model_without_memory():
    theirs = twins()[1]
    with accelerate.init_empty_weights():
        empty = AutoModelForCausalLM.from_config(theirs.config)
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    with torch.device("meta"):
        assert AutoModelForCausalLM.from_config(theirs.config).lm_head.weight.is_meta
    empty.load_state_dict(theirs.state_dict(), assign=True)
    empty.model.rotary_emb = copy.deepcopy(theirs.model.rotary_emb)
    assert_same_step(empty.train(), theirs, input_ids=IDS, labels=IDS)
    assert_fused(empty)


class OwnConfig(transformers.Qwen3MoeConfig):
    model_type = "own_qwen3_moe"


class OwnModel(transformers.Qwen3MoeForCausalLM):
    config_class = OwnConfig


def test_a_registered_class_is_the_one_that_is_made():
    transformers.AutoConfig.register(OwnConfig.model_type, OwnConfig)
    AutoModelForCausalLM.register(OwnConfig, OwnModel)
    config = OwnConfig(**TINY)
    assert type(AutoModelForCausalLM.from_config(config)) is OwnModel
    assert type(transformers.AutoModelForCausalLM.from_config(config)) is OwnModel


def test_plain_models_in_the_same_process_stay_as_they_are():
    ours, theirs = twins()
    explain(ours).reset()
    before = theirs(IDS, labels=IDS, output_hidden_states=True, output_router_logits=True)
    ours(IDS, labels=IDS, output_hidden_states=True, output_router_logits=True)
    after = theirs(IDS, labels=IDS, output_hidden_states=True, output_router_logits=True)
    assert torch.equal(before.loss, after.loss) and type(after.logits) is torch.Tensor
    assert len(after.hidden_states) == LAYERS + 1 and len(after.router_logits) == LAYERS
    assert {type(module).__module__.split(".")[0] for module in theirs.modules()} == {"torch", "transformers"}
    assert explain(theirs).rows == []
    assert str(explain(theirs)) == "nothing of this model runs in the engine"
    fresh = transformers.AutoModelForCausalLM.from_config(tiny_config())
    assert type(fresh) is transformers.Qwen3MoeForCausalLM


def test_functional_calls():
    ours, theirs = twins()
    other = {name: 1.1 * tensor.detach() for name, tensor in theirs.named_parameters()}
    losses = [
        torch.func.functional_call(model, other, (IDS,), {"labels": IDS}).loss for model in (ours, theirs)
    ]
    assert relative_error(*losses) <= 1e-5
