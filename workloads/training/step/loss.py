"""Summed cross-entropy whose backward pass reuses the forward pass's softmax."""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable


def summed_cross_entropy(
    logits: Float[Tensor, "tokens vocab_size"], targets: Int64[Tensor, " tokens"]
) -> Float[Tensor, ""]:
    """Return the sum over tokens of -log softmax(logits)[target], nats.

    Only `logits` may want a gradient.

    The same number and gradient as torch's, in fewer passes over the largest tensor of a small
    model: exponentials are taken once instead of twice, and no matrix of zeros is made for the
    targets. Measured on one CPU core, two layers, d_model 32, vocab_size 2,700, 8,192 tokens: a
    step takes 251 instead of 279 ms in micro batches of 2,048, 333 instead of 429 ms in one piece.
    """
    loss: Tensor = _SummedCrossEntropy.apply(logits, targets)  # type: ignore[no-untyped-call]
    return loss


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        target = targets[:, None]
        probabilities = logits.softmax(-1)
        # log sum exp, from the largest probability: it is at least 1 / vocab_size, so its logarithm
        # is exact to rounding, where that of the target's own probability may be the logarithm of
        # zero.
        normaliser = logits.amax(-1, keepdim=True) - probabilities.amax(-1, keepdim=True).log()
        nll = normaliser - logits.gather(-1, target)
        # d nll / d logits = softmax - onehot(target)
        probabilities.scatter_add_(-1, target, torch.full_like(nll, -1.0))
        ctx.save_for_backward(probabilities)
        return nll.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (d_logits,) = ctx.saved_tensors
        # In place: the matrix is used once. A second backward pass would notice and raise.
        return d_logits.mul_(gradient), None
