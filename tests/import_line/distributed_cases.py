"""The cases of test_distributed.py, run by torchrun on two Gloo ranks.

Each trains a model of the import line under a wrapper of torch's, Accelerate's or Transformers', and compares with
plain Transformers on one rank. Rank 0 writes a line of JSON per case into the file that is named.
"""

import contextlib
import copy
import gc
import json
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from twins import LAYERS, llamas, relative_error, tokens, twins

from phalanx import AutoModelForCausalLM, create_distributed_setup, explain

TOLERANCE = 1e-5
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def batches(count):
    """`count` global batches [2, 12]; each rank trains on its own row."""
    return [tokens(2, 12, seed=seed) for seed in range(count)]


def mine(ids):
    return ids[dist.get_rank() :][:1]


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(model):
    return {
        name.removeprefix("module."): None if parameter.grad is None else full(parameter.grad)
        for name, parameter in model.named_parameters()
    }


def expected_gradients(model, micro_batches, **arguments):
    for ids in micro_batches:
        model(ids, labels=ids, **arguments).loss.backward()
    return gradients(model)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    errors = {name: relative_error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) <= TOLERANCE, max(errors.items(), key=lambda item: item[1])


def assert_fused(model, passes, again=0):
    """`again`: how often the halves run once more, in backward."""
    explanation = explain(model)
    assert explanation.reasons() == {}, str(explanation)
    assert explanation.fused == passes * (2 * LAYERS + 2) + again * 2 * LAYERS, str(explanation)


def step(model, micro_batches, no_sync=None, **arguments):
    """Forward and backward passes, all but the last without reducing gradients."""
    for ids in micro_batches[:-1]:
        with no_sync() if no_sync else contextlib.nullcontext():
            model(mine(ids), labels=mine(ids), **arguments).loss.backward()
    model(mine(micro_batches[-1]), labels=mine(micro_batches[-1]), **arguments).loss.backward()


def ddp(micro_batches=1, **options):
    ours, theirs = twins()
    wrapped = DistributedDataParallel(ours, **options)
    step(wrapped, batches(micro_batches), wrapped.no_sync)
    assert_same(gradients(wrapped), expected_gradients(theirs, batches(micro_batches)))
    assert_fused(ours, micro_batches)
    return wrapped


@case
def ddp_plain():
    ddp()


@case
def ddp_finding_unused_parameters():
    ddp(find_unused_parameters=True)


@case
def ddp_with_a_static_graph():
    wrapped = ddp(static_graph=True)
    first = {name: gradient.clone() for name, gradient in gradients(wrapped).items()}
    wrapped.zero_grad()
    step(wrapped, batches(1))
    assert_same(gradients(wrapped), first)


@case
def ddp_bucket_views():
    ddp(gradient_as_bucket_view=True)


@case
def ddp_accumulation():
    ddp(micro_batches=3)


@case
def ddp_auxiliary_loss():
    ours, theirs = twins()
    wrapped = DistributedDataParallel(ours)
    ids = tokens(1, 12).expand(2, -1)  # alike on both ranks, as the auxiliary loss is no mean over rows
    step(wrapped, [ids], output_router_logits=True)
    assert_same(gradients(wrapped), expected_gradients(theirs, [ids[:1]], output_router_logits=True))
    assert_fused(ours, 1)


@case
def ddp_logits_that_are_read():
    ours, theirs = twins()
    wrapped = DistributedDataParallel(ours)
    ids = batches(1)[0]
    for model, rows in ((wrapped, mine(ids)), (theirs, ids)):
        output = model(rows, labels=rows)
        (output.loss + output.logits.float().softmax(-1).pow(2).mean()).backward()
    assert_same(gradients(wrapped), gradients(theirs))


def shard(model, head=False, **options):
    for layer in model.model.layers:
        fully_shard(layer, **options)
    if head:
        fully_shard(model.lm_head, **options)
    return fully_shard(model, **options)


def fsdp(micro_batches=1, head=False, checkpointing=None, **options):
    ours, theirs = twins()
    if checkpointing is not None:
        ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing})
        ours.enable_input_require_grads()
    shard(ours, head, **options)
    for index, ids in enumerate(batches(micro_batches)):
        ours.set_requires_gradient_sync(index == micro_batches - 1)
        ours(mine(ids), labels=mine(ids)).loss.backward()
    assert_same(gradients(ours), expected_gradients(theirs, batches(micro_batches)))
    assert_fused(ours, micro_batches, 0 if checkpointing is None else micro_batches)
    return ours, theirs


def assert_pieces_fused(model):
    explanation = explain(model)
    assert explanation.reasons() == {}, str(explanation)
    assert [row.calls.fused for row in explanation.rows] == [1] * 10, str(explanation)


@case
def ddp_of_a_family_that_the_engine_has_not():
    ours, theirs = llamas()
    wrapped = DistributedDataParallel(ours)
    step(wrapped, batches(1))
    assert_same(gradients(wrapped), expected_gradients(theirs, batches(1)))
    assert_pieces_fused(ours)


@case
def fsdp2_of_a_family_that_the_engine_has_not():
    for head in (False, True):
        ours, theirs = llamas()
        step(shard(ours, head), batches(1))
        assert_same(gradients(ours), expected_gradients(theirs, batches(1)))
        assert_pieces_fused(ours)


@case
def fsdp2_layers_and_root():
    fsdp()


@case
def fsdp2_kept_gathered():
    fsdp(reshard_after_forward=False)


@case
def fsdp2_head_of_its_own():
    fsdp(head=True)


@case
def fsdp2_accumulation():
    fsdp(micro_batches=3)


@case
def fsdp2_accumulation_with_a_head_of_its_own():
    fsdp(micro_batches=2, head=True)


@case
def fsdp2_checkpointing():
    fsdp(checkpointing=False)


@case
def fsdp2_reentrant_checkpointing():
    fsdp(checkpointing=True)


@case
def fsdp2_then_generate_and_save():
    ours, theirs = fsdp()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    for optimizer in optimizers:
        optimizer.step()
    prompt = tokens(2, 5, seed=9)
    produced = [
        model.eval().generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
        for model in (ours, theirs)
    ]
    assert torch.equal(*produced)
    state = {name: full(tensor) for name, tensor in ours.state_dict().items()}
    for name, tensor in theirs.state_dict().items():
        assert relative_error(state[name], tensor) <= TOLERANCE, name


def loaded_and_sharded(again=0, **arguments):
    """from_pretrained with these arguments gives a sharded model that trains as one rank does."""
    theirs = twins()[1]
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        theirs.save_pretrained(folder[0])
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained(folder[0], attn_implementation="sdpa", **arguments).train()
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    step(model, batches(1))
    assert_same(gradients(model), expected_gradients(theirs, batches(1)))
    assert_fused(model, 1, again)


@case
def distributed_config():
    from transformers.distributed import DistributedConfig

    if not hasattr(DistributedConfig, "fsdp_size"):
        return "this Transformers does not shard by itself"
    loaded_and_sharded(distributed_config=DistributedConfig(fsdp_size=2))


@case
def distributed_setup():
    loaded_and_sharded(distributed_setup=create_distributed_setup({"strategy": "fsdp2"}))


@case
def distributed_setup_with_copies_and_checkpointing():
    setup = {"dp_replicate_size": 2, "activation_checkpointing": True, "reshard_after_forward": False}
    loaded_and_sharded(again=1, distributed_setup=setup)


@case
def device_mesh():
    loaded_and_sharded(device_mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))


@case
def accelerate():
    from accelerate import Accelerator

    ours, theirs = twins()
    accelerator = Accelerator(cpu=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    wrapped, optimizer = accelerator.prepare(ours, optimizers[0])
    ids = batches(1)[0]
    accelerator.backward(wrapped(mine(ids), labels=mine(ids)).loss)
    accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
    theirs(ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    assert_same(gradients(wrapped), gradients(theirs))
    optimizer.step()
    optimizers[1].step()
    kept = dict(theirs.named_parameters())
    assert_same(dict(accelerator.unwrap_model(wrapped).named_parameters()), kept)
    assert_fused(ours, 1)


@case
def trainer():
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    ours, theirs = twins()
    before = copy.deepcopy(theirs.state_dict())
    rows = [{"input_ids": row, "labels": row} for row in tokens(8, 12)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            per_device_train_batch_size=1,
            max_steps=4,
            optim="sgd",
            learning_rate=0.05,
            lr_scheduler_type="constant",
            save_strategy="no",
        )
        InOrder(ours, arguments, train_dataset=rows).train()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05)
    for begin in range(0, 8, 2):
        ids = torch.stack([row["input_ids"] for row in rows[begin : begin + 2]])
        theirs(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for name, tensor in theirs.state_dict().items():
        assert relative_error(ours.state_dict()[name] - before[name], tensor - before[name]) <= 1e-4, name
    assert_fused(ours, 4)


def outcome(run):
    """How a case failed, why it could not run, or None."""
    try:
        return run()
    except Exception:
        return traceback.format_exc()


def main(report):
    dist.init_process_group("gloo")
    lines = []
    for name, run in CASES.items():
        outcomes = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, outcome(run))
        lines.append(json.dumps([name, outcomes]))
    if dist.get_rank() == 0:
        with open(report, "w") as file:
            file.write("\n".join(lines))
    gc.collect()  # wrappers in cycles hold on to the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
