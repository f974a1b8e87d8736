"""Checks that several architectures' tests use."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workloads.layers.initialise import initialise

VOCAB_SIZE = 7


@pytest.fixture
def check_gradients() -> Callable[[Any], None]:
    """Compare a tiny model's gradients with central differences of its loss, in float64.

    Every parameter in turn, along one random direction that all of its numbers take part in.
    """

    def check(config: Any) -> None:
        model = config.build(VOCAB_SIZE)
        initialise(model, 0)
        model = model.double()
        names, parameters = zip(*model.named_parameters(), strict=True)
        tokens = torch.randint(VOCAB_SIZE, (2, 6), generator=torch.Generator().manual_seed(0))

        def loss(*values: Tensor) -> Tensor:
            weights = dict(zip(names, values, strict=True))
            logits = torch.func.functional_call(model, weights, (tokens[:, :-1],))
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

        assert torch.autograd.gradcheck(
            loss, parameters, eps=1e-6, atol=1e-8, rtol=1e-5, fast_mode=True
        )

    return check
