"""What several tests measure."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture
def bytes_kept() -> Callable[[nn.Module, Tensor, str], int]:
    """Return the bytes of all storages, but for parameters, that autograd keeps after a forward pass."""

    def measure(model: nn.Module, tokens: Tensor, precision: str) -> int:
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                kept[storage.data_ptr()] = storage
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
        ):
            model(tokens)
        return sum(storage.nbytes() for storage in kept.values())

    return measure
