"""Run by torchrun: gradients of experts spread over ranks against those of one device. Ranks print what is wrong."""

import itertools
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from engine_library import load_engine
from families import FAMILIES
from oracle import crowd_experts, random_model
from phalanx.ranks import make_groups

TOLERANCE = 1e-5


def expert_rows(total, part, parts):
    base, larger = divmod(total, parts)
    first = part * base + min(part, larger)
    return slice(first, first + base + (part < larger))


def documents(vocab, rank, seed, equal):
    """(tokens, labels, lengths) of a rank: packed documents, a different number on each rank unless `equal`."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    lengths = [4, 3] if equal else [5 + rank, 1, 3 * (rank % 3 + 1)]
    tokens = torch.randint(0, vocab, (sum(lengths),), generator=generator)
    labels = torch.randint(0, vocab, (sum(lengths),), generator=generator)
    if not equal:
        labels[: 2 * rank] = -100
    return tokens, labels, lengths


def objective(model, tokens, labels, lengths, share):
    return model.forward(tokens, labels, lengths)["loss"] * share


def engine(folder, aux, recompute="none", groups=()):
    device = torch.device("cpu")
    return torch.classes.phalanx.CausalLM(
        str(folder), "float32", "auto", aux, device, True, recompute, list(groups)
    )


def check(folder, ep_size, groups, world_groups, aux, batches, recompute):
    """Errors by parameter name, where they are too large."""
    rank = dist.get_rank()
    counts = [int((labels != -100).sum()) for _, labels, _ in batches]
    one = engine(folder, aux)
    for batch, count in zip(batches, counts, strict=True):
        if count:
            objective(one, *batch, count / sum(counts)).backward()
    mine = engine(folder, aux, recompute, groups)
    # A rank without labels takes part all the same, and adds nothing.
    objective(mine, *batches[rank], max(counts[rank], 1) / sum(counts)).backward()
    wrong = {}
    expected = one.parameters()
    for name, parameter in mine.parameters().items():
        whole, gradient = expected[name].grad, parameter.grad
        if ".experts." in name and ep_size > 1:
            whole = whole[expert_rows(whole.shape[0], rank % ep_size, ep_size)]
            dist.all_reduce(gradient, group=world_groups[2])
        else:
            dist.all_reduce(gradient)
        largest = expected[name].grad.abs().max()
        error = (
            ((gradient - whole).abs().max() / largest).item() if largest > 0 else gradient.abs().max().item()
        )
        if not error <= TOLERANCE:
            wrong[name] = error
    return wrong


def cases():
    """(name, family, changes of its config, seed, preparation, aux coefficient, equal batches, silent rank)."""
    for seed in range(10):
        yield f"seed {seed}", "qwen3_moe", {}, seed, None, None, False, None
    yield "auxiliary loss", "qwen3_moe", {}, 0, None, 0.3, True, None
    yield "tied head", "qwen3_moe", dict(tie_word_embeddings=True), 1, None, None, False, None
    yield (
        "all tokens to one expert",
        "qwen3_moe",
        dict(num_experts_per_tok=1),
        2,
        crowd_experts,
        None,
        False,
        None,
    )
    yield "every expert", "mixtral", dict(num_experts_per_tok=6), 3, None, None, False, None
    yield "a rank without labels", "qwen3_moe", {}, 4, None, None, True, 1
    yield "shared expert", "qwen2_moe", {}, 5, None, None, False, None
    yield (
        "groups of experts",
        "glm4_moe",
        dict(n_routed_experts=8, n_group=4, topk_group=2),
        6,
        None,
        None,
        False,
        None,
    )


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    load_engine()
    world, rank = dist.get_world_size(), dist.get_rank()
    sizes = [size for size in (1, 2, 4) if world % size == 0]
    groups = {size: make_groups(size) for size in sizes}
    by_size = {
        size: [torch.distributed.distributed_c10d._resolve_process_group(name) for name in groups[size]]
        for size in sizes
    }
    failures = 0
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        dist.broadcast_object_list(shared)
        scratch = shared[0]
        for number, (case, size) in enumerate(itertools.product(cases(), sizes)):
            name, family, changes, seed, prepare, aux, equal, silent = case
            config_class, base, _ = FAMILIES[family]
            config = config_class(**{**base, **changes})
            model = random_model(config, seed)
            if prepare is not None:
                prepare(model)
            folder = Path(scratch) / str(number)
            model.save_pretrained(folder)  # the first rank writes
            dist.barrier()
            batches = [documents(config.vocab_size, r, seed, equal) for r in range(world)]
            if silent is not None:
                batches[silent % world][1].fill_(-100)
            recompute = ("none", "selective", "full")[number % 3]
            wrong = check(folder, size, groups[size], by_size[size], aux, batches, recompute)
            if wrong:
                failures += 1
                print(f"rank {rank}: {name}, ep_size {size}: {wrong}", flush=True)
        dist.barrier()
    if rank == 0:
        print(f"compared {number + 1} cases on {world} ranks", flush=True)
    dist.destroy_process_group()
    return failures


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
