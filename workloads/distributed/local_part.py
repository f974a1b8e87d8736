"""Local shards of FSDP parameters, as plain tensors.

A parameter sharded by `sharding/fsdp.py` is a DTensor: it has the shape of the whole and keeps a
shard, a range along one dimension. A rank's shard is empty where the dimension is short.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor. Asked here, so that no other module imports DTensor."""
    return hasattr(tensor, "to_local")


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard, sharing its memory; of a plain tensor itself."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        shard: Tensor = sharded.to_local()
    return shard


def sharded_dim(sharded: Any) -> tuple[int, int]:
    """Return the dimension along which a DTensor is sharded, and the length of a shard.

    Sharded as `torch.chunk` does: equal parts, of which the last may be shorter or empty.
    """
    (placement,) = sharded.placements
    return placement.dim, -(-sharded.shape[placement.dim] // sharded.device_mesh.size())


def local_slices(tensor: Tensor) -> tuple[slice, ...]:
    """Return the slices of the whole that this rank's shard is."""
    slices = [slice(0, n) for n in tensor.shape]
    if is_sharded(tensor):
        sharded: Any = tensor
        dim, length = sharded_dim(sharded)
        n, first = tensor.shape[dim], sharded.device_mesh.get_local_rank() * length
        slices[dim] = slice(min(n, first), min(n, first + length))
    return tuple(slices)


def copy_into_local(tensor: Tensor, whole: Tensor) -> None:
    """Write a whole, or this rank's shard of it, into a tensor."""
    local_shard(tensor).copy_(whole[local_slices(tensor)] if is_sharded(tensor) else whole)


class LocalParameters:
    """Plain parameters in the place of sharded ones, for an elementwise optimizer.

    They are this rank's shards and share their memory. So the optimizer's step is the same code
    whether parameters are sharded or not, and its state has the shape of the shard.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._of = {
            parameter: nn.Parameter(local_shard(parameter), requires_grad=parameter.requires_grad)
            for parameter in parameters
            if is_sharded(parameter)
        }
        self.all = set(self._of.values())

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the plain parameter for a sharded one; any other parameter itself."""
        return self._of.get(parameter, parameter)

    def take(self) -> None:
        """Take over the current values and gradients: FSDP may move a shard before the first pass.

        An empty shard gets no gradient: an optimizer would keep moments of nothing.
        """
        for parameter, plain in self._of.items():
            plain.data = local_shard(parameter)
            gradient = parameter.grad
            plain.grad = local_shard(gradient) if gradient is not None and plain.numel() else None

    def drop_gradients(self) -> None:
        """Free the gradients of the sharded parameters."""
        for parameter in self._of:
            parameter.grad = None
