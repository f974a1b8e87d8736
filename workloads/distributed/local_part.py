"""This rank's part of a parameter that all ranks hold together (`dense.py`), for whoever works on plain tensors.

Such a parameter is a DTensor: it has the shape of the whole and keeps a part, a range along one dimension. A rank may
have nothing of a parameter that is short in that dimension.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part only of what the tensor stands for. Asked so that nobody else imports DTensor."""
    return hasattr(tensor, "to_local")


def local_shard(tensor: Tensor) -> Tensor:
    """Return the part held here, in place; of a plain tensor itself."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        part: Tensor = sharded.to_local()
    return part


def sharded_dim(sharded: Any) -> tuple[int, int]:
    """Return the dimension along which a sharded parameter is cut, and how much of it a rank has.

    As `torch.chunk` cuts: equal parts, of which the last ones may be shorter or without anything.
    """
    (placement,) = sharded.placements
    return placement.dim, -(-sharded.shape[placement.dim] // sharded.device_mesh.size())


def local_slices(tensor: Tensor) -> tuple[slice, ...]:
    """Return where in the whole the part lies."""
    place = [slice(0, n) for n in tensor.shape]
    if is_sharded(tensor):
        sharded: Any = tensor
        dim, each = sharded_dim(sharded)
        n, first = tensor.shape[dim], sharded.device_mesh.get_local_rank() * each
        place[dim] = slice(min(n, first), min(n, first + each))
    return tuple(place)


def copy_into_local(tensor: Tensor, whole: Tensor) -> None:
    """Write a whole, or of it what is held here."""
    local_shard(tensor).copy_(whole[local_slices(tensor)] if is_sharded(tensor) else whole)


class LocalParameters:
    """Plain parameters in the place of sharded ones: this rank's parts, for an optimizer that works on each number alone.

    They share memory with the parts. The step of an optimizer is then the same code on the same type of tensor whether
    parameters are sharded or not, and what it keeps has the shape of the part.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._of = {
            parameter: nn.Parameter(local_shard(parameter), requires_grad=parameter.requires_grad)
            for parameter in parameters
            if is_sharded(parameter)
        }
        self.all = set(self._of.values())

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what stands for a parameter: itself if it is not sharded."""
        return self._of.get(parameter, parameter)

    def take(self) -> None:
        """Take over values and gradients as they are now: FSDP may move a part before the first pass.

        A part without a number gets no gradient: an optimizer would keep moments of nothing.
        """
        for parameter, part in self._of.items():
            part.data = local_shard(parameter)
            gradient = parameter.grad
            part.grad = local_shard(gradient) if gradient is not None and part.numel() else None

    def drop_gradients(self) -> None:
        """Free the gradients of the sharded parameters."""
        for parameter in self._of:
            parameter.grad = None
