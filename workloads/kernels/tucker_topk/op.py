"""The one entry to Tucker-decomposed selection."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.tucker_topk import reference


def tucker_topk(
    row_scores: Float[Tensor, "heads rank tokens n_keys"],
    column_scores: Float[Tensor, "heads rank tokens n_keys"],
    core: Float[Tensor, "heads rank rank"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of about the best `knn` of n_keys**2 slots (`reference.tucker_topk`)."""
    return reference.tucker_topk(row_scores, column_scores, core, knn)
