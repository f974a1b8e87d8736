"""Rows that come over the bus beside the computation are the ones of tables on the GPU, in every order of the two."""

from functools import partial

import pytest
import torch

from tests.unit.workloads.training.optimizer.test_row_prefetch import (
    BY_TOKEN,
    batches,
    engram_job,
    model_of,
    recorded,
    step_of,
    trained,
)
from workloads.checkpoint import checkpoint
from workloads.layers.memory.host_offload import empty_on_host
from workloads.layers.memory.host_rows import gather, items_of, scatter
from workloads.training.device import gpu_stream, numerics
from workloads.training.step.cuda_graph import CapturedStep, capture_if_possible

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
HERE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _as_trials_compute():
    with numerics(HERE, n_threads=1, bf16=False), gpu_stream(HERE):
        yield


@pytest.mark.parametrize(
    ("row", "dtype"), [((32,), torch.bfloat16), ((5,), torch.bfloat16), ((2500,), torch.float32)]
)
def test_the_cpu_copies_rows_of_tables_that_a_gpu_maps(row, dtype):
    table = empty_on_host(20_000, *row, dtype=dtype, device=HERE)
    table.copy_(torch.randn(20_000, *row))
    ids = torch.randperm(20_000)[:9000].sort().values
    before, rows = table.cpu(), torch.zeros(9000, *row, dtype=dtype)

    gather([items_of(table)], ids.int().numpy(), [items_of(rows)])
    assert torch.equal(rows, before[ids])

    scatter([items_of(rows + 1)], ids.int().numpy(), [items_of(table)])
    before[ids] = rows + 1
    assert torch.equal(table.cpu(), before)


@pytest.mark.parametrize("precision", ["bf16", "bf16_master"])
@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("name", BY_TOKEN)
def test_steps_have_the_bits_of_tables_on_the_gpu(name, captured, precision):
    """Norms apart: they add up the squares of all rows, or of those that are read."""
    ways = {"grad_clip": None, "table_precision": precision}
    found = []
    for place in ("device", "host"):
        step = step_of(model_of(name, place, here=HERE), **ways)
        if captured:
            step = capture_if_possible(step, bf16=False)
            assert isinstance(step, CapturedStep)
        found.append(trained(step, here=HERE))

    for expected, other in zip(*found, strict=True):
        if expected.ndim:
            assert torch.equal(expected, other)
        else:
            torch.testing.assert_close(expected, other, rtol=1e-5, atol=0)


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "compiled, captured"])
def test_numbers_do_not_depend_on_whether_rows_were_foreseen(captured):
    found = []
    for foresees in (False, True, True):
        model = model_of("engram", "host", here=HERE)
        model.recording_usage = not captured  # steps that record run uncompiled
        step = step_of(model, table_precision="bf16", compiled=captured)
        taken = capture_if_possible(step, bf16=False) if captured else step
        found.append(trained(taken, foresees=foresees, here=HERE))

    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_no_step_waits_for_the_host(never_waiting):
    step = capture_if_possible(step_of(model_of("engram", "host", here=HERE)), bf16=False)
    windows = batches(8, here=HERE)
    go = partial(step, lr=0.01)
    for number in range(5):
        go(windows[number], upcoming=windows[number + 1])
    with never_waiting():
        go(windows[5], upcoming=windows[6])
        go(windows[6], upcoming=windows[7])


def test_a_stopped_trial_goes_on_bit_for_bit(tmp_path):
    folders, cache = [tmp_path / "a", tmp_path / "b"], tmp_path / "cache"
    jobs = [engram_job(each, cache, "host", "bf16", device="cuda") for each in folders]

    whole = recorded(jobs[0])
    pieces = recorded(jobs[1], stop_at=2) | recorded(jobs[1])

    assert whole == pieces
    expected, found = (
        checkpoint.load(each / "checkpoints" / "final")["weights"] for each in folders
    )
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
