"""The one entry to the grouped product."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from workloads.kernels.grouped_mm import reference


def grouped_mm(
    x: Float[Tensor, "rows inputs"],
    weights: Float[Tensor, "groups inputs outputs"],
    ends: Int[Tensor, " groups"],
) -> Float[Tensor, "rows outputs"]:
    """Return the product of every group's rows with its own matrix (`reference.grouped_mm`).

    Args:
        x: Rows, those of a group together.
        weights: One matrix per group, of the type of `x`.
        ends: Where each group's rows end; int32 on the device where `is_fused`.
    """
    if is_fused(x, *weights.shape[1:]):
        result: Tensor = functional.grouped_mm(x, weights, offs=ends)
        return result
    return reference.grouped_mm(x, weights, ends)


def is_fused(x: Tensor, inputs: int, outputs: int) -> bool:
    """Whether one kernel computes all groups, with `ends` on the device.

    Else a loop over groups reads them on the host.

    torch's kernel takes bf16 on GPUs of compute capability 9 and up, and rows of whole 16 bytes:
    widths divisible by 8. Elsewhere torch would loop too, and wait for the ends in every call.
    """
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and inputs % 8 == 0
        and outputs % 8 == 0
        and torch.cuda.get_device_capability(x.device)[0] >= 9
    )
