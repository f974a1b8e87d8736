"""Matrix products in fp32, as tensor cores sum them."""

import torch
from torch import Tensor


def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices, or of batches of them, as summed: in fp32 or wider."""
    dtype = torch.promote_types(left.dtype, torch.float32)
    if left.dtype == dtype:
        return left @ right
    if not left.is_cuda:  # torch has no such product there
        return left.to(dtype) @ right.to(dtype)
    product = torch.mm if left.dim() == 2 else torch.bmm
    return product(left, right, out_dtype=dtype)
