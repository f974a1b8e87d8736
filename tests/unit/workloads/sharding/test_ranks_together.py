"""Sharded tables on 1 to 4 ranks, against one process that holds everything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workloads.training.optimizer.table_optimizer import RULE_OF

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    "OMP_NUM_THREADS": "1",
}
"""Of processes that tests start: they find this code first, then what the tests found."""
SCRIPT = Path(__file__).with_name("ranks_together.py")
# The loss is computed, and what a compiler fuses may be, in fp32 whatever the model's type: then
# two orders of one sum differ as fp32 does. A compiled model that one process holds differs from
# itself by as much.
TOLERANCE = {
    "float64": 1e-12,
    **dict.fromkeys(("gathered", "checkpointed", "checkpointed_gathered"), 1e-12),
    **dict.fromkeys(("blocks", "blocks_checkpointed", "blocks_gathered", "blocks_lazy"), 1e-5),
    "float32": 1e-5,
    **dict.fromkeys(("compiled", "compiled_checkpointed", "compiled_lazy"), 1e-5),
    "bfloat16": 1e-2,
    **dict.fromkeys((*RULE_OF, "rowwise_previous", "checkpointed_lazy"), 1e-12),
    "rowwise_float32": 1e-5,
}
EXACT = (
    "repeats",
    "same_bits_in_one_piece",
    "same_bits",
    "dense_beside_deferred",
    "reads_elsewhere",
    "same_gradients",
    "counted",
    "initial",
    "never_clipped",
    "never_compiled",
)
LOSS = 1e-6


def found_by(
    folder: Path, group: str, *sizes: int, device: str = "cpu"
) -> dict[str, dict[str, float]]:
    out = folder / "found.json"
    subprocess.run(
        [sys.executable, str(SCRIPT), str(out), device, group, *map(str, sizes)],
        check=True,
        env=ENVIRONMENT,
        timeout=1500,
    )
    found: dict[str, dict[str, float]] = json.loads(out.read_text())
    return found


def too_far(found: dict[str, float]) -> dict[str, float]:
    """Return what is further from one process's than it may be."""
    allowed = {
        name: 0.0
        if name.endswith(EXACT)
        else LOSS
        if name.endswith("/loss")
        else TOLERANCE[name.split("/")[0]]
        for name in found
    }
    return {name: error for name, error in found.items() if not error <= allowed[name]}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return found_by(tmp_path_factory.mktemp("together"), "some", 1, 2, 3, 4)


# Whichever runs first waits for all ranks of all sizes: five minutes of one core.
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_read_gradient_and_ten_steps_are_one_processs(found, size):
    assert not too_far(found[str(size)])


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_of_it_was_compared(found, size):
    reads = {
        name.rpartition("/")[0]
        for name in found[str(size)]
        if name.count("/") == 4 and "x" not in name.split("/")[1]
    }
    assert len(reads) == 4 * 2 * (7 + 2 + 1)
    meshes = {name.split("/")[1] for name in found[str(size)] if name.endswith("/ten_steps")}
    assert meshes == {f"1x{size}"} | ({"2x2"} if size == 4 else set())


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_reads_of_any_batch_compile_to_one_graph(tmp_path):
    found = found_by(tmp_path, "compiled", 2)["2"]

    # Layouts, batches, and what is compared.
    assert len(found) == 2 * 3 * 5
    assert not too_far(found)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_model_trained_in_every_way_is_one_processs(tmp_path, size):
    found = found_by(tmp_path, "training", size)[str(size)]

    ways = {name.split("/")[0] for name in found}
    assert {"float64", "compiled", "compiled_checkpointed", "compiled_lazy", *RULE_OF} < ways
    assert not too_far(found)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_architecture_with_tables_is_one_processs(tmp_path):
    found = found_by(tmp_path, "architectures", 2)["2"]

    names = {name.split("/")[3] for name in found}
    assert {"memory", "peer", "memoryformer", "engram", "ultramem_v2"} < names
    assert not too_far(found)
