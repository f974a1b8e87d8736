"""What `tests/unit/workloads/sharding/test_fsdp.py` checks on CPUs, on GPUs that talk through NCCL; and their memory."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

FOLDER = Path(__file__).parents[1] / "unit" / "workloads" / "sharding"
_spec = importlib.util.spec_from_file_location("dense_on_cpus", FOLDER / "test_fsdp.py")
assert _spec is not None
assert _spec.loader is not None
cpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cpus)


def skip_without(size):
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs, there are {torch.cuda.device_count()}")


@pytest.mark.parametrize("size", [2, 4])
def test_gpus_that_shard_dense_parameters_find_what_one_finds(tmp_path, size):
    skip_without(size)

    found = cpus.found_by(tmp_path, "dense", size, device="cuda")[str(size)]

    assert len({name.rpartition("/")[0] for name in found}) == {2: 3, 4: 5}[size]
    assert not cpus.too_far(found)


def test_a_gpu_holds_little_more_than_its_share(tmp_path):
    skip_without(2)

    found = cpus.found_by(tmp_path, "dense_memory", 2, device="cuda")["2"]

    # 16 bytes a parameter and 2 of its copy, against 8 and what is gathered of a block at a time.
    assert found["memory/sharded_over_replicated"] < 0.75


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("table_optimizer", ["adamw", "lazy_adamw"])
def test_a_trial_goes_on_with_other_ranks_and_layouts(tmp_path, table_optimizer, size):
    """Checkpoints of tables and dense parameters that GPUs share out, written and read by ranks that talk through NCCL.

    Of four ranks, two and two hold one copy of the tables first, then all four.
    """
    skip_without(size)
    how = {"device": "cuda", "table_optimizer": table_optimizer}
    stages = [
        cpus.stage("alone", 1, "replicated", None, **how),
        cpus.stage("moving", size, "sharded", 2, memory_ranks=2, **how),
        cpus.stage("moving", size, "replicated", 4, memory_ranks=size, layout="rows", **how),
        cpus.stage("moving", size // 2, "sharded", 5, **how),
        cpus.stage("moving", size, "sharded", None, memory_ranks=size // 2, **how),
    ]

    metrics = cpus.trained_in(tmp_path, stages)

    cpus.assert_ended_alike(tmp_path, "alone", "moving", metrics[0], metrics[-1])
