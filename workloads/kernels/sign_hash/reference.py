"""Hashing by signs in plain torch: the definition of correct, and the CPU path."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def sign_hash(
    z: Float[Tensor, "tokens chunks bits"], *, temperature: float, times_l1: bool
) -> tuple[Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]]:
    """Return the row that each chunk's signs name, and the chunk's score.

    A chunk of b numbers names one of 2**b rows: bit j is 1 where z_j >= 0, and the first number is the highest bit.
    Chunk k reads the k-th table of 2**b rows of a flattened one, so its row is k * 2**b plus that code.

    The score is the probability of that row under a softmax over <z, signs of the row> / t for all 2**b rows,

        p = prod_j 1 / (1 + exp(-2 |z_j| / t)),

    with `times_l1` times sum_j |z_j|. fp32 or wider. Gradients reach z through the score only; at a zero it is 0.

    Sources: the score, MemoryFormer (arXiv 2411.12992), section 3.1; with the sum, LookupFFN (arXiv 2403.07221). The
    order of the bits and the sign of zero are those of MemoryFormer's released code on a GPU.
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    chunks, bits = z.shape[1:]
    place = torch.arange(bits - 1, -1, -1, device=z.device)
    table = torch.arange(chunks, device=z.device)
    rows = ((z >= 0) * (1 << place)).sum(dim=-1) + (table << bits)
    score: Tensor = _Score.apply(z, temperature, times_l1)  # type: ignore[no-untyped-call]
    return rows, score


class _Score(torch.autograd.Function):
    """Autograd of the same formula keeps three times as much and takes twice as long."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float, times_l1: bool) -> Tensor:
        size = z.abs()
        p = (size * (2 / temperature)).sigmoid_().prod(dim=-1)
        ctx.save_for_backward(z, p)
        ctx.temperature, ctx.times_l1 = temperature, times_l1
        return p * size.sum(dim=-1) if times_l1 else p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        z, p = ctx.saved_tensors
        size = z.abs()
        # d log p / d|z_j| = 2 / t * sigmoid(-2 |z_j| / t)
        slope = (size * (-2 / ctx.temperature)).sigmoid_().mul_(2 / ctx.temperature)
        if ctx.times_l1:
            slope = slope.mul_(size.sum(dim=-1, keepdim=True)).add_(1.0)
        return slope.mul_(z.sign()).mul_((grads[0] * p)[..., None]), None, None
