"""What ranks find that shard dense parameters, against one process that holds everything.

    python dense_together.py OUT.json DEVICE GROUP SIZE...

As `ranks_together.py`, whose models and ways of training these are; GROUP is one of `GROUPS`.
"""

import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ranks_together as together
import torch
import torch.distributed.fsdp  # by the models, which takes each rank a while unless it is there when they are forked
from torch import nn
from torch.distributed.tensor import DTensor

from orchestrator.sweep import registry
from workloads.decoding.decoder import Decoder
from workloads.distributed import process_group
from workloads.distributed.mesh import make_mesh
from workloads.layers.memory.table import MemoryTable
from workloads.sharding.fsdp import keep_gathered, only_forward
from workloads.sharding.gradient_allreduce import GradientAllReduce
from workloads.training.device import autocast
from workloads.training.optimizer.adamw import Optimizer
from workloads.training.step.activation_checkpointing import checkpoint_blocks
from workloads.training.step.compilation import compile_training, compiled_loss
from workloads.training.step.train_step import accumulate_gradients

COMPILED = {2: ("blocks_checkpointed",), 3: ("blocks", "blocks_gathered")}
"""How a model without tables is trained besides, by the number of ranks: compiled."""
# How many ranks -> where tables lie (columns, rows, or whole on each rank) -> how they are trained.
WAYS = {
    2: {"whole": ("float64", "gathered"), "rows": ("checkpointed_lazy",)},
    3: {
        "whole": ("float64", "float32", "lazy_adamw", "checkpointed"),
        "columns": ("float64", "float32", "rowwise", "checkpointed", "checkpointed_gathered"),
        "rows": ("float64", "float32", "checkpointed_lazy"),
    },
    4: {"whole": ("float64",), "columns": ("lazy_adamw",), "rows": ("float64", "gathered")},
}


def dense(world: process_group.RankGroup, here: torch.device) -> Iterator[tuple[str, float]]:
    """Compare a model with tables, trained in every way."""
    for tables, ways in WAYS[world.size].items():
        for how in ways:
            yield from compared(world, here, "memory_plus", tables, how)
    if world.size == 4:
        yield from compared(world, here, "memory_plus", "columns", "float64", memory=2)
    if world.size == 2 and here.type == "cpu":
        yield from in_bf16(world, here, "memory_plus")
    for how in COMPILED.get(world.size, ()) if here.type == "cpu" else ():
        yield from compared(world, here, "dense", "whole", how)


def dense_architectures(
    world: process_group.RankGroup, here: torch.device
) -> Iterator[tuple[str, float]]:
    """Compare every architecture: its bits on two CPUs, ten steps in float64 elsewhere."""
    for name, config in configs().items():
        together.MODELS[name] = config
        if world.size == 2 and here.type == "cpu":
            # Sums of two are the same in any order; of more ranks, shares are uneven besides.
            yield from in_bf16(world, here, name)
            continue
        has_tables = config.param_count(together.VOCAB).memory_values > 0
        for tables in ("whole", "rows") if has_tables else ("whole",):
            yield from compared(world, here, name, tables, "float64")


def configs() -> dict[str, Any]:
    """Return the smallest model of every architecture."""
    found = {}
    for name in registry.architectures():
        module = registry.architecture(name)
        found[name] = module.Config(**module.PRESETS["d8"])
    # What it adds to the loss is measured per sequence, hence the same however sequences are shared
    # out.
    found["moe"] = replace(found["moe"], group="sequence", balance_loss=1.0, z_loss=1.0)
    return found


def known_of(group: str, size: int) -> list[tuple[str, str]]:
    """Return the models and ways of training that are compared; they are registered."""
    if group == "dense":
        together.MODELS["dense"] = configs()["dense"]
        known = [("memory_plus", how) for ways in WAYS[size].values() for how in ways]
        return [*known, *(("dense", how) for how in COMPILED.get(size, ()))]
    if group == "dense_architectures" and size > 2:
        together.MODELS.update(configs())
        return [(name, "float64") for name in registry.architectures()]
    return []


def compared(
    world: process_group.RankGroup,
    here: torch.device,
    name: str,
    tables: str,
    how: str,
    *,
    memory: int | None = None,
) -> Iterator[tuple[str, float]]:
    """Compare initial values, gradients and ten steps.

    Passes without a backward pass come before and after them.
    """
    mesh = make_mesh(world, memory=1 if tables == "whole" else memory or world.size)
    layout = "columns" if tables == "whole" else tables
    dtype, train = together.dtype_of(how), together.trained_by(how)
    model = together.started(together.MODELS[name], mesh, layout, here, dtype, dense="sharded")
    loss = None
    if how.startswith("blocks"):
        torch._dynamo.reset()
        torch.compile = together.traced  # machine code takes minutes
        compile_training(model)
        loss = compiled_loss
    if "checkpointed" in how:
        checkpoint_blocks(model)
    if "gathered" in how:
        keep_gathered(model)
    wanted, truth = (together.alone(name, kind, here, train) for kind in (dtype, torch.float64))
    label = f"{how}/{tables}-{mesh.memory.size}-of-{world.size}/{name}"
    yield f"{label}/held_once", held_again(model, world)
    first = Decoder(model).generate([[0]], n_tokens=2)
    yield f"{label}/freed_once", held_again(model, world)
    yield from together.ten_steps(label, model, wanted, truth, mesh, train, loss)
    if how.startswith("blocks"):
        ran = torch._dynamo.utils.counters["frames"]
        yield f"{label}/never_compiled", float(not 2 <= ran["ok"] == ran["total"])
    last = Decoder(model).generate([[0]], n_tokens=2)
    yield f"{label}/freed_once", held_again(model, world)
    decoded = str(first + last)
    yield f"{label}/decoded_alike", float(world.broadcast(decoded) != decoded)
    tokens = torch.zeros(1, 1, dtype=torch.long, device=here)
    with only_forward(model):
        model(tokens)
        yield f"{label}/resharded_or_kept", float(first_block_is_gathered(model))
    output = model(tokens)
    kept = first_block_is_gathered(model)
    yield f"{label}/resharded_or_kept", float(kept != ("gathered" in how))
    output.sum().backward()
    yield f"{label}/freed_once", held_again(model, world)


def first_block_is_gathered(model: nn.Module) -> bool:
    parameters = model.get_submodule("layers.0").parameters()
    return not any(isinstance(parameter, DTensor) for parameter in parameters)


def held_again(model: nn.Module, world: process_group.RankGroup) -> float:
    """Return how many numbers all ranks hold beyond one of each, of what is not a table."""
    tables = {m.weight for m in model.modules() if isinstance(m, MemoryTable)}
    dense = [p for p in model.parameters() if p not in tables]
    held = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in dense)
    return float(sum(world.all_gather_objects(held)) - sum(p.numel() for p in dense))


def in_bf16(
    world: process_group.RankGroup, here: torch.device, name: str
) -> Iterator[tuple[str, float]]:
    """Count the gradients in which two ranks that shard differ in a bit from two that do not.

    Each is a sum of two.
    """
    config = together.MODELS[name]
    replicated, sharded = (
        {
            key: together.whole(parameter.grad)
            for key, parameter in stepped(config, world, here, dense).named_parameters()
            if parameter.grad is not None
        }
        for dense in ("replicated", "sharded")
    )
    differ = [key for key, grad in replicated.items() if not torch.equal(grad, sharded[key])]
    label = f"bfloat16/whole-1-of-{world.size}/{name}"
    yield f"{label}/same_gradients", float(replicated.keys() != sharded.keys())
    yield f"{label}/same_bits", float(len(differ))


def stepped(
    config: Any, world: process_group.RankGroup, here: torch.device, dense: str, n_steps: int = 1
) -> nn.Module:
    """Return a model of fp32 parameters after some bf16 steps, the last without update."""
    mesh, train = make_mesh(world, memory=1), together.TRAIN
    model = together.started(config, mesh, "columns", here, torch.float32, dense=dense)
    optimizer, sums = Optimizer(model, train, mesh), GradientAllReduce(model, mesh)
    shape = together.SEQUENCES, together.SEQ_LEN + 1
    windows = torch.randint(together.VOCAB, shape, generator=torch.Generator().manual_seed(1))
    share = world.local_range(len(windows))
    for step in range(n_steps):
        if step:
            optimizer.clip()
            optimizer.step(train.lr)
        losses = accumulate_gradients(
            model,
            windows[share.start : share.stop].to(here),
            batch_tokens=train.batch_tokens,
            passes=1,
            autocast=partial(autocast, bf16=True, device=here),
            before_last=sums.start,
        )
        sums.finish(also=list(losses.values()))
    return model


def memory(world: process_group.RankGroup, here: torch.device) -> Iterator[tuple[str, float]]:
    """Compare peak GPU memory over two steps of a model of 1e8 parameters."""
    module = registry.architecture("dense")
    config = module.Config(**module.PRESETS["134m"])
    peaks = []
    for dense in ("replicated", "sharded"):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        # A model's hooks keep it alive.
        before = torch.cuda.memory_allocated()
        stepped(config, world, here, dense, n_steps=2)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    replicated, sharded = peaks
    yield "memory/sharded_over_replicated", sharded / replicated


GROUPS = {"dense": dense, "dense_architectures": dense_architectures, "dense_memory": memory}
together.CHECKS |= GROUPS

if __name__ == "__main__":
    out, device, group, *sizes = sys.argv[1:]
    found = {n: together.worst(group, int(n), device, known=known_of(group, int(n))) for n in sizes}
    Path(out).write_text(json.dumps(found))
