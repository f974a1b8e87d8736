"""The one entry to product-key selection."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk import reference


def product_key_topk(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of the best `knn` of n_keys**2 slots (`reference.product_key_topk`).

    On CUDA by Triton kernels, which a CPU build of torch comes without, up to 64 slots of 4,096 sub-keys a half.
    """
    if query.is_cuda:
        from workloads.kernels.product_key_topk import triton as kernels

        if kernels.applies(query, sub_keys, knn):
            return kernels.product_key_topk(query, sub_keys, knn)
    return reference.product_key_topk(query, sub_keys, knn)
