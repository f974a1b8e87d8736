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


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep compiled kernels until all tests have run: a process loads some of them from there later on.

    A trial would keep them in its own folder, which goes with its test.
    """
    folder = tmp_path_factory.mktemp("compiled")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))


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
