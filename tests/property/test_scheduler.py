"""Whatever the trials, predictions and nodes: nothing is over-committed, nobody starves, every wait has its reason."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.scheduling.demand import UNIT, Demand, Node
from orchestrator.scheduling.interface import Running, Snapshot, schedule
from orchestrator.scheduling.wait_queue import Waiting

GPU_SHARES = st.sampled_from([0.0, 0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0, 2.0, 4.0])
NODES = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4)), min_size=1, max_size=3).map(
    lambda sizes: tuple(
        Node(node_id=f"n{i}", host=f"n{i}", cpus=cpus, gpus=tuple(str(g) for g in range(gpus)))
        for i, (cpus, gpus) in enumerate(sizes)
    )
)
TRIALS = st.lists(
    st.tuples(st.integers(1, 8), GPU_SHARES, st.floats(0, 1000), st.floats(0.5, 2000)), max_size=14
).map(
    lambda rows: [
        (
            Waiting(trial_id=f"t{i}", demand=Demand(cpus=cpus, gpus=gpus), predicted_s=predicted),
            real,
        )
        for i, (cpus, gpus, predicted, real) in enumerate(rows)
    ]
)


def start(placement, waiting, now):
    trial = next(t for t in waiting if t.trial_id == placement.trial_id)
    return Running(
        trial_id=trial.trial_id,
        node_id=placement.node_id,
        demand=trial.demand,
        gpus=placement.gpus,
        predicted_end=now + trial.predicted_s,
    )


def assert_within(nodes, running):
    for node in nodes:
        held = [r for r in running if r.node_id == node.node_id]
        assert sum(r.demand.cpus for r in held) <= node.cpus
        units = Counter()
        for r in held:
            for gpu in r.gpus:
                units[gpu] += min(r.demand.units, UNIT)
        assert all(gpu in node.gpus and units[gpu] <= UNIT for gpu in units)


def simulate(nodes, trials, limit=400):
    """Run to the end with real durations that differ from the predicted ones; yield every decision."""
    now, running, ends = 0.0, [], {}
    waiting = [t for t, _ in trials]
    real = {t.trial_id: seconds for t, seconds in trials}
    for _ in range(limit):
        decided = schedule(
            Snapshot(nodes=nodes, running=tuple(running), waiting=tuple(waiting)), now
        )
        for placement in decided.placements:
            running.append(start(placement, waiting, now))
            ends[placement.trial_id] = now + real[placement.trial_id]
        placed = {p.trial_id for p in decided.placements}
        waiting = [t for t in waiting if t.trial_id not in placed]
        yield now, decided, running, waiting
        if not running:
            return
        now = min(ends[r.trial_id] for r in running)
        running = [r for r in running if ends[r.trial_id] > now]
    raise AssertionError("the simulation does not end")


@given(NODES, TRIALS)
def test_never_over_commits(nodes, trials):
    for _, _, running, _ in simulate(nodes, trials):
        assert_within(nodes, running)


@given(NODES, TRIALS)
def test_every_waiting_trial_has_one_sentence_and_no_other_has(nodes, trials):
    for _, decided, _, waiting in simulate(nodes, trials):
        assert {t.trial_id for t in waiting} == set(decided.waits)
        assert all(decided.waits.values())


@given(NODES, TRIALS)
def test_whatever_fits_an_empty_node_is_run(nodes, trials):
    *_, (_, decided, running, waiting) = simulate(nodes, trials)

    assert not running
    assert {t.trial_id for t in waiting} == decided.impossible


@given(NODES, TRIALS)
def test_idle_cluster_always_starts_something_possible(nodes, trials):
    decided = schedule(Snapshot(nodes=nodes, waiting=tuple(t for t, _ in trials)), 0.0)

    possible = {t.trial_id for t, _ in trials} - decided.impossible
    assert bool(decided.placements) == bool(possible)


@given(NODES, TRIALS, st.randoms(use_true_random=False))
def test_order_of_the_lists_does_not_matter(nodes, trials, random):
    waiting = [t for t, _ in trials]
    shuffled = random.sample(waiting, len(waiting))

    one = schedule(Snapshot(nodes=nodes, waiting=tuple(waiting)), 0.0)
    other = schedule(Snapshot(nodes=nodes, waiting=tuple(shuffled)), 0.0)

    assert one.placements == other.placements
    assert one.waits == other.waits


@given(
    st.integers(2, 8),
    st.floats(1, 1000),
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0.5, 50)), min_size=1, max_size=6),
)
def test_endless_stream_of_small_trials_does_not_starve_a_wide_one(cores, wide_predicted, stream):
    """One-core trials of any predicted and real length keep coming; the wide one starts when those inside have ended."""
    node = Node(node_id="n", host="n", cpus=cores)
    wide = Waiting(trial_id="wide", demand=Demand(cpus=cores), predicted_s=wide_predicted)
    first = [
        Waiting(trial_id=f"first{i}", demand=Demand(cpus=1), predicted_s=stream[0][0])
        for i in range(cores)
    ]
    running = [
        Running(trial_id=t.trial_id, node_id="n", demand=t.demand, predicted_end=t.predicted_s)
        for t in first
    ]
    ends = {t.trial_id: stream[0][1] for t in first}
    now, number = 0.0, 0
    # Every trial that got in is predicted to end by the reserved start; after the longest prediction nobody gets in.
    last_entry = 1.0 + max(predicted for predicted, _ in stream)
    while now <= last_entry + max(real for _, real in stream):
        predicted, real = stream[number % len(stream)]
        number += 1
        small = [
            Waiting(trial_id=f"s{number}-{i}", demand=Demand(cpus=1), predicted_s=predicted)
            for i in range(cores)
        ]
        decided = schedule(
            Snapshot(nodes=(node,), running=tuple(running), waiting=(wide, *small)), now
        )
        for placement in decided.placements:
            if placement.trial_id == "wide":
                return
            running.append(start(placement, small, now))
            ends[placement.trial_id] = now + real
        now = min(ends[r.trial_id] for r in running)
        running = [replace(r) for r in running if ends[r.trial_id] > now]
    raise AssertionError("the wide trial did not start")
