"""Sweeps in simulated time: whatever their mix, nothing is over-committed, nobody starves, little is lost."""

import dataclasses
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.scheduling.cluster_state import ClusterState
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.interface import Running, Snapshot, schedule
from orchestrator.scheduling.policy import decide
from orchestrator.scheduling.runtime_prediction import RuntimeCorrections
from orchestrator.scheduling.wait_queue import Waiting, WaitQueue
from orchestrator.simulation import cluster_spec
from orchestrator.simulation.simulate import simulate

GB = 10**9
NODES = st.lists(
    st.tuples(
        st.integers(1, 12), st.sampled_from([0, 1, 2, 4]), st.sampled_from([None, 40 * GB, 80 * GB])
    ),
    min_size=1,
    max_size=4,
).map(
    lambda shapes: tuple(
        Node(
            node_id=f"n{i}",
            host=f"n{i}",
            cpus=cpus,
            gpus=tuple(map(str, range(gpus))),
            gpu_memory_bytes=memory,
        )
        for i, (cpus, gpus, memory) in enumerate(shapes)
    )
)
SIZES = st.sampled_from([0.0, 0.1, 0.1, 0.25, 1 / 3, 0.5, 1.0, 1.0, 2.0, 3.0, 4.0, 8.0])


@st.composite
def trials(draw, most=24):
    rows = draw(
        st.lists(
            st.tuples(
                SIZES,
                st.integers(1, 6),
                st.sampled_from([0, 0, 3, 17, 30, 60]),
                st.integers(0, 500),
                st.booleans(),
                st.booleans(),
            ),
            max_size=most,
        )
    )
    return [
        Waiting(
            trial_id=f"t{i}",
            demand=Demand(
                cpus=max(cpus, math.ceil(gpus)),
                gpus=gpus,
                gpu_memory_bytes=memory * GB if gpus else 0,
                gang_size=max(1, int(gpus)) if gang else 1,
            ),
            predicted_s=float(seconds),
            begun=begun,
            order=i,
            prediction_group=f"a{i % 3}/{cpus}",
        )
        for i, (gpus, cpus, memory, seconds, gang, begun) in enumerate(rows)
    ]


@st.composite
def crowds(draw):
    """Draw trials that get in one another's way: up to five GPUs on nodes of four, many of several lengths."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
                st.integers(1, 6),
                st.integers(1, 200),
            ),
            min_size=8,
            max_size=24,
        )
    )
    nodes = draw(st.integers(1, 3))
    return cluster_spec.parse(f"nodes={nodes},gpus_per_node=4,cpus_per_node=12").nodes, [
        Waiting(
            trial_id=f"t{i}",
            demand=Demand(cpus=max(cpus, int(gpus)), gpus=gpus, gang_size=max(1, int(gpus))),
            predicted_s=float(seconds),
            order=i,
        )
        for i, (gpus, cpus, seconds) in enumerate(rows)
    ]


def actual(trials, factors):
    return {t.trial_id: t.predicted_s * f for t, f in zip(trials, factors, strict=False)}


FACTORS = st.lists(st.sampled_from([0.2, 0.9, 1.0, 1.0, 1.5, 4.0]), min_size=24, max_size=24)


def assert_never_over_committed(simulation):
    """By brute force: at every start, everything that runs then is added up, node by node and GPU by GPU."""
    for moment in {run.start_s for run in simulation.runs}:
        cores, share, memory = defaultdict(int), defaultdict(float), defaultdict(float)
        for run in simulation.runs:
            if not run.start_s <= moment < run.end_s:
                continue
            for piece in run.allocation:
                cores[piece.node] += piece.cpus
                for gpu in piece.gpus:
                    share[piece.node, gpu] += piece.units / 10_000
                    memory[piece.node, gpu] += run.trial.demand.gpu_memory_bytes
        for row, used in cores.items():
            assert used <= simulation.nodes[row].cpus
        for (row, gpu), used in share.items():
            node = simulation.nodes[row]
            assert gpu < len(node.gpus)
            assert used <= 1 + 1e-9
            assert memory[row, gpu] <= (node.gpu_memory_bytes or math.inf)


def assert_gangs_lie_whole(simulation):
    for run in simulation.runs:
        demand = run.trial.demand
        if demand.gpus < 1:
            assert len(run.allocation) == 1
        elif len(run.allocation) == 1:
            assert len(run.allocation[0].gpus) == demand.gpus
        else:
            nodes = [simulation.nodes[piece.node] for piece in run.allocation]
            assert len({piece.node for piece in run.allocation}) == len(nodes)
            assert {len(node.gpus) for node in simulation.nodes} != {0}
            assert all(len(node.gpus) < demand.gpus or node.cpus < demand.cpus for node in nodes)
            assert sum(len(node.gpus) for node in nodes) >= demand.gpus
            assert all(
                piece.cpus == node.cpus and len(piece.gpus) == len(node.gpus)
                for piece, node in zip(run.allocation, nodes, strict=True)
            )


TWO_CORES = cluster_spec.parse("nodes=2,gpus_per_node=2,cpus_per_node=2").nodes
SHORT_OF_CORES = Waiting(
    trial_id="t0", demand=Demand(cpus=3, gpus=2.0, gang_size=2), predicted_s=1.0, order=0
)
"""A gang whose GPUs one node of `TWO_CORES` has, and whose cores it has not."""


@given(st.one_of(st.tuples(NODES, trials()), crowds()), FACTORS)
@example((TWO_CORES, [SHORT_OF_CORES]), [1.0] * 24)
def test_nothing_is_over_committed_gangs_lie_whole_and_everyone_who_fits_starts(
    nodes_and_trials, factors
):
    nodes, waiting = nodes_and_trials
    simulation = simulate(nodes, waiting, actual_s=actual(waiting, factors))

    assert_never_over_committed(simulation)
    assert_gangs_lie_whole(simulation)
    started = [run.trial.trial_id for run in simulation.runs]
    assert len(started) == len(set(started))
    assert {*started, *simulation.impossible} == {t.trial_id for t in waiting}


@given(NODES, trials(), st.randoms(use_true_random=False))
def test_the_same_trials_in_any_order_give_the_same_schedule(nodes, waiting, random):
    shuffled = random.sample(waiting, len(waiting))

    assert simulate(nodes, waiting) == simulate(nodes[::-1], shuffled)


@given(NODES, trials())
def test_what_is_said_to_be_impossible_does_not_fit_an_empty_cluster(nodes, waiting):
    simulation = simulate(nodes, waiting)

    for trial in waiting:
        alone = simulate(nodes, [trial])
        assert (trial.trial_id in simulation.impossible) == (not alone.runs)


@given(crowds())
def test_backfill_never_delays_the_reserved_start(crowd):
    """With true predictions: whoever is told a start as next in line has started by then, and it is the largest who is told one."""
    nodes, waiting = crowd
    cluster, promised, running, now = ClusterState(nodes), {}, [], 0.0
    possible = {t.trial_id: t for t in waiting if cluster.requirements(t.demand).possible}
    queue, waits = WaitQueue(possible.values()), set(possible)
    while True:
        decision = decide(cluster, queue, now)
        for start in decision.starts:
            assert now <= promised.get(start.trial_id, math.inf) + 1e-6
            queue.remove(start.trial_id)
            waits.remove(start.trial_id)
            cluster.allocate(start.trial_id, start.allocation, predicted_end=start.predicted_end)
            running.append((start.predicted_end, start.trial_id))
        line = decision.next_in_line
        largest = max(
            (t.demand.size for t in possible.values() if t.trial_id in waits), default=None
        )
        if largest is not None and not decision.starts:
            assert line is not None
        if line is not None:
            assert line.demand.size == largest
            assert line.start <= promised.get(line.trial_id, math.inf) + 1e-6
            promised[line.trial_id] = line.start
        if not running:
            break
        now = min(end for end, _ in running)
        for end, trial_id in [r for r in running if r[0] <= now]:
            cluster.release(trial_id)
            running.remove((end, trial_id))
    assert not waits
    assert not list(queue)


@given(NODES, trials(), FACTORS)
def test_controller_and_simulator_make_the_same_schedule(nodes, waiting, factors):
    """One asks with a snapshot made anew each time, the other keeps its cluster state and queue."""
    waiting = [dataclasses.replace(t, prediction_group="") for t in waiting]
    truth = actual(waiting, factors)
    now, running, ends, starts = 0.0, [], {}, {}
    left = {t.trial_id: t for t in waiting}
    corrections = RuntimeCorrections()
    while True:
        ratio = corrections.ratio("")
        believed = [
            dataclasses.replace(t, predicted_s=t.predicted_s * ratio) for t in left.values()
        ]
        decided = schedule(Snapshot(nodes=nodes, running=tuple(running), waiting=believed), now)
        for placed in decided.placements:
            trial = left.pop(placed.trial_id)
            share = placed.share if 0 < trial.demand.gpus < 1 else trial.demand.gpus
            running.append(
                Running(
                    trial_id=trial.trial_id,
                    node_id=placed.node_id,
                    demand=dataclasses.replace(trial.demand, gpus=share),
                    gpus=placed.gpus,
                    other_nodes=tuple(part.node_id for part in placed.other_nodes),
                    predicted_end=now + max(1.0, trial.predicted_s * ratio),
                )
            )
            ends[trial.trial_id] = now + truth[trial.trial_id]
            starts[trial.trial_id] = now, placed.node_id, placed.gpus
        if not running:
            break
        now = min(ends[r.trial_id] for r in running)
        for ended in [r for r in running if ends[r.trial_id] <= now]:
            running.remove(ended)
            predicted = next(t.predicted_s for t in waiting if t.trial_id == ended.trial_id)
            corrections.observe("", truth[ended.trial_id] / max(1.0, predicted))
    simulation = simulate(nodes, waiting, actual_s=truth)

    assert starts == {
        run.trial.trial_id: (
            run.start_s,
            (node := simulation.nodes[run.allocation[0].node]).node_id,
            tuple(node.gpus[gpu] for gpu in run.allocation[0].gpus),
        )
        for run in simulation.runs
    }


MIXES = sorted((Path(__file__).parent / "mixes").glob("*.json"))


def mix(file):
    record = json.loads(file.read_text())
    rows = [row for n, *row in record["trials"] for _ in range(n)]
    return cluster_spec.parse(record["cluster"]).nodes, [
        Waiting(
            trial_id=f"{file.stem}-{i}",
            demand=Demand(cpus=cpus, gpus=gpus, gpu_memory_bytes=memory, gang_size=gang_size),
            predicted_s=seconds,
            order=i,
            prediction_group=group,
        )
        for i, (cpus, gpus, memory, gang_size, seconds, group) in enumerate(rows)
    ]


@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("file", MIXES, ids=lambda file: file.stem)
def test_recorded_mixes_end_within_five_per_cent_of_the_bound_and_one_trial(file, copies):
    nodes, trials = mix(file)
    trials = [
        Waiting(**{**vars(t), "trial_id": f"{t.trial_id}.{copy}"})
        for copy in range(copies)
        for t in trials
    ]

    simulation = simulate(nodes, trials)

    assert not simulation.impossible
    assert len(simulation.runs) == len(trials)
    assert_never_over_committed(simulation)
    assert_gangs_lie_whole(simulation)
    assert simulation.makespan_s <= 1.05 * simulation.bound_s + simulation.longest_s


@pytest.mark.parametrize("seed", range(3))
def test_wrong_predictions_are_corrected_and_cost_little(seed):
    """Each architecture and size is off by a factor of its own, up to four either way, which trials that end reveal."""
    nodes, trials = mix(next(file for file in MIXES if file.stem == "ladder"))
    rng = np.random.default_rng(seed)
    off = {group: 4 ** rng.uniform(-1, 1) for group in sorted({t.prediction_group for t in trials})}
    truth = {t.trial_id: t.predicted_s * off[t.prediction_group] for t in trials}

    simulation = simulate(nodes, trials, actual_s=truth)

    assert simulation.makespan_s <= 1.05 * simulation.bound_s + simulation.longest_s


def large_mix(n, seed=0):
    """Return n trials from a tenth of a GPU to sixteen, of 15 architectures, each with a duration of its own."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice(
        [0.1, 0.25, 0.5, 1, 2, 4, 8, 16], n, p=[0.25, 0.2, 0.1, 0.2, 0.1, 0.05, 0.07, 0.03]
    )
    seconds = 300 * sizes**0.5 * rng.lognormal(2, 0.7, n)
    memory = rng.choice([2, 6, 12, 30], n)
    return [
        Waiting(
            trial_id=f"t{i:05d}",
            demand=Demand(
                cpus=4 * math.ceil(size),
                gpus=float(size),
                gpu_memory_bytes=float(gb * GB),
                gang_size=math.ceil(size),
            ),
            predicted_s=float(s),
            order=i,
            prediction_group=f"architecture{i % 15}/{size}",
        )
        for i, (size, s, gb) in enumerate(zip(sizes, seconds, memory, strict=True))
    ]


def test_ten_thousand_trials_on_a_thousand_gpus_come_near_the_bound():
    nodes = cluster_spec.parse("gpus=1024,gpu_memory=80GB").nodes
    trials = large_mix(10_000)

    simulation = simulate(nodes, trials)

    assert len(simulation.runs) == 10_000
    assert simulation.makespan_s <= 1.05 * simulation.bound_s + simulation.longest_s


def test_sweeps_of_one_priority_share_evenly_and_a_higher_priority_goes_first():
    nodes = cluster_spec.parse("gpus=8").nodes
    sweep = lambda name, priority: [  # noqa: E731
        Waiting(
            trial_id=f"{name}{i:02d}",
            demand=Demand(cpus=1, gpus=1.0, gpu_memory_bytes=float(i % 8)),
            predicted_s=100.0 if name == "a" else 90.0,
            order=i,
            sweep=name,
            priority=priority,
        )
        for i in range(16)
    ]

    fair = simulate(nodes, sweep("a", 0) + sweep("b", 0))
    first = simulate(nodes, sweep("a", 0) + sweep("b", 1))

    at_once = [run.trial.sweep for run in fair.runs if run.start_s == 0]
    assert (at_once.count("a"), at_once.count("b")) == (4, 4)
    assert [run.trial.sweep for run in first.runs[:16]] == ["b"] * 16
