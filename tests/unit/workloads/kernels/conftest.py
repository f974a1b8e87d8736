"""What tests of kernels that gather rows of a table begin with."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

Shape = tuple[int, int, int, int]


class Gather(NamedTuple):
    """Random numbers of one case; all but the ids want gradients."""

    table: Float[Tensor, "rows width"]
    ids: Int[Tensor, "bags bag_size"]
    per_row: Float[Tensor, "bags bag_size"]
    """A weight, or the gradient of a product, for every row named."""
    per_bag: Float[Tensor, "bags width"]


@pytest.fixture(
    params=[(1, 1, 1, 1), (7, 5, 3, 2), (13, 1, 11, 17), (64, 24, 37, 16), (1000, 3, 5, 128)],
    ids=str,
)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Rows, width, bags and rows per bag."""
    found: Shape = request.param
    return found


@pytest.fixture
def make_gather() -> Callable[[Shape, torch.dtype], Gather]:
    """Draw a case of a shape (rows, width, bags, rows per bag) and type."""

    def make(shape: Shape, dtype: torch.dtype) -> Gather:
        rows, width, bags, bag_size = shape
        generator = torch.Generator().manual_seed(sum(shape))

        def draw(*sizes: int) -> Tensor:
            return torch.randn(sizes, dtype=dtype, generator=generator, requires_grad=True)

        return Gather(
            table=draw(rows, width),
            ids=torch.randint(rows, (bags, bag_size), generator=generator),
            per_row=draw(bags, bag_size),
            per_bag=draw(bags, width),
        )

    return make
