"""Sign-hash lookup in plain torch: `sign_hash` and then a weighted bag.

The definition of correct, and the CPU path.
"""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.sign_hash import reference as sign_hash
from workloads.kernels.weighted_bag import reference as weighted_bag


def forward(
    table: Float[Tensor, "rows width"],
    z: Float[Tensor, "tokens chunks bits"],
    *,
    temperature: float,
    times_l1: bool,
) -> tuple[
    Float[Tensor, "tokens width"], Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]
]:
    """Return `y[t] = sum_k scores[t, k] * table[rows[t, k]]`, and the rows and scores."""
    rows, scores = sign_hash.forward(z, temperature=temperature, times_l1=times_l1)
    return bag(table, rows, scores), rows, scores


def bag(
    table: Float[Tensor, "rows width"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
) -> Float[Tensor, "tokens width"]:
    """Return the sums alone."""
    return weighted_bag.forward(table, rows, scores.to(table.dtype))


def backward(
    table: Float[Tensor, "rows width"],
    z: Float[Tensor, "tokens chunks bits"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
    grad: Float[Tensor, "tokens width"],
    *,
    temperature: float,
    times_l1: bool,
    needs_table: bool,
    needs_z: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "tokens chunks bits"] | None]:
    """Return the gradients of table and numbers, None for what is not needed."""
    table_grad, scores_grad = weighted_bag.backward(
        table, rows, scores.to(table.dtype), grad, needs_table=needs_table, needs_weights=needs_z
    )
    if scores_grad is None:
        return table_grad, None
    scores_grad = scores_grad.to(scores.dtype)
    return table_grad, sign_hash.backward(
        z, scores_grad, temperature=temperature, times_l1=times_l1
    )
