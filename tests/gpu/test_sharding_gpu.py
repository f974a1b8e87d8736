"""What `tests/unit/workloads/sharding` checks on CPUs, on GPUs that talk through NCCL."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "unit" / "workloads" / "sharding"
_spec = importlib.util.spec_from_file_location(
    "together_on_cpus", FOLDER / "test_ranks_together.py"
)
assert _spec is not None
assert _spec.loader is not None
cpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cpus)


@pytest.mark.parametrize("group", ["some", "training"])
@pytest.mark.parametrize("size", [2, 4])
def test_gpus_together_find_what_one_finds(tmp_path, size, group):
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs, there are {torch.cuda.device_count()}")

    found = cpus.found_by(tmp_path, group, size, device="cuda")[str(size)]

    assert len(found) > 100
    assert not cpus.too_far(found)


def test_gpus_read_together_in_one_graph(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, there are {torch.cuda.device_count()}")

    found = cpus.found_by(tmp_path, "compiled", 2, device="cuda")["2"]

    assert len(found) == 30
    assert not cpus.too_far(found)
