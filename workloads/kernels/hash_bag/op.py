"""The one entry to look-ups by signs."""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.hash_bag import reference
from workloads.kernels.sign_hash.op import in_triton, sign_hash
from workloads.kernels.weighted_bag.op import weighted_bag


def hash_bag(
    table: Float[Tensor, "rows width"],
    z: Float[Tensor, "tokens chunks bits"],
    *,
    temperature: float,
    times_l1: bool,
) -> tuple[
    Float[Tensor, "tokens width"], Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]
]:
    """Return `y[t] = sum_k scores[t, k] * table[rows[t, k]]`, and the rows and scores, which `sign_hash` defines.

    Gradients reach `table` (dense), and `z` through the scores. Both passes are deterministic. What several tables are
    read with the same z, as queries, keys and values are, belongs side by side in the columns of one: then hash, sort
    and the gradient of z are taken once.

    Args:
        table: 2**bits rows for each chunk, those of the first chunk first.
        z: Hashed chunk by chunk.
        temperature: t in `sign_hash`.
        times_l1: Scores are also times the chunk's sum of absolute values.
    """
    rows, scores = sign_hash(z, temperature=temperature, times_l1=times_l1)
    if in_triton(table):
        return _forward(table, rows, scores), rows, scores
    return weighted_bag(table, rows, scores.to(table.dtype)), rows, scores


def _implementation(table: Tensor) -> ModuleType:
    return import_module("workloads.kernels.hash_bag.triton") if in_triton(table) else reference


@torch.library.custom_op("memscale::hash_bag", mutates_args=())
def _forward(table: Tensor, rows: Tensor, scores: Tensor) -> Tensor:
    result: Tensor = _implementation(table).forward(table, rows, scores)
    return result


@_forward.register_fake
def _(table: Tensor, rows: Tensor, scores: Tensor) -> Tensor:
    return table.new_empty(rows.shape[0], table.shape[1])


@torch.library.custom_op("memscale::hash_bag_backward", mutates_args=())
def _backward(
    table: Tensor,
    rows: Tensor,
    scores: Tensor,
    grad: Tensor,
    needs_table: bool,
    needs_scores: bool,
) -> tuple[Tensor, Tensor]:
    table_grad, scores_grad = _implementation(table).backward(
        table, rows, scores, grad, needs_table=needs_table, needs_scores=needs_scores
    )
    # An operation returns tensors: an empty one says none.
    return (
        table.new_empty(0) if table_grad is None else table_grad,
        table.new_empty(0) if scores_grad is None else scores_grad,
    )


@_backward.register_fake
def _(
    table: Tensor,
    rows: Tensor,
    scores: Tensor,
    grad: Tensor,
    needs_table: bool,
    needs_scores: bool,
) -> tuple[Tensor, Tensor]:
    tokens, chunks = scores.shape
    if not needs_scores:
        scores_grad = table.new_empty(0)
    elif in_triton(table):
        scores_grad = scores.new_empty(chunks, tokens).T
    else:
        scores_grad = scores.new_empty(tokens, chunks)
    return (
        torch.empty_like(table, memory_format=torch.contiguous_format)
        if needs_table
        else table.new_empty(0),
        scores_grad,
    )


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    needs_table, _, needs_scores = ctx.needs_input_grad
    table_grad, scores_grad = _backward(*ctx.saved_tensors, grad, needs_table, needs_scores)
    return table_grad if needs_table else None, None, scores_grad if needs_scores else None


_forward.register_autograd(_gradients, setup_context=_keep)
