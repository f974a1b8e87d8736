"""The one entry to product-key selection."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk import reference


def product_key_topk(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of the best `knn` of n_keys**2 slots (`reference.product_key_topk`)."""
    return reference.product_key_topk(query, sub_keys, knn)
