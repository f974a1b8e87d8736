"""Sign-hash lookups in small tables, as one-hot products on tensor cores.

With S[t, r] the score of token t where it reads row r, and 0 elsewhere,

    y = S T,    dT = S^T dy,    d score[t, k] = (dy T^T)[t, row that t reads of table k].

The products are torch's; kernels of `sign_hash` write S from the numbers hashed, and take from dy
T^T what was read. Of 2**b numbers of S that belong to one table, one is not zero, so the products
take 2**b times the multiply-adds that are needed. Tensor cores do about 32 times as many a second
as rows can be read from a near cache; so this is for tables of few rows. Nothing is sorted.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.sign_hash import triton as sign_hash
from workloads.kernels.wide_product import wide_product

MATRIX_BYTES = 2**29
"""Most memory for S, or dy T^T, of the tokens that are taken at a time. The backward pass makes S
anew: kept, it was most of what a layer keeps (docs/kernels.md)."""

MOST_BITS = 5
"""Most bits of a chunk. In tables of 2**6 rows and more, reading row by row takes less time."""


def pays(table: Float[Tensor, "rows width"], z: Float[Tensor, "tokens chunks bits"]) -> bool:
    """Whether products take less time than reading rows one by one."""
    small = z.shape[2] <= MOST_BITS
    # Products of other widths are slow.
    aligned = table.shape[1] % 16 == 0
    return small and aligned and table.dtype == torch.bfloat16 and bool(z.numel() and table.numel())


def forward(
    table: Float[Tensor, "rows width"],
    z: Float[Tensor, "tokens chunks bits"],
    *,
    temperature: float,
    times_l1: bool,
) -> tuple[
    Float[Tensor, "tokens width"], Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]
]:
    """Return `reference.forward`: of scores in the table's type, as there."""
    how: dict[str, Any] = {"temperature": temperature, "times_l1": times_l1}
    rows, scores = sign_hash.empty_rows_and_scores(z)
    out = table.new_empty(len(z), table.shape[1])
    for part in _parts(table, z):
        matrix = table.new_empty(len(z[part]), len(table))
        sign_hash.write(z[part], rows[part], scores[part], matrix, **how)
        torch.mm(matrix, table, out=out[part])
    return out, rows, scores


def backward(
    table: Float[Tensor, "rows width"],
    z: Float[Tensor, "tokens chunks bits"],
    grad: Float[Tensor, "tokens width"],
    *,
    temperature: float,
    times_l1: bool,
    needs_table: bool,
    needs_z: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "tokens chunks bits"] | None]:
    """Return the gradients of table and numbers, None for what is not needed."""
    how: dict[str, Any] = {"temperature": temperature, "times_l1": times_l1}
    table_grad: Tensor | None = None
    z_grad = torch.empty_like(z, memory_format=torch.contiguous_format) if needs_z else None
    parts = list(_parts(table, z))
    for part in parts:
        buffer = table.new_empty(len(z[part]), len(table))
        if needs_table:
            sign_hash.write(z[part], one_hot=buffer, **how)
            if len(parts) == 1:
                table_grad = buffer.T @ grad
            else:
                # What is added up is rounded once, like what is not.
                found = wide_product(buffer.T, grad[part])
                table_grad = found if table_grad is None else table_grad.add_(found)
        if z_grad is not None:
            torch.mm(grad[part], table.T, out=buffer)
            per_code = buffer.view(*z[part].shape[:2], -1)
            sign_hash.backward(z[part], per_code, out=z_grad[part], **how)
    return None if table_grad is None else table_grad.to(table.dtype), z_grad


def _parts(table: Tensor, z: Tensor) -> Iterator[slice]:
    for start in range(0, len(z), _tokens_at_once(table)):
        yield slice(start, start + _tokens_at_once(table))


def _tokens_at_once(table: Tensor) -> int:
    return max(1, MATRIX_BYTES // (len(table) * table.element_size()))
