"""The type in which autocast computes products."""

import torch
from jaxtyping import Float
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return autocast's type on the device of `x`, the type of `x` where there is no autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def to_autocast_dtype(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `x` in the type that a product with a matrix would give it (`autocast_dtype`)."""
    return x.to(autocast_dtype(x))
