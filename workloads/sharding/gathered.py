"""State of sharded dense parameters (`dense.py`) as a checkpoint holds it: whole, as if they were replicated.

Parameters are gathered one by one, by rank 0 only and from there into the host's memory: while a checkpoint is saved, rank
0's GPU holds one whole parameter beside its parts, and its host weights and moments of all, 12 bytes a number. A
reader takes its part from the file, without reading the rest. So a trial goes on with any number of ranks, sharded or not.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.ranks import World, named_failure
from workloads.sharding.own_part import cut, is_part, own_part, own_place

State = dict[str, Any]


def gathered(state: State, model: nn.Module, names: Sequence[str], world: World) -> State:
    """Return a state in which rank 0 has everything of sharded parameters, and others nothing of them. Collective.

    Args:
        state: `weights` by name and, if there, `optimizer` as torch gives it; the rest is passed on.
        model: Whose parameters say which are sharded. As it is where no parameter is.
        names: Of the parameters, as the optimizer numbers them.
        world: All ranks.
    """
    sharded = {name: p for name, p in model.named_parameters() if is_part(p)}
    if not sharded:
        return state
    weights = {name: tensor for name, tensor in state["weights"].items() if name not in sharded}
    for name, parameter in sharded.items():
        whole = _whole(own_part(parameter), world, like=parameter)
        if whole is not None:
            weights[name] = whole
    joined = {**state, "weights": weights}
    if "optimizer" not in state:
        return joined
    kept = dict(state["optimizer"]["state"])
    # A rank without a number of a parameter keeps nothing of it, so rank 0, which has the first ones, says what is kept.
    moments = [
        (
            index,
            [
                key
                for key, value in kept[index].items()
                if value.shape == own_part(sharded[name]).shape
            ],
        )
        for index, name in enumerate(names)
        if name in sharded and index in kept
    ]
    agreed = world.agree(json.dumps(moments))
    assert agreed is not None
    for index, keys in json.loads(agreed):
        parameter, own = sharded[names[index]], kept.pop(index, {})
        wholes = {}
        for key in keys:
            part = own.get(key, torch.zeros_like(own_part(parameter)))
            whole = _whole(part, world, like=parameter)
            if whole is not None:
                wholes[key] = whole
        if world.leads:
            kept[index] = {**own, **wholes}
    return {**joined, "optimizer": {**state["optimizer"], "state": kept}}


def own_moments(
    kept: Mapping[int, State], model: nn.Module, names: Sequence[str]
) -> dict[int, State]:
    """Return what a saved optimizer keeps, by parameter's number, of sharded parameters this rank's part of it."""
    sharded = {name: p for name, p in model.named_parameters() if is_part(p)}
    taken = dict(kept)
    for index, name in enumerate(names):
        if name in sharded and index in kept:
            parameter = sharded[name]
            taken[index] = {
                key: value[own_place(parameter)].clone()
                if value.shape == parameter.shape
                else value
                for key, value in kept[index].items()
            }
    return taken


def _whole(part: Tensor, world: World, *, like: nn.Parameter) -> Tensor | None:
    """Return on rank 0, in the host's memory, the whole of which the parts are cut as those of a parameter are."""
    dim, each = cut(like)
    shape = [*like.shape]
    shape[dim] = each
    # Collectives want equal parts, so the last ones are filled up; what they are filled with is cut off.
    filled = part.new_zeros(shape)
    filled.narrow(dim, 0, part.shape[dim]).copy_(part)
    parts = [torch.empty_like(filled) for _ in range(world.size)] if world.leads else None
    with named_failure("gather"):
        dist.gather(filled, parts, group=world.group, group_dst=0)
    if parts is None:
        return None
    return torch.cat([each.cpu() for each in parts], dim).narrow(dim, 0, like.shape[dim])
