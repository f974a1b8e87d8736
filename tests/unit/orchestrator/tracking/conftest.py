"""A sweep on disk and a tracker in memory."""

import importlib.util
from pathlib import Path

import pytest


def load(name):
    """Import a module that lies beside this file: tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


disk_sweep, fake_store = load("disk_sweep"), load("fake_store")


@pytest.fixture
def disk():
    """The module that writes sweeps."""
    return disk_sweep


@pytest.fixture
def sweep(tmp_path):
    return disk_sweep.DiskSweep(tmp_path / "runs")


@pytest.fixture
def store():
    return fake_store.FakeStore()


@pytest.fixture
def new_store():
    return fake_store.FakeStore
