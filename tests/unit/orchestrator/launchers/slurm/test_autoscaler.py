"""How many pilots: examples, and properties of the packing."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.launchers.slurm.autoscaler import (
    IDLE_S,
    PilotPool,
    ScalingDecision,
    decide,
    first_fit_nodes,
)
from orchestrator.scheduling.demand import Demand

NODE = Demand(cpus=8, gpus=4.0)


def seen(*, nodes=1, empty=0, idle=None, coming=(), waiting=()):
    return PilotPool(
        nodes=nodes,
        empty=empty,
        idle_since=idle or {},
        coming=coming,
        waiting=waiting,
        capacity=NODE,
    )


def test_asks_for_what_waits_up_to_the_limit():
    waiting = [Demand(cpus=1, gpus=4.0)] * 5
    assert decide(seen(waiting=waiting), max_nodes=8, now=0.0) == ScalingDecision(ask=5)
    assert decide(seen(waiting=waiting), max_nodes=4, now=0.0) == ScalingDecision(ask=3)
    assert decide(
        seen(waiting=waiting, coming=["1", "2"]), max_nodes=8, now=0.0
    ) == ScalingDecision(ask=3)
    assert (
        decide(seen(waiting=waiting, coming=["1"] * 5), max_nodes=8, now=0.0) == ScalingDecision()
    )
    assert decide(seen(nodes=4, waiting=waiting), max_nodes=4, now=0.0) == ScalingDecision()


def test_gives_back_what_stands_idle_and_takes_back_what_did_not_come():
    idle = {"a-0": 0.0, "b-0": 10.0}
    assert decide(seen(idle=idle), max_nodes=8, now=IDLE_S - 1) == ScalingDecision()
    assert decide(seen(idle=idle), max_nodes=8, now=IDLE_S + 1) == ScalingDecision(release=("a-0",))
    assert decide(seen(coming=["9"]), max_nodes=8, now=0.0) == ScalingDecision(withdraw=("9",))


def test_keeps_everything_while_something_waits():
    waiting = [Demand(cpus=1, gpus=0.25)]
    step = decide(seen(idle={"a-0": 0.0}, waiting=waiting, nodes=8), max_nodes=8, now=1e6)
    assert step == ScalingDecision()


def test_what_no_node_holds_asks_for_none_and_keeps_none():
    waiting = [Demand(cpus=1, gpus=8.0), Demand(cpus=9)]
    assert decide(seen(waiting=waiting), max_nodes=8, now=0.0) == ScalingDecision()
    step = decide(seen(idle={"a-0": 0.0}, waiting=waiting), max_nodes=8, now=IDLE_S)
    assert step == ScalingDecision(release=("a-0",))


def test_a_gang_asks_for_the_whole_nodes_that_hold_it_and_no_more_than_there_may_be():
    gang = Demand(cpus=16, gpus=16.0, gang_size=16)
    assert decide(seen(waiting=[gang]), max_nodes=8, now=0.0) == ScalingDecision(ask=4)
    assert decide(seen(waiting=[gang, gang]), max_nodes=8, now=0.0) == ScalingDecision(ask=7)
    assert decide(seen(waiting=[gang, Demand(cpus=1, gpus=1.0)]), max_nodes=8, now=0.0).ask == 5
    # Of four nodes one is there and empty; a single-node trial beside the gang gets none of it.
    assert decide(seen(empty=1, waiting=[gang]), max_nodes=8, now=0.0) == ScalingDecision(ask=3)
    small = Demand(cpus=1, gpus=1.0)
    assert decide(seen(empty=1, waiting=[small]), max_nodes=8, now=0.0) == ScalingDecision(ask=1)
    # By cores: two ranks of five fit no node of eight together.
    assert decide(seen(waiting=[Demand(cpus=10, gang_size=2)]), max_nodes=8, now=0.0).ask == 2
    # Three nodes are all that there may ever be.
    assert decide(seen(waiting=[gang]), max_nodes=3, now=0.0) == ScalingDecision()


demands = st.builds(
    lambda cpus, gpus: Demand(cpus=cpus, gpus=gpus),
    st.integers(1, 10),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 6.0]),
)


@given(st.lists(demands, max_size=30), st.integers(1, 50))
def test_enough_nodes_and_not_twice_too_many(waiting, most):
    n = first_fit_nodes(waiting, NODE, most=most)

    fit = [d for d in waiting if d.cpus <= NODE.cpus and d.units <= NODE.units]
    share = [max(d.cpus / NODE.cpus, d.units / NODE.units) for d in fit]
    assert n <= min(most, len(fit))
    assert n >= min(most, max(sum(d.cpus for d in fit) / NODE.cpus, sum(d.gpus for d in fit) / 4))
    # What lies on two nodes that first fit opened does not fit on one, in cores or in GPUs.
    assert n <= 2 * 2 * sum(share) + 1
