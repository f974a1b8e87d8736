"""Rectangular blocks of sharded tensors, of any number of dimensions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TensorBlock:
    """One rank's block of a sharded tensor.

    Blocks of one tensor are equal or do not overlap, and cover it together.
    """

    whole: tuple[int, ...]
    """Shape of the tensor."""
    offsets: tuple[int, ...]
    """Where in it the block begins, by dimension."""
    tensor: Tensor
    """The numbers of the block, in its shape; it may be empty."""


class SavedTensor(ABC):
    """A sharded tensor in a checkpoint, of which any rectangle can be read."""

    whole: tuple[int, ...]
    """Shape of the tensor."""

    @abstractmethod
    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Return the rectangle that begins at `offsets` and has the shape `sizes`, on the CPU."""
