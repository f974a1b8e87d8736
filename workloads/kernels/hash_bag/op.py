"""The one entry to look-ups by signs."""

from importlib import import_module
from types import ModuleType

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.hash_bag import reference
from workloads.kernels.in_triton import in_triton
from workloads.kernels.sign_hash.op import sign_hash
from workloads.kernels.table_read import register_read
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


def _new_scores_gradient(table: Tensor, scores: Tensor) -> Tensor:
    tokens, chunks = scores.shape
    if in_triton(table):
        return scores.new_empty(chunks, tokens).T
    return scores.new_empty(tokens, chunks)


_forward = register_read(
    "hash_bag",
    _implementation,
    third="scores",
    new_output=lambda table, rows, scores: table.new_empty(rows.shape[0], table.shape[1]),
    new_third_gradient=_new_scores_gradient,
)
