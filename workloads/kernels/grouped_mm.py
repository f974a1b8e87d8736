"""Grouped matrix product in plain torch: one product per group of rows.

Where experts are 16-bit numbers on a GPU, `expert_mlp` computes them.
"""

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def grouped_mm(
    x: Float[Tensor, "rows inputs"],
    weights: Float[Tensor, "groups inputs outputs"],
    ends: Int[Tensor, " groups"],
) -> Float[Tensor, "rows outputs"]:
    """Return `y[r] = x[r] @ weights[g]` for every row r of every group g: the definition.

    Group g is the rows from `ends[g - 1]` (0 for the first) up to `ends[g]`; the last end is the
    number of rows. A group may be empty: its weights then get a gradient of zero. One product per
    group, so deterministic on a CPU. The ends are read on the host: a wait for the device where
    they lie on one.
    """
    result: Tensor = _GroupedMM.apply(x, weights, ends)  # type: ignore[no-untyped-call]
    return result


class _GroupedMM(torch.autograd.Function):
    """Gradients of one product per group.

    Autograd of slices and a concatenation computes the same and copies every row once more in each
    direction.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        bounds = [0, *ends.tolist()]
        ctx.sizes = [end - start for start, end in pairwise(bounds)]
        result = x.new_empty(len(x), weights.shape[2])
        groups = zip(
            torch.split(x, ctx.sizes), weights, torch.split(result, ctx.sizes), strict=True
        )
        for rows, weight, product in groups:
            torch.mm(rows, weight, out=product)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        needs_x, needs_weights, _ = ctx.needs_input_grad
        x_grad = torch.empty_like(x) if needs_x else None
        weights_grad = torch.empty_like(weights) if needs_weights else None
        parts = torch.split(grads[0].contiguous(), ctx.sizes)
        if x_grad is not None:
            for grad, weight, part in zip(
                parts, weights, torch.split(x_grad, ctx.sizes), strict=True
            ):
                torch.mm(grad, weight.T, out=part)
        if weights_grad is not None:
            for rows, grad, part in zip(
                torch.split(x, ctx.sizes), parts, weights_grad, strict=True
            ):
                torch.mm(rows.T, grad, out=part)
        return x_grad, weights_grad, None
