"""Batch normalisation of memory queries, as Lample et al. 2019 (arXiv 1907.05242) use it."""

from typing import ClassVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional

MOMENTUM = 0.1
"""Share of the newest batch in the running statistics."""
EPS = 1.0e-5


class QueryBatchNorm(nn.Module):
    """Columns with mean 0 and variance 1 over all tokens of a pass, on all ranks, times gain plus bias.

    In evaluation the running mean and variance are used. Written for queries that are never padded: padding would
    enter the statistics.
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
        sums = torch.stack((query.sum(0), query.square().sum(0)))
        tokens = torch.tensor(float(len(query)), dtype=query.dtype, device=query.device)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            sums = all_reduce(sums)
            dist.all_reduce(tokens)
        mean, square = sums / tokens
        variance = (square - mean.square()).clamp_min(0.0)
        with torch.no_grad():
            unbiased = variance * tokens / (tokens - 1).clamp_min(1.0)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), MOMENTUM)
            self.running_variance.lerp_(unbiased.to(self.running_variance.dtype), MOMENTUM)
        return (query - mean) * (variance + EPS).rsqrt() * self.gain + self.bias

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write ones (gain, running variance) or zeros."""
        value.fill_(1.0 if name in ("gain", "running_variance") else 0.0)
