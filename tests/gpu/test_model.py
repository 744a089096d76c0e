"""Tiny models on the GPU against the fp32 model on the CPU: loss, and the gradient of every parameter."""

import json

import pytest
import torch
from compare import cosines
from safetensors.torch import save_file

from phalanx.bench.shapes import fill

pytestmark = pytest.mark.gpu

CONFIG = dict(
    model_type="qwen3_moe",
    architectures=["Qwen3MoeForCausalLM"],
    vocab_size=320,
    hidden_size=128,
    intermediate_size=192,
    moe_intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    num_experts=12,
    num_experts_per_tok=3,
    norm_topk_prob=True,
    max_position_embeddings=1024,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    torch_dtype="float32",
    initializer_range=0.05,
)
CASES = {
    "rows": ({}, [128, 128]),  # cuDNN in bf16
    "packed": ({}, [5, 1, 130, 2, 64]),
    "one token": ({}, [1]),
    "sliding window": (dict(use_sliding_window=True, sliding_window=7, max_window_layers=0), [40, 17, 128]),
    "E=3, H=96, top-1": (
        dict(num_experts=3, hidden_size=96, num_experts_per_tok=1, norm_topk_prob=False), [200, 200]),
    "odd expert width": (dict(moe_intermediate_size=40), [33]),
    "tied head, multi-head": (dict(tie_word_embeddings=True, num_key_value_heads=8), [21, 8]),
    "auxiliary loss": (dict(output_router_logits=True, router_aux_loss_coef=0.5), [64]),
}  # fmt: skip


def model_class(folder, dtype, experts, device):
    return torch.classes.phalanx.CausalLM(str(folder), dtype, experts, None, torch.device(device), True)


@pytest.fixture
def make_model(tmp_path):
    """A checkpoint with random weights; opens it as often as asked."""

    def make(changes):
        folder = tmp_path / "model"
        folder.mkdir()
        config = {**CONFIG, **changes}
        (folder / "config.json").write_text(json.dumps(config))
        empty = torch.classes.phalanx.CausalLM(
            str(folder), "float32", "auto", None, torch.device("cpu"), False
        )
        tensors = {}
        for name, parameter in dict(empty.parameters().items()).items():
            fill(name, parameter)
            with torch.no_grad():
                scale = 3.0 if parameter.dim() > 1 else 1.0
                tensors[name] = parameter.detach() * scale
                if parameter.dim() == 1:
                    tensors[name] = 1 + 0.2 * torch.randn_like(parameter)
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
            folder / "model.safetensors",
        )
        return folder, config

    return make


def run(model, tokens, labels, lengths, routing):
    output = model.forward(tokens, labels, lengths, None, routing)
    output["loss"].backward()
    return output["loss"].detach(), {name: p.grad for name, p in dict(model.parameters().items()).items()}


def batch(config, lengths):
    tokens = torch.randint(config["vocab_size"], (sum(lengths),))
    labels = torch.cat([torch.cat([part[1:], torch.tensor([-100])]) for part in tokens.split(lengths)])
    if len(tokens) == 1:
        labels[0] = 3
    choices = torch.rand(config["num_hidden_layers"], len(tokens), config["num_experts"]).argsort(2)
    routing = list(choices[:, :, : config["num_experts_per_tok"]].to(torch.int32).contiguous().unbind(0))
    return tokens, labels, routing


@pytest.mark.parametrize("experts", ["auto", "grouped_mm", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_with_routing_replayed(make_model, case, experts):
    changes, lengths = CASES[case]
    folder, config = make_model(changes)
    tokens, labels, routing = batch(config, lengths)
    loss, gradients = run(model_class(folder, "float32", "auto", "cpu"), tokens, labels, lengths, routing)
    on_gpu = [choice.cuda() for choice in routing]
    bounds = {"float32": 1 - 1e-8, "bfloat16": 0.9995}
    if case == "auxiliary loss":
        del bounds["bfloat16"]  # its own choice of experts is free: near-ties flip
    for dtype, bound in bounds.items():
        found, found_gradients = run(
            model_class(folder, dtype, experts, "cuda"), tokens, labels, lengths, on_gpu
        )
        assert abs(found.item() - loss.item()) <= (1e-5 if dtype == "float32" else 1e-2) * abs(loss.item())
        for name, cosine in cosines(found_gradients, gradients).items():
            # The gradient of a norm over 32 values averages over less than any other.
            small = dtype == "bfloat16" and name.endswith(("q_norm.weight", "k_norm.weight"))
            limit = 0.999 if small else bound
            assert cosine >= limit, f"{case} {dtype} {name}: {cosine}"


def test_labels_and_tokens_may_lie_on_either_device(make_model):
    folder, config = make_model({})
    tokens, labels, _ = batch(config, [30, 12])
    model = model_class(folder, "bfloat16", "auto", "cuda")
    loss, _ = run(model, tokens, labels, [30, 12], [])
    other, _ = run(model, tokens.cuda(), labels.cuda(), [30, 12], [])
    assert torch.equal(loss, other)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_label_outside_the_vocabulary_is_an_error(make_model, device):
    folder, config = make_model({})
    tokens, labels, _ = batch(config, [30, 12])
    labels[7] = config["vocab_size"]
    model = model_class(folder, "bfloat16", "auto", "cuda")
    with pytest.raises(RuntimeError, match="label 320 is outside the vocabulary of 320"):
        model.forward(tokens.to(device), labels.to(device), [30, 12], None, [])


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("lengths", [[256, 256], [5, 300, 207]])
def test_deterministic_gradients_repeat_to_the_bit(make_model, deterministic, lengths):
    folder, config = make_model({})
    tokens, labels, _ = batch(config, lengths)
    first = None
    for _ in range(40):
        loss, gradients = run(model_class(folder, "bfloat16", "auto", "cuda"), tokens, labels, lengths, [])
        results = [loss, *gradients.values()]
        first = first or results
        assert all(torch.equal(a, b) for a, b in zip(first, results, strict=True))


def test_explicit_phalanx_needs_what_it_needs(make_model):
    folder, config = make_model({})
    tokens, labels, _ = batch(config, [8])
    with pytest.raises(RuntimeError, match="bfloat16"):
        model_class(folder, "float32", "phalanx", "cuda").forward(tokens, labels, [8], None, [])
