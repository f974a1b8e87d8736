"""Entry point of the sign hash."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import implementation, uses_triton
from workloads.kernels.custom_op import register_op
from workloads.kernels.sign_hash import reference


def sign_hash(
    z: Float[Tensor, "tokens chunks bits"], *, temperature: float, times_l1: bool
) -> tuple[Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]]:
    """Return the row that each chunk's signs name, and the chunk's score.

    A chunk of b numbers names one of 2**b rows: bit j is 1 where z_j >= 0, and the first number is
    the highest bit. Chunk k reads the k-th table of 2**b rows of a flattened one, so its row is k *
    2**b plus that code.

    The score is the probability of that row under a softmax over <z, signs of the row> / t for all
    2**b rows,

        p = prod_j 1 / (1 + exp(-2 |z_j| / t)),

    with `times_l1` times sum_j |z_j|. Gradients reach z through the score only; at a zero it is 0.

    Rows are int32 where that holds them. Scores are fp32, or float64 where z is. Triton's kernels
    store both chunk by chunk, as `hash_bag` reads them: with strides (1, tokens).

    Sources: the score, MemoryFormer (arXiv 2411.12992), section 3.1; with the sum, LookupFFN (arXiv
    2403.07221). The order of the bits and the sign of zero are those of MemoryFormer's released
    code on a GPU.
    """
    if not uses_triton(z):
        return reference.sign_hash(z, temperature=temperature, times_l1=times_l1)
    scores, rows = _sign_hash(z, temperature, times_l1)
    return rows, scores


# Scores come first because opcheck adds up all outputs in the type of the first.
def _forward(z: Tensor, temperature: float, times_l1: bool) -> tuple[Tensor, Tensor]:
    rows, scores = implementation("sign_hash", z).forward(
        z, temperature=temperature, times_l1=times_l1
    )
    return scores, rows


def _fake(z: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    tokens, chunks, bits = z.shape
    kinds = (torch.promote_types(z.dtype, torch.float32), reference.row_type(chunks, bits))
    if uses_triton(z):
        scores, rows = (z.new_empty(chunks, tokens, dtype=kind).T for kind in kinds)
    else:
        scores, rows = (z.new_empty(tokens, chunks, dtype=kind) for kind in kinds)
    return scores, rows


def _backward(z: Tensor, grad: Tensor, temperature: float, times_l1: bool) -> Tensor:
    result: Tensor = implementation("sign_hash", z).backward(
        z, grad, temperature=temperature, times_l1=times_l1
    )
    return result


def _save(ctx: Any, inputs: tuple[Tensor, float, bool], output: tuple[Tensor, Tensor]) -> None:
    z, *ctx.options = inputs
    ctx.save_for_backward(z)
    # Otherwise autograd makes zeros for a gradient of the rows.
    ctx.set_materialize_grads(False)


def _gradients(
    backward: Callable[..., Tensor], ctx: Any, grad: Tensor | None, _rows: None
) -> tuple[Tensor | None, None, None]:
    if grad is None:
        return None, None, None
    (z,) = ctx.saved_tensors
    return backward(z, grad, *ctx.options), None, None


_sign_hash, sign_hash_backward = register_op(
    "sign_hash",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=lambda z, *_: z.new_empty(z.shape),
    save=_save,
    gradients=_gradients,
)
