"""A rectangle of a tensor that ranks share out, as it is saved and read: of any number of dimensions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TensorBlock:
    """What one rank holds of a tensor. Pieces of one tensor are alike or do not overlap, and cover it together."""

    whole: tuple[int, ...]
    """Shape of the tensor."""
    offsets: tuple[int, ...]
    """Where in it the piece begins, by dimension."""
    tensor: Tensor
    """The numbers of the piece, in its shape; it may be empty."""


class SavedTensor(ABC):
    """A tensor that was saved in pieces, of which any rectangle can be read."""

    whole: tuple[int, ...]
    """Shape of the tensor."""

    @abstractmethod
    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Return the rectangle that begins at `offsets` and has the shape `sizes`, on the CPU."""
