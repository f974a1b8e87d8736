import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.scheduling.demand import UNIT, Demand, share_units
from orchestrator.scheduling.gpu_sharing import (
    CONTEXT_BYTES,
    MARGIN,
    STEP_BYTES,
    MemoryObservations,
    enlarged_share,
    largest_peak,
    max_enlargements,
    memory_fraction_per_rank,
    memory_need,
    ranks_per_gpu,
)

GB = 1e9


@given(st.floats(1, 1e12))
def test_need_is_what_was_measured_and_a_margin_rounded_up(measured):
    need = memory_need(measured)
    least = MARGIN * measured + CONTEXT_BYTES

    assert least <= need <= least + STEP_BYTES
    assert need % STEP_BYTES == 0
    assert 2 * least <= memory_need(measured, ranks=2) <= 2 * least + STEP_BYTES


@given(memory=st.floats(2 * GB, 1e12), ranks=st.integers(1, 8))
def test_the_largest_peak_is_the_last_one_that_a_gpu_has_room_for(memory, ranks):
    peak = largest_peak(memory, ranks=ranks)

    assert peak == 0 or memory_need(0.999999 * peak, ranks=ranks) <= memory
    assert memory_need(1.000001 * peak + 1, ranks=ranks) > memory - STEP_BYTES


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100 * GB)), max_size=12),
    st.floats(10 * GB, 200 * GB),
)
def test_shares_that_fill_a_gpu_never_fill_more_than_its_memory(trials, memory):
    full = 0
    used = 0.0
    for gpus, need in trials:
        units = share_units(Demand(cpus=1, gpus=gpus, gpu_memory_bytes=need), memory)
        assert units >= round(gpus * UNIT)
        if full + units <= UNIT:
            full, used = full + units, used + need

    assert used <= memory * (1 + 1e-9)


def test_share_is_what_is_asked_unless_memory_needs_more():
    demand = Demand(cpus=1, gpus=0.25, gpu_memory_bytes=30 * GB)

    assert share_units(demand, 200 * GB) == UNIT // 4
    assert share_units(demand, 60 * GB) == UNIT // 2
    assert share_units(demand, None) == UNIT // 4
    assert share_units(demand, 20 * GB) > UNIT


def test_out_of_memory_doubles_a_share_then_takes_the_whole_gpu():
    assert [enlarged_share(0.25, times=n) for n in range(4)] == [0.25, 0.5, 1.0, 1.0]
    assert enlarged_share(0.6, times=1) == 1.0


def test_max_enlargements_counts_those_that_change_the_share():
    for gpus in (0.1, 0.25, 0.5, 0.7):
        sizes = [enlarged_share(gpus, times=n) for n in range(5)]
        assert len(set(sizes)) == 1 + max_enlargements(gpus)
    assert max_enlargements("auto") == max_enlargements(0) == max_enlargements(1.0) == 0


def test_ranks_on_a_gpu_are_counted_at_the_fullest():
    assert [ranks_per_gpu(*x) for x in ((1, 0.5), (4, 0.5), (4, 4), (3, 2), (1, 8))] == [
        1,
        4,
        1,
        2,
        1,
    ]


@pytest.mark.parametrize("gpus", [0.0, 1.0, 8.0])
def test_whole_gpus_stay_what_they_are(gpus):
    assert enlarged_share(gpus, times=3) == gpus


def test_processes_are_capped_at_their_part_of_the_share():
    assert memory_fraction_per_rank(0.5, 1) == 0.5
    assert memory_fraction_per_rank(0.5, 2) == 0.25
    assert memory_fraction_per_rank(8.0, 1) == 1.0


def test_memory_is_reserved_for_the_largest_peak_of_a_configuration():
    memory = MemoryObservations()
    assert memory.reserved_bytes("a") == 0

    memory.observe_peak("a", 10 * GB)
    memory.observe_peak("a", 12 * GB)
    memory.observe_peak("a", 3 * GB)

    assert memory.reserved_bytes("a") == memory_need(12 * GB)
    assert memory.reserved_bytes("b") == 0
    assert memory.reserved_bytes("a", ranks=2) == memory_need(12 * GB, ranks=2)


def test_ooms_are_counted_per_configuration():
    memory = MemoryObservations()
    memory.observe_ooms("a", 2)
    memory.observe_ooms("a", 1)

    assert (memory.n_ooms("a"), memory.n_ooms("b")) == (2, 0)
