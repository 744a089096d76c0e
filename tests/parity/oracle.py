"""Transformers as the judge: random models with clear routing, their losses, logits and gradients."""

import torch
from transformers import AutoModelForCausalLM

TOP_K_MARGIN = 1e-4


def random_model(config, seed):
    """A model whose norm weights are not all one, so that every gradient has something to show."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    model = model.float().train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def crowd_experts(model):
    """Gives every token a constant feature that draws it to expert 0 and keeps it from expert 1."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 4.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.experts.down_proj[:, 0] = 0.0
            for name, parameter in layer.mlp.named_parameters():
                if "shared_expert" in name and name.endswith("down_proj.weight"):
                    parameter[0] = 0.0
            layer.post_attention_layernorm.weight[0] = 1.0
            layer.mlp.gate.weight[0, 0] = 1.0
            layer.mlp.gate.weight[1, 0] = -1.0


def run(model, batch):
    """Loss, logits of the real positions, gradient by parameter name."""
    model.zero_grad(set_to_none=True)
    output = model(**batch.inputs, labels=batch.labels, use_cache=False)
    loss = output.loss
    if torch.isnan(loss):  # no position predicts anything: a mean over nothing
        loss = output.logits.sum() * 0
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss.detach(), output.logits.detach()[batch.real], gradients


def top_k_margin(model, batch):
    """The smallest distance between the last chosen and the first rejected expert, over layers and real tokens."""
    with torch.no_grad():
        output = model(**batch.inputs, use_cache=False, output_router_logits=True)
    margin = float("inf")
    real = batch.real.reshape(-1)
    for logits in output.router_logits:
        chosen = model.config.num_experts_per_tok
        ordered = logits.reshape(-1, logits.shape[-1])[real].softmax(-1).sort(-1, descending=True).values
        if chosen < ordered.shape[-1]:
            margin = min(margin, (ordered[:, chosen - 1] - ordered[:, chosen]).min().item())
    return margin


def model_with_margin(config, batch_of_seed, prepare=None):
    """The first seed whose model and batch keep the margin, so that rounding cannot flip a choice."""
    for seed in range(50):
        model, batch = random_model(config, seed), batch_of_seed(seed)
        if prepare is not None:
            prepare(model)
        if top_k_margin(model, batch) > TOP_K_MARGIN:
            return model, batch
    raise AssertionError("no seed keeps the top-k margin; change the configuration")
