"""What GPU tests share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch


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
