from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.training.step.phase_timer import HostEvent, PhaseTimer

PHASES = st.lists(st.sampled_from(["forward", "backward", "optimizer"]), min_size=1, max_size=12)


@given(steps=st.lists(PHASES, min_size=1, max_size=4))
def test_phases_add_up_to_the_step_and_each_counts_as_often_as_it_came(steps):
    ticks = count()
    timer = PhaseTimer(lambda: HostEvent(lambda: float(next(ticks))))
    timer.wanted = True
    for phases in steps:
        for phase in phases:
            timer.begin(phase)
        timer.begin(None)
        next(ticks)  # between two steps nothing is timed
        timer.read()

    expected = {name: sum(step.count(name) for step in steps) for step in steps for name in step}
    assert timer.mean_s() == pytest.approx({n: k / len(steps) for n, k in expected.items()})
    assert timer.mean_s() == {}


def test_a_step_that_is_not_wanted_makes_no_event():
    def never():
        raise AssertionError("an event was made")

    timer = PhaseTimer(never)
    timer.begin("forward")
    timer.begin(None)
    timer.add("data", 1.0)
    timer.read()

    assert timer.mean_s() == {}


def test_a_replayed_graph_brings_its_own_bounds():
    ticks = count()
    timer = PhaseTimer(lambda: HostEvent(lambda: float(next(ticks))))
    timer.wanted = True
    timer.begin("forward")
    timer.begin(None)
    bounds = timer.take()  # captured: nothing ran
    timer.extend(bounds)
    timer.begin("optimizer")  # after the graph
    timer.begin(None)
    timer.read()

    assert timer.mean_s() == {"forward": 1.0, "optimizer": 1.0}
