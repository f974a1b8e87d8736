"""Settings of all tests."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples every time, so that a red run is red for everybody; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill fresh buffers with NaN or the largest integer, so that an element that nobody wrote shows."""
    import torch

    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
