"""Memory layout of random features and heads: padded columns, tokens apart."""

from jaxtyping import Float
from torch import Tensor


def padded_features(n_features: int) -> int:
    """Return the columns that features have in memory: a power of 2, as tiles have."""
    return max(128, 1 << (n_features - 1).bit_length())


def empty_by_token(x: Float[Tensor, "batch heads seq d_head"]) -> Tensor:
    """Return open numbers as linear maps read and write them: all heads of a token side by side."""
    batch, heads, seq, width = x.shape
    return x.new_empty(batch, seq, heads, width).transpose(1, 2)
