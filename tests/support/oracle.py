"""Transformers as the judge: random models with clear routing, their losses, logits and gradients."""

import torch
from transformers import AutoModelForCausalLM

from phalanx import compat

TOP_K_MARGIN = 1e-4


@torch.no_grad()
def unsettle(model):
    """Moves norm weights and biases from where they start, so that every gradient has something to show."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            buffer.add_(0.2 * torch.randn_like(buffer))


def random_model(config, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    model = model.float().train()
    unsettle(model)
    return model


def crowd_experts(model):
    """Gives every token a constant feature that draws it to expert 0 and keeps it from expert 1."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 2.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.experts.down_proj[:, 0] = 0.0
            for name, parameter in layer.mlp.named_parameters():
                if "shared_expert" in name and name.endswith("down_proj.weight"):
                    parameter[0] = 0.0
            layer.post_attention_layernorm.weight[0] = 1.0
            layer.mlp.gate.weight[0, 0] = 1.5
            layer.mlp.gate.weight[1, 0] = -1.5


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


def gap(values, count):
    """The smallest distance between the last of the `count` largest and the next one."""
    ordered = values.sort(-1, descending=True).values
    if count == ordered.shape[-1]:
        return float("inf")
    return (ordered[:, count - 1] - ordered[:, count]).min().item()


def choice_margin(gate, logits):
    """How far the choice of `gate` is from another one."""
    if not hasattr(gate, "e_score_correction_bias"):
        return gap(logits.softmax(-1), gate.top_k)
    number = gate.num_group if hasattr(gate, "num_group") else gate.n_group  # until Transformers 5.12
    groups = (logits.sigmoid() + gate.e_score_correction_bias).unflatten(-1, (number, -1))
    best_two = groups.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(best_two).scatter(-1, best_two.topk(gate.topk_group, -1).indices, 1).bool()
    scores = groups.masked_fill(~kept[..., None], -float("inf")).flatten(-2)
    return min(gap(best_two, gate.topk_group), gap(scores, gate.top_k))


def top_k_margin(model, batch):
    """The smallest margin of a choice of experts, over layers and real tokens."""
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    if not gates:
        return float("inf")
    real = batch.real.reshape(-1)
    margins = []

    def record(gate, _, output):
        logits = output[0] if isinstance(output, tuple) else output
        if compat.router_records_probabilities(type(gate)):
            logits = logits.log()
        margins.append(choice_margin(gate, logits.reshape(-1, logits.shape[-1])[real]))

    hooks = [gate.register_forward_hook(record) for gate in gates]
    with torch.no_grad():
        model(**batch.inputs, use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(margins)


def model_with_margin(config, batch_of_seed, prepare=None):
    """The first seed whose model and batch keep the margin, so that rounding cannot flip a choice."""
    for seed in range(50):
        model, batch = random_model(config, seed), batch_of_seed(seed)
        if prepare is not None:
            prepare(model)
        if top_k_margin(model, batch) > TOP_K_MARGIN:
            return model, batch
    raise AssertionError("no seed keeps the top-k margin; change the configuration")
