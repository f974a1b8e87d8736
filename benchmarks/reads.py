"""Which rows are read: evenly drawn, or a few of them most of the time."""

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["uniform", "zipf"]
EXPONENT = 1.05


def draw_ids(
    kind: Kind,
    *shape: int,
    n_rows: int,
    device: torch.device | str = "cuda",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return row numbers, int32.

    Zipf: the k-th most read row in proportion to k ** -1.05, rows in random order.
    """
    draw = {"generator": generator, "device": device}
    if kind == "uniform":
        return torch.randint(n_rows, shape, dtype=torch.int32, **draw)
    share = torch.arange(1, n_rows + 1, device=device, dtype=torch.float64) ** -EXPONENT
    below = (share / share.sum()).cumsum(0)
    ranks = torch.searchsorted(below, torch.rand(shape, dtype=torch.float64, **draw))
    return torch.randperm(n_rows, dtype=torch.int32, **draw)[ranks.clamp_max(n_rows - 1)]
