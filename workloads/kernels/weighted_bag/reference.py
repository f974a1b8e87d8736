"""Weighted bag in plain torch: the definition, and the CPU path."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def weighted_bag(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
) -> Float[Tensor, "bags width"]:
    """Return `forward` with the gradients of `backward`."""
    result: Tensor = _WeightedBag.apply(table, ids, weights)  # type: ignore[no-untyped-call]
    return result


class _WeightedBag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(table, ids, weights)
        return forward(table, ids, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        needs_table, _, needs_weights = ctx.needs_input_grad
        table, ids, weights = ctx.saved_tensors
        table_grad, weights_grad = backward(
            table, ids, weights, grads[0], needs_table=needs_table, needs_weights=needs_weights
        )
        return table_grad, None, weights_grad


def forward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
) -> Float[Tensor, "bags width"]:
    """Return `y[b] = sum_g weights[b, g] * table[ids[b, g]]`."""
    if not ids.numel():  # `embedding_bag` refuses bags that are all empty
        return table.new_zeros(len(ids), table.shape[1])
    return functional.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")


def backward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    grad: Float[Tensor, "bags width"],
    *,
    needs_table: bool,
    needs_weights: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "bags bag_size"] | None]:
    """Return the gradients of table and weights, None for what is not needed.

    Autograd of `functional.embedding_bag` computes the same, on a CPU up to twice as slowly for the
    table's gradient.
    """
    grad = grad.contiguous()
    return (
        table_gradient(len(table), ids, weights, grad) if needs_table else None,
        row_products(table, ids, grad) if needs_weights else None,
    )


def row_products(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return the product of every row that a bag names with the bag's `x`.

    Autograd does not see through it.

    The gradient of a weighted bag's weights, and the whole of `gathered_dot`. On a CPU it is
    torch's own gradient of `embedding_bag`, which gathers no rows and so takes 0.6 of the time (in
    bf16, which it sums more slowly, as much).
    """
    if x.device.type != "cpu" or not ids.numel():
        return gathered_products(table, ids, x)
    first = torch.arange(0, ids.numel(), ids.shape[1], dtype=ids.dtype)
    products: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        x, table, ids.reshape(-1), first, first[:0], _SUM
    )
    return products.view(ids.shape)


def gathered_products(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
    *,
    at_once: int = 2**27,
) -> Float[Tensor, "bags bag_size"]:
    """Return `row_products` of rows gathered first, at most about `at_once` numbers.

    All are many times a model.
    """
    bags = max(1, at_once // max(1, ids.shape[1] * table.shape[1]))
    pieces = zip(torch.split(ids, bags), torch.split(x, bags), strict=True)
    # Autocast would round the rows.
    with torch.autocast(x.device.type, enabled=False):
        return torch.cat(
            [torch.bmm(functional.embedding(i, table), y[:, :, None])[:, :, 0] for i, y in pieces]
        )


def table_gradient(
    n_rows: int,
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    grad: Float[Tensor, "bags width"],
) -> Float[Tensor, "rows width"]:
    """Sum `weights * grad` per row: again a weighted bag, with rows and bags exchanged.

    The stable sort keeps the readers of a row in bag order, so the sum does not depend on
    scheduling.
    """
    flat_ids = ids.reshape(-1)
    # A narrower key halves the sort, which is the larger part of this function.
    key = torch.int32 if n_rows < 2**31 else torch.int64
    sorted_ids, reads = flat_ids.to(key).sort(stable=True)
    # Not `bincount`, which makes the host wait for a GPU.
    starts = torch.searchsorted(sorted_ids, torch.arange(n_rows, dtype=key, device=ids.device))
    return functional.embedding_bag(
        reads // ids.shape[1],
        grad,
        starts,
        per_sample_weights=weights.reshape(-1)[reads],
        mode="sum",
    )


_SUM = 0
"""How `embedding_bag` numbers the mode of that name."""
