"""Several sweeps on one cluster: the published example of fair shares, what always holds, and who comes first."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.fair_share import Grant, SweepUsage, fair_shares, grant
from orchestrator.scheduling.interface import Running, Snapshot, schedule
from orchestrator.scheduling.wait_queue import Waiting


def wanting(sweep, gpus, cpus, **fields):
    return SweepUsage(sweep=sweep, wants_gpus=gpus, wants_cpus=cpus, **fields)


def test_the_example_of_the_paper():
    """Ghodsi et al. 2011, section 4.1: 9 cores and 18 GB; tasks of <1 core, 4 GB> and of <3 cores, 1 GB>: 3 and 2 of them."""
    memory_heavy, core_heavy = wanting("a", 400, 100), wanting("b", 100, 300)

    shares = fair_shares([memory_heavy, core_heavy], gpus=18, cpus=9)

    assert shares == [pytest.approx((12, 3)), pytest.approx((2, 6))]


def test_what_one_does_not_want_the_others_have_and_weights_count():
    few, many = wanting("few", 2, 2), wanting("many", 100, 100)
    assert fair_shares([few, many], gpus=8, cpus=64) == [
        pytest.approx((2, 2)),
        pytest.approx((6, 6)),
    ]
    heavy = replace(many, weight=3.0)
    assert fair_shares([many, heavy], gpus=8, cpus=64) == [
        pytest.approx((2, 2)),
        pytest.approx((6, 6)),
    ]


def test_sweeps_that_use_different_things_hardly_disturb_each_other():
    """Equal dominant shares x: of the cores x + x / 8 are used, so x is 8/9."""
    on_cpu, on_gpu = wanting("cpu", 0, 100), wanting("gpu", 8, 8)

    assert fair_shares([on_cpu, on_gpu], gpus=8, cpus=64) == [
        pytest.approx((0, 64 * 8 / 9)),
        pytest.approx((8 * 8 / 9, 8 * 8 / 9)),
    ]


def test_higher_priorities_take_what_they_want_first():
    urgent, other = wanting("u", 6, 6, priority=1), wanting("o", 100, 100)
    assert fair_shares([other, urgent], gpus=8, cpus=64) == [
        pytest.approx((2, 2)),
        pytest.approx((6, 6)),
    ]
    all_of_it = replace(urgent, wants_gpus=20, wants_cpus=20)
    (left, _), _ = fair_shares([other, all_of_it], gpus=8, cpus=64)
    assert left == pytest.approx(0)
    assert not grant(other, [all_of_it], gpus=8, cpus=64).allows(other, Demand(cpus=1, gpus=1))


usages = st.lists(
    st.builds(
        SweepUsage,
        priority=st.integers(0, 2),
        weight=st.sampled_from([0.5, 1.0, 2.0]),
        wants_gpus=st.sampled_from([0.0, 0.25, 1.0, 8.0, 100.0]),
        wants_cpus=st.integers(0, 300).map(float),
    ),
    min_size=1,
    max_size=6,
)


@given(usages, st.sampled_from([0, 4, 64]), st.integers(1, 256))
def test_no_more_is_dealt_out_than_there_is_and_nothing_that_somebody_could_use_is_left(
    usages, gpus, cpus
):
    shares = fair_shares(usages, gpus=gpus, cpus=cpus)

    wanted = [(s.wants_gpus if gpus else 0.0, s.wants_cpus) for s in usages]
    left = [size - sum(share[r] for share in shares) for r, size in enumerate((gpus, cpus))]
    assert min(left) >= -1e-6 * max(gpus, cpus)
    for share, want in zip(shares, wanted, strict=True):
        uses = [r for r in (0, 1) if want[r]]
        assert all(share[r] <= want[r] * (1 + 1e-6) for r in uses)
        satisfied = all(share[r] >= want[r] * (1 - 1e-6) for r in uses)
        assert satisfied or any(left[r] <= 1e-6 * max(gpus, cpus) for r in uses)


@given(usages, st.integers(1, 256))
def test_of_one_priority_nobody_unsatisfied_has_a_smaller_weighted_share_than_a_competitor(
    usages, cpus
):
    """With a single resource, max-min fairness: whoever has more per weight would have to be satisfied below that."""
    usages = [replace(s, wants_gpus=0.0) for s in usages]
    shares = [cores for _, cores in fair_shares(usages, gpus=0, cpus=cpus)]

    for one, mine in zip(usages, shares, strict=True):
        if mine < one.wants_cpus * (1 - 1e-6):
            for other, theirs in zip(usages, shares, strict=True):
                if other.priority == one.priority:
                    assert theirs / other.weight <= mine / one.weight + 1e-6 * cpus


def test_alone_everything_is_allowed():
    assert grant(SweepUsage(sweep="a", wants_cpus=9), [], gpus=0, cpus=4) == Grant(
        gpus=math.inf, cpus=math.inf
    )


def test_nodes_that_are_kept_are_closed_to_those_that_come_later():
    small = wanting("small", 8, 8, holds_gpus=4, holds_cpus=4, turn=7)
    large = wanting("large", 8, 8, keeps=("n1",), turn=3)

    assert grant(small, [large], gpus=8, cpus=64).closed == {"n1"}
    assert grant(large, [replace(small, keeps=("n2",))], gpus=8, cpus=64).closed == frozenset()
    # Between equals, who was served longer ago.
    even = replace(small, holds_gpus=0, holds_cpus=0)
    assert grant(even, [large], gpus=8, cpus=64).closed == {"n1"}
    assert grant(replace(even, turn=1), [large], gpus=8, cpus=64).closed == frozenset()


def test_whoever_holds_less_for_its_weight_comes_first():
    """Three GPUs at weight 4 are less of a share than one at weight 1."""
    heavy = wanting("heavy", 8, 8, holds_gpus=3, holds_cpus=3, weight=4.0, keeps=("h",), turn=9)
    light = wanting("light", 8, 8, holds_gpus=1, holds_cpus=1, keeps=("l",))

    assert grant(light, [heavy], gpus=8, cpus=64).closed == {"h"}
    assert grant(heavy, [light], gpus=8, cpus=64).closed == frozenset()


def test_a_large_trial_of_one_sweep_is_not_starved_by_small_ones_of_another():
    """Two controllers that decide by themselves on one node of eight GPUs; trials of one GPU end one by one."""
    node = Node(node_id="n", host="n", cpus=64, gpus=tuple("01234567"))
    small = {f"small-{i}": i for i in range(8)}  # id -> when it ends
    held, large_started = dict(small), None
    turn = {"small": 8, "large": 0}
    kept = ()
    for now in range(60):
        for trial_id in [t for t, end in held.items() if end <= now]:
            del held[trial_id]
        running = [
            Running(
                trial_id=t,
                node_id="n",
                demand=Demand(cpus=1, gpus=1.0),
                gpus=(gpu,),
                predicted_end=end,
            )
            for gpu, (t, end) in zip(node.gpus, held.items(), strict=False)
        ]
        many = wanting(
            "small", 100, 100, holds_gpus=len(held), holds_cpus=len(held), turn=turn["small"]
        )
        one = wanting("large", 8, 8, keeps=kept, turn=turn["large"])
        # The large sweep's controller.
        waits = Waiting(trial_id="large", demand=Demand(cpus=8, gpus=8.0), predicted_s=10)
        decided = schedule(Snapshot(nodes=[node], running=running, waiting=[waits]), now)
        kept = decided.reserved_nodes
        if decided.placements and grant(one, [many], gpus=8, cpus=64).allows(
            one, Demand(cpus=1, gpus=8)
        ):
            large_started = now
            break
        # The small sweep's: a trial of ten seconds for every GPU that it may take.
        granted = grant(many, [one], gpus=8, cpus=64)
        while (
            len(held) < 8
            and granted.allows(many, Demand(cpus=1, gpus=1))
            and "n" not in granted.closed
        ):
            held[f"small-{now}-{len(held)}"] = now + 10
            many = replace(many, holds_gpus=len(held), holds_cpus=len(held))
    assert large_started is not None
    assert large_started <= 8
