"""Settings of all tests."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Before torch is there: models here are so small that a second thread only waits, and test processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples every time, so that a red run is red for everybody; HYPOTHESIS_PROFILE=explore looks for new ones.
# How long one takes is no test: it depends on what else the machine does.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill fresh buffers with NaN or the largest integer, so that an element that nobody wrote shows."""
    import torch

    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
