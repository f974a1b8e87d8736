"""Sign hash in plain torch: the definition, and the CPU path."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def sign_hash(
    z: Float[Tensor, "tokens chunks bits"], *, temperature: float, times_l1: bool
) -> tuple[Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]]:
    """Return `forward` with the gradient of `backward`."""
    rows, scores = _SignHash.apply(z, temperature, times_l1)  # type: ignore[no-untyped-call]
    return rows, scores


class _SignHash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float, times_l1: bool) -> tuple[Tensor, Tensor]:
        rows, scores = forward(z, temperature=temperature, times_l1=times_l1)
        ctx.save_for_backward(z)
        ctx.mark_non_differentiable(rows)
        ctx.how = {"temperature": temperature, "times_l1": times_l1}
        return rows, scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (z,) = ctx.saved_tensors
        return backward(z, grads[1], **ctx.how), None, None


def forward(
    z: Float[Tensor, "tokens chunks bits"], *, temperature: float, times_l1: bool
) -> tuple[Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]]:
    """Return rows and scores as `op.sign_hash` defines them."""
    z = _wide(z)
    chunks, bits = z.shape[1:]
    kind = row_type(chunks, bits)
    place = torch.arange(bits - 1, -1, -1, dtype=kind, device=z.device)
    table = torch.arange(chunks, dtype=kind, device=z.device)
    rows = ((z >= 0) * (1 << place)).sum(dim=-1, dtype=kind) + (table << bits)
    size = z.abs()
    p = _probability(size, temperature)
    return rows, p * size.sum(dim=-1) if times_l1 else p


def backward(
    z: Float[Tensor, "tokens chunks bits"],
    grad: Float[Tensor, "tokens chunks"],
    *,
    temperature: float,
    times_l1: bool,
) -> Float[Tensor, "tokens chunks bits"]:
    """Return the gradient of `z` for that of the scores.

    Autograd of the same formula keeps three times as much and takes twice as long.
    """
    wide = _wide(z)
    size = wide.abs()
    # d log p / d|z_j| = 2 / t * sigmoid(-2 |z_j| / t)
    slope = (size * (-2 / temperature)).sigmoid_().mul_(2 / temperature)
    if times_l1:
        slope = slope.mul_(size.sum(dim=-1, keepdim=True)).add_(1.0)
    p = _probability(size, temperature)
    return slope.mul_(wide.sign()).mul_((grad * p)[..., None]).to(z.dtype)


def row_type(chunks: int, bits: int) -> torch.dtype:
    """Return the type of row numbers: the fewer bytes, the less every later pass reads."""
    return torch.int32 if chunks << bits <= 2**31 else torch.int64


def _wide(z: Tensor) -> Tensor:
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _probability(size: Tensor, temperature: float) -> Tensor:
    return (size * (2 / temperature)).sigmoid_().prod(dim=-1)
