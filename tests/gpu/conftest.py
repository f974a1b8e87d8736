"""What GPU tests share."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from orchestrator.node import hardware

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
GPUS = hardware.visible_gpus()
if len(GPUS) > 1:
    # Of several test processes (`make test-gpu TEST_ARGS="-n 8"`) each begins with another GPU. Said
    # before torch looks at any.
    first = int(WORKER.removeprefix("gw")) % len(GPUS)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(GPUS[first:] + GPUS[:first])


@contextmanager
def _never_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def never_waiting() -> Callable[[], AbstractContextManager[None]]:
    """Return a context within which torch raises where the host waits for the GPU. What compiles runs once before."""
    return _never_waiting
