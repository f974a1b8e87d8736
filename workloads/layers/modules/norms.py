"""Normalisation: LayerNorm, RMSNorm, and batch norm of memory queries."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.distributed.process_group import all_reduce_default_group


class LayerNorm(nn.LayerNorm):
    """`(x - mean) / sqrt(variance + eps) * gain + bias`.

    Source: Ba et al. 2016 (arXiv 1607.06450).
    """

    PARAM_GROUP: ClassVar[str] = "norm"

    def reset_parameters(self) -> None:
        """Leave the values open: `initialise` writes them."""

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return the normalised `x` in its own type, computed in fp32 or wider."""
        return super().forward(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write ones (gain) or zeros (bias)."""
        value.fill_(0.0 if name == "bias" else 1.0)


@dataclass(frozen=True, kw_only=True)
class LayerNormComponent(Component):
    """A norm of `width` columns."""

    width: int
    shares_input: bool = False
    """Another norm keeps the same input: the second of a parallel block."""

    def param_count(self) -> ParamCount:
        """Count gain and bias."""
        return ParamCount(norm=2 * self.width)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Return nothing: norms are not counted."""
        return FlopCount()

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input, mean and inverse deviation, all fp32.

        A residual stream in bf16 is copied by every norm.
        """
        shared = self.shares_input and precision == "fp32"
        return (0.0 if shared else 4.0 * self.width) + 8.0


# Batch normalisation of memory queries, as Lample et al. 2019 (arXiv 1907.05242) use it.


MOMENTUM = 0.1
"""Share of the newest pass in the running statistics."""
EPS = 1.0e-5

LEAK = "query batch norm measures a memory's queries over the whole batch, later tokens too"
"""Why a model with such a norm is not causal in training."""


class QueryBatchNorm(nn.Module):
    """Batch norm `(q - mean) / sqrt(variance + eps) * gain + bias` over all tokens and ranks.

    Source: Ioffe & Szegedy 2015 (arXiv 1502.03167). In training, mean and variance are the pass's
    own, so a micro batch is normalised by itself; every rank must make as many passes. In
    evaluation they are the running ones, into which each training pass enters with `MOMENTUM`. A
    column that does not vary becomes its bias. Written for queries that are never padded: padding
    would enter the statistics.
    """

    PARAM_GROUP: ClassVar[str] = "norm"
    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def forward(self, query: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens width"]:
        """Return the normalised queries, fp32 or wider."""
        query = query.to(torch.promote_types(query.dtype, torch.float32))
        if not self.training:
            return functional.batch_norm(
                query, self.running_mean, self.running_variance, self.gain, self.bias, eps=EPS
            )
        normalised, mean, variance, tokens = _Normalise.apply(  # type: ignore[no-untyped-call]
            query, self.gain, self.bias
        )
        with torch.no_grad():
            unbiased = variance * tokens / (tokens - 1.0).clamp_min(1.0)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), MOMENTUM)
            self.running_variance.lerp_(unbiased.to(self.running_variance.dtype), MOMENTUM)
        output: Tensor = normalised
        return output

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write ones (gain, running variance) or zeros."""
        value.fill_(1.0 if name in ("gain", "running_variance") else 0.0)


class _Normalise(torch.autograd.Function):
    """Statistics over the tokens of all ranks, and what depends on them.

    Written out, because a rank's statistics reach the losses of the others, and because autograd
    would keep the queries three times over. The variance is that of the centred queries: the
    difference of two means of squares would lose it where the mean is large. With n the normalised
    queries, g the gradient of the output and <> the mean over all tokens, the gradient of the
    queries is `gain / std * (g - <g> - n <g n>)`.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, gain: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        total = torch.cat((query.sum(0), query.new_full((1,), len(query))))
        all_reduce_default_group(total)
        tokens = total[-1]
        mean = total[:-1] / tokens
        centred = query - mean
        variance = torch.linalg.vector_norm(centred, dim=0).square()
        all_reduce_default_group(variance)
        variance /= tokens
        inverse_std = (variance + EPS).rsqrt()
        normalised = centred.mul_(inverse_std)
        ctx.save_for_backward(normalised, inverse_std, gain, tokens)
        ctx.mark_non_differentiable(mean, variance, tokens)
        return torch.addcmul(bias, normalised, gain), mean, variance, tokens

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normalised, inverse_std, gain, tokens = ctx.saved_tensors
        grad = grads[0]
        # This rank's own; the trainer adds up the gradients of parameters.
        own = torch.stack((grad.sum(0), (grad * normalised).sum(0)))
        everywhere = own.clone()
        all_reduce_default_group(everywhere)
        shift, scale = everywhere / tokens
        query_grad = (grad - shift).addcmul_(normalised, scale, value=-1.0).mul_(gain * inverse_std)
        return query_grad, own[1], own[0]


# Root-mean-square normalisation.


class RMSNorm(nn.Module):
    """`x / rms(x) * gain` over the last dimension.

    Source: Zhang & Sennrich 2019 (arXiv 1910.07467).
    """

    PARAM_GROUP: ClassVar[str] = "norm"

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return the normalised `x` in its own type, computed in fp32 or wider."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        gain = self.gain.to(wide.dtype)
        return functional.rms_norm(wide, gain.shape, gain, self.eps).to(x.dtype)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write ones."""
        value.fill_(1.0)


@dataclass(frozen=True, kw_only=True)
class RMSNormComponent(Component):
    """A norm of the residual stream."""

    width: int

    def param_count(self) -> ParamCount:
        """Count the gains."""
        return ParamCount(norm=self.width)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Return nothing: norms are not counted."""
        return FlopCount()

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input, normalised input and inverse root mean square, all fp32."""
        return 8.0 * self.width + 4.0
