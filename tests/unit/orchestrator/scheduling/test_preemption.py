"""Which trials make way: as few as needed, on the right nodes, the latest first."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.fair_share import Amounts, Grant, SweepUsage, grant
from orchestrator.scheduling.preemption import PreemptionCandidate, trials_to_preempt


def running(number: int, *, node: str = "a", cpus: int = 1, **more: object) -> PreemptionCandidate:
    return PreemptionCandidate(
        trial_id=str(number),
        demand=Demand(cpus=cpus),
        node_ids=[node],
        started_at=float(number),
        **more,  # type: ignore[arg-type]
    )


def test_a_share_alone_takes_nothing_away() -> None:
    """A sweep of the same priority waits until a trial ends."""
    own = SweepUsage(sweep="o", holds_cpus=4, wants_cpus=4)
    equal = SweepUsage(sweep="e", wants_cpus=4)
    higher = SweepUsage(sweep="h", wants_cpus=4, priority=1)
    four = [running(i) for i in range(4)]

    assert trials_to_preempt(four, grant(own, [equal], gpus=0, cpus=4)) == []
    assert len(trials_to_preempt(four, grant(own, [higher], gpus=0, cpus=4))) == 4
    assert trials_to_preempt(four, grant(own, [higher], gpus=0, cpus=8)) == []


def test_kept_nodes_first_then_the_latest_and_those_that_leave_count() -> None:
    trials = [running(0, node="kept"), running(1), running(2), running(3, stopping=True)]
    granted = Grant(cpus=1.0, closed=frozenset(["kept"]), lacking=Amounts(0.0, 3.0))

    assert trials_to_preempt(trials, granted) == ["0", "2"]
    assert trials_to_preempt(trials[1:], granted) == ["2"]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_as_few_as_make_up_for_what_is_lacking(
    trials: list[tuple[int, bool]], share: int, lacking: int
) -> None:
    own = [running(i, cpus=cpus, stopping=leaves) for i, (cpus, leaves) in enumerate(trials)]
    granted = Grant(cpus=float(share), lacking=Amounts(0.0, float(lacking)))

    chosen = trials_to_preempt(own, granted)

    cpus = {one.trial_id: one.demand.cpus for one in own}
    leaving = sum(one.demand.cpus for one in own if one.stopping)
    staying = sum(one.demand.cpus for one in own if not one.stopping)
    freed = sum(cpus[trial_id] for trial_id in chosen)
    assert not any(one.stopping for one in own if one.trial_id in chosen)
    assert freed + leaving >= lacking or staying - freed <= share
    if chosen:  # without the last of them it would not have been enough
        before = freed - cpus[chosen[-1]]
        assert before + leaving < lacking
        assert staying - before > share
