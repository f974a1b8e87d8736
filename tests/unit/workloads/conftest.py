"""What several tests measure, and processes that act as ranks."""

import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any

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


@pytest.fixture(scope="session")
def run_ranks() -> Callable[[str, int, Mapping[str, Any]], None]:
    """Return a function that runs Python code in each of so many processes, as `rank`.

    They are forked from one process that has imported torch and the trainer, once for all tests:
    a rank that imports them itself takes four seconds of a core.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "workloads.training.train"])

    def run(code: str, size: int, variables: Mapping[str, Any]) -> None:
        processes = [
            context.Process(target=exec, args=(code, {**variables, "rank": rank}))
            for rank in range(size)
        ]
        with pytest.MonkeyPatch.context() as patch:
            # Ranks on one machine find each other by themselves.
            patch.delenv("GLOO_SOCKET_IFNAME", raising=False)
            for process in processes:
                process.start()
        try:
            for process in processes:
                process.join(timeout=280)
            assert [process.exitcode for process in processes] == [0] * size
        finally:
            for process in processes:
                process.kill()

    return run
