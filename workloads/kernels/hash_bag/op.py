"""Entry point of sign-hash lookups."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import implementation, uses_triton
from workloads.kernels.custom_op import or_empty, register_op
from workloads.kernels.sign_hash.op import sign_hash, sign_hash_backward
from workloads.kernels.sign_hash.reference import row_type
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
    """Return `y[t] = sum_k scores[t, k] * table[rows[t, k]]`, rows and scores (see `sign_hash`).

    Gradients reach `table` (dense), and `z` through the scores. Both passes are deterministic. What
    several tables are read with the same z, as queries, keys and values are, belongs side by side
    in the columns of one: then hash, sort and the gradient of z are taken once. `torch.compile`
    sees one operation.

    Args:
        table: 2**bits rows for each chunk, those of the first chunk first.
        z: Hashed chunk by chunk.
        temperature: t in `sign_hash`.
        times_l1: Scores are also times the chunk's sum of absolute values.
    """
    if uses_triton(table) and uses_triton(z):
        out, scores, rows = _hash_bag(table, z, temperature, times_l1)
        return out, rows, scores
    rows, scores = sign_hash(z, temperature=temperature, times_l1=times_l1)
    return weighted_bag(table, rows, scores.to(table.dtype)), rows, scores


# Rows come last because opcheck adds up all outputs in the type of the first.
def _forward(
    table: Tensor, z: Tensor, temperature: float, times_l1: bool
) -> tuple[Tensor, Tensor, Tensor]:
    how = {"temperature": temperature, "times_l1": times_l1}
    out, rows, scores = implementation("hash_bag", table).forward(table, z, **how)
    return out, scores, rows


def _fake(table: Tensor, z: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    tokens, chunks, bits = z.shape
    out = table.new_empty(tokens, table.shape[1])
    scores = _by_chunk(z, (tokens, chunks), torch.promote_types(z.dtype, torch.float32))
    return out, scores, _by_chunk(z, (tokens, chunks), row_type(chunks, bits))


def _backward(
    table: Tensor,
    z: Tensor,
    rows: Tensor,
    scores: Tensor,
    grad: Tensor,
    temperature: float,
    times_l1: bool,
    needs_table: bool,
    needs_z: bool,
) -> tuple[Tensor, Tensor]:
    how = {"temperature": temperature, "times_l1": times_l1}
    table_grad, z_grad = implementation("hash_bag", table).backward(
        table, z, rows, scores, grad, **how, needs_table=needs_table, needs_z=needs_z
    )
    return or_empty(table_grad, table), or_empty(z_grad, z)


def _fake_backward(table: Tensor, z: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    needs_table, needs_z = others[-2:]
    return (
        table.new_empty(table.shape if needs_table else 0),
        z.new_empty(z.shape if needs_z else 0),
    )


def _by_chunk(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return open numbers as the kernels store them, those of a chunk side by side.

    In plain torch those of a token.
    """
    tokens, chunks = shape
    if uses_triton(like):
        return like.new_empty(chunks, tokens, dtype=dtype).T
    return like.new_empty(tokens, chunks, dtype=dtype)


def _save(
    ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    table, z, *ctx.options = inputs
    _, scores, rows = output
    ctx.save_for_backward(table, z, rows, scores)
    # Otherwise autograd makes zeros for a gradient of the rows.
    ctx.set_materialize_grads(False)


def _gradients(
    backward: Callable[..., tuple[Tensor, Tensor]],
    ctx: Any,
    grad: Tensor | None,
    more_of_scores: Tensor | None,
    _rows: None,
) -> tuple[Tensor | None, Tensor | None, None, None]:
    needs_table, needs_z, _, _ = ctx.needs_input_grad
    table_grad, z_grad = None, None
    if grad is not None:
        found = backward(*ctx.saved_tensors, grad, *ctx.options, needs_table, needs_z)
        table_grad = found[0] if needs_table else None
        z_grad = found[1] if needs_z else None
    if needs_z and more_of_scores is not None:
        more = sign_hash_backward(ctx.saved_tensors[1], more_of_scores, *ctx.options)
        z_grad = more if z_grad is None else z_grad + more
    return table_grad, z_grad, None, None


_hash_bag, _ = register_op(
    "hash_bag",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)
