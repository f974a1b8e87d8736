"""Gated bag in plain torch: the definition, and the CPU path."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.gathered_dot.reference import gathered_dot
from workloads.kernels.weighted_bag.reference import weighted_bag


def gated_bag(
    values: Float[Tensor, "rows width"],
    pre_values: Float[Tensor, "rows pre_width"],
    ids: Int[Tensor, "bags bag_size"],
    scores: Float[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags pre_width"],
) -> tuple[Float[Tensor, "bags width"], Float[Tensor, "bags bag_size"]]:
    """Return `y[b] = sum_g weights[b, g] * values[ids[b, g]]`, and the weights.

    `weights[b, g] = scores[b, g] * (pre_values[ids[b, g]] . x[b])`. Gradients reach all but the
    ids, and only through the first output. Source: Huang et al. 2025 (arXiv 2508.18756).
    """
    weights = scores * gathered_dot(pre_values, ids, x)
    return weighted_bag(values, ids, weights.to(values.dtype)), weights.detach()
