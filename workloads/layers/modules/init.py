"""Initial parameter values, a pure function of seed and parameter name."""

import hashlib
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.distributed.local_part import copy_into_local, is_sharded


@runtime_checkable
class Initialises(Protocol):
    """A module that owns parameters or buffers and knows their distribution."""

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the initial value of the own tensor `name` into `value`, fp32 on the CPU.

        A module whose `initialises_in_place` is true gets the tensor itself.
        """


def initialise(model: nn.Module, seed: int) -> None:
    """Write every parameter and buffer of `model` in place.

    The values depend on the seed and the parameter's name alone: not on the device, the data type,
    the rank, which part of a parameter the rank holds, or on what else the model holds. So two
    architectures start alike wherever their parameters have the same name and shape.

    Raises:
        TypeError: If a module owns a parameter or buffer but does not say how it begins.
    """
    with torch.no_grad():
        for prefix, module in model.named_modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            if own and not isinstance(module, Initialises):
                raise TypeError(
                    f"{prefix or 'model'}: {type(module).__name__} owns {own[0][0]} "
                    "but has no `initialise`; "
                    f"use the modules of workloads/layers or add that method"
                )
            for name, tensor in own:
                generator = _generator(seed, f"{prefix}.{name}" if prefix else name)
                direct = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
                direct |= getattr(module, "initialises_in_place", False)
                if direct and not is_sharded(tensor):
                    module.initialise(name, tensor, generator)
                else:
                    value = torch.empty(tensor.shape, dtype=torch.float32)
                    module.initialise(name, value, generator)
                    copy_into_local(tensor, value)


def truncated_normal(value: Tensor, std: float, generator: torch.Generator) -> None:
    """Write a normal of standard deviation `std`, cut off at 3 `std`."""
    nn.init.trunc_normal_(value, std=std, a=-3 * std, b=3 * std, generator=generator)


def write_normal_part(
    value: Float[Tensor, "part_rows part_columns"],
    std: float,
    generator: torch.Generator,
    *,
    n_rows: int,
    width: int,
    rows: Int[Tensor, " part_rows"],
    columns: range,
    drawn_at_once: int = 2**22,
) -> None:
    """Write `rows` and `columns` of a normal matrix, in the order of `rows`.

    Bit for bit as `normal_` would write the whole matrix.

    torch's generator cannot be told to skip, so all rows up to the last of the part are drawn, at
    most about `drawn_at_once` numbers at a time: the time is that of the whole matrix, the memory
    that of a piece.
    """
    # torch draws normals in groups of 16, and fewer than 16 in another way: pieces begin on a
    # multiple of 16, and the last one takes what would be too short by itself.
    at_once = max(16, drawn_at_once // max(1, width) // 16 * 16)
    ascending, order = rows.sort()
    start, end = 0, int(ascending[-1]) + 1 if len(rows) else 0
    while start < end:
        stop = min(start + at_once, n_rows)
        if (n_rows - stop) * width < 16:
            stop = n_rows
        piece = torch.empty(stop - start, width).normal_(0.0, std, generator=generator)
        first, last = torch.searchsorted(ascending, torch.tensor([start, stop])).tolist()
        drawn = piece[ascending[first:last] - start, columns.start : columns.stop]
        value[order[first:last].to(value.device)] = drawn.to(value)
        start = stop


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8]) >> 1)
