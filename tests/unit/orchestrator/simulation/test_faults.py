"""Faults in simulated time, against closed forms and the trainer's own rule."""

import dataclasses
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workloads
from orchestrator.control.retry_policy import PastAttempt, decide_retry
from orchestrator.records.trial_spec import Outcome, Retries
from orchestrator.scheduling.demand import UNIT, Demand
from orchestrator.scheduling.wait_queue import Waiting
from orchestrator.simulation import cluster_spec, gantt
from orchestrator.simulation.checkpointing import (
    MIN_PAUSE_OVER_COST,
    WRITE_BYTES_PER_S,
    CheckpointedWork,
    Checkpointing,
    best_interval,
    expected_goodput,
    expected_s,
)
from orchestrator.simulation.fault_summary import fault_summary, summary_rows
from orchestrator.simulation.faults import (
    Faults,
    Job,
    _decision,
    preemption_every_s,
    simulate_faults,
)
from orchestrator.simulation.simulate import simulate

CHECK = Checkpointing(every_s=300.0, write_s=20.0, restart_s=60.0)
MANY = Retries(failure=0, preemption=10**6)


def jobs(
    n: int,
    seconds: float,
    *,
    gpus: float = 1.0,
    check: Checkpointing = CHECK,
    retries: Retries = MANY,
) -> list[Job]:
    demand = Demand(cpus=1, gpus=gpus, gang_size=max(1, int(gpus)))
    return [
        Job(
            trial=Waiting(trial_id=f"t{i}", demand=demand, predicted_s=seconds, order=i),
            checkpointing=check,
            retries=retries,
        )
        for i in range(n)
    ]


def one_gpu_nodes(n: int) -> tuple:
    return cluster_spec.parse(f"nodes={n},gpus_per_node=1").nodes


def test_the_pause_follows_the_trainers_rule() -> None:
    # Read, not imported: importing it takes seconds.
    trainer = Path(workloads.__file__).parent / "training" / "checkpointing.py"
    text = trainer.read_text()
    assert f"\nMIN_PAUSE_OVER_COST = {MIN_PAUSE_OVER_COST}\n" in text
    assert float(re.search(r"^WRITE_BYTES_PER_S = (.*)$", text, re.M)[1]) == WRITE_BYTES_PER_S
    dear = dataclasses.replace(CHECK, write_s=100.0)
    assert (CHECK.pause_s, dear.pause_s) == (300.0, 1000.0)


@pytest.mark.parametrize("work", [0.0, 299.0, 300.0, 301.0, 600.0, 601.0, 1001.0, 5000.0])
@pytest.mark.parametrize("check", [CHECK, dataclasses.replace(CHECK, write_s=100.0)])
def test_an_attempt_played_second_by_second(work: float, check: Checkpointing) -> None:
    elapsed, trained, saved, since = 0.0, 0.0, 0.0, 0.0
    wait = check.restart_s
    while trained < work or wait:
        got = check.progress(elapsed, work)
        assert got.saved_s == pytest.approx(saved)
        assert got.reached_s == pytest.approx(trained)
        elapsed += 1
        if wait:
            wait -= 1
            if not wait and trained:
                saved, since = trained, 0.0
            continue
        trained, since = trained + 1, since + 1
        if since >= check.pause_s and trained < work:
            wait = check.write_s
    assert check.attempt_s(work) == elapsed


def test_without_faults_trials_end_as_predicted() -> None:
    given = jobs(40, 5000.0, gpus=0.5)
    nodes = one_gpu_nodes(3)
    found = simulate_faults(nodes, given, Faults())
    plain = [dataclasses.replace(j.trial, predicted_s=CHECK.attempt_s(5000.0)) for j in given]
    expected = simulate(nodes, plain)

    assert [(r.trial.trial_id, r.start_s, r.end_s) for r in found.runs] == [
        (r.trial.trial_id, r.start_s, r.end_s) for r in expected.runs
    ]
    assert found.goodput == pytest.approx(5000.0 / CHECK.attempt_s(5000.0))


def test_what_has_a_checkpoint_goes_on_before_fresh_trials() -> None:
    found = simulate_faults(one_gpu_nodes(1), jobs(4, 5000.0), Faults(preemption_every_s=4000.0))

    stopped = [
        pair for pair in itertools.pairwise(found.runs) if pair[0].kept_s and pair[0].retried
    ]
    assert stopped
    assert all(before.trial.trial_id == after.trial.trial_id for before, after in stopped)


@pytest.mark.parametrize("mtbf", [2500.0, 10_000.0])
def test_failures_cost_what_dalys_formula_says(mtbf: float) -> None:
    """On nodes of their own trials are independent: their mean end is the expected time."""
    n = 300
    found = simulate_faults(one_gpu_nodes(n), jobs(n, 4000.0), Faults(node_mtbf_s=mtbf))

    ends = [run.end_s for run in found.runs if run.outcome is Outcome.DONE]
    assert len(ends) == n
    error = np.std(ends) / math.sqrt(n)
    assert abs(np.mean(ends) - expected_s(CheckpointedWork(4000.0, CHECK, mtbf))) < 3.5 * error
    assert found.goodput == pytest.approx(4000.0 * n / sum(r.seconds for r in found.runs))


@pytest.mark.parametrize(("write_s", "mtbf"), [(5.0, 50_000.0), (60.0, 1e6)])
def test_the_best_interval_is_dalys(write_s: float, mtbf: float) -> None:
    check = dataclasses.replace(CHECK, write_s=write_s)
    work = [CheckpointedWork(3e6, check, mtbf)]
    ratio = write_s / (2 * mtbf)
    daly = math.sqrt(2 * write_s * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s

    best = best_interval(work)

    assert best == pytest.approx(daly, rel=0.05)
    assert expected_goodput(work, best) >= expected_goodput(work, daly) * (1 - 1e-4)
    assert expected_goodput(work, best) > max(
        expected_goodput(work, factor * daly) for factor in (0.4, 2.5)
    )
    assert best_interval([CheckpointedWork(1e5, check, math.inf)]) is None


def test_the_best_interval_is_best_in_the_simulation() -> None:
    n, mtbf = 100, 20_000.0
    best = best_interval([CheckpointedWork(40_000.0, CHECK, mtbf)])
    assert best is not None

    def goodput(every_s: float) -> float:
        check = dataclasses.replace(CHECK, every_s=every_s)
        return simulate_faults(
            one_gpu_nodes(n), jobs(n, 40_000.0, check=check), Faults(node_mtbf_s=mtbf)
        ).goodput

    assert goodput(best) > max(goodput(best / 5), goodput(best * 5))


def test_preemption_loses_no_step() -> None:
    found = simulate_faults(one_gpu_nodes(50), jobs(50, 4000.0), Faults(preemption_every_s=2000.0))
    preempted = [run for run in found.runs if run.outcome is Outcome.PREEMPTED]

    assert len(preempted) > 20
    assert all(run.repeated_s == 0 for run in found.runs)
    by_trial: dict[str, float] = {}
    for run in found.runs:
        by_trial[run.trial.trial_id] = by_trial.get(run.trial.trial_id, 0.0) + (run.kept_s or 0)
    assert list(by_trial.values()) == pytest.approx([4000.0] * 50)


def test_the_retry_policy_gives_up_what_it_would_give_up() -> None:
    stuck = simulate_faults(one_gpu_nodes(4), jobs(4, 1e5), Faults(node_mtbf_s=20.0))
    of_one = [run for run in stuck.runs if run.trial.trial_id == "t0"]
    assert len(stuck.given_up) == 4
    assert not of_one[-1].retried
    assert all(run.outcome is Outcome.NODE_LOST for run in of_one)
    few = simulate_faults(
        one_gpu_nodes(4),
        jobs(4, 1e5, retries=Retries(preemption=2)),
        Faults(preemption_every_s=5000.0),
    )
    assert max(run.attempt for run in few.runs) == 3
    assert few.given_up
    assert few.goodput < 1


@given(
    st.lists(st.tuples(st.sampled_from(["node_lost", "preempted"]), st.booleans()), min_size=1),
    st.sampled_from(["done", "node_lost", "preempted"]),
    st.booleans(),
    st.integers(0, 6),
)
def test_counts_tell_the_retry_policy_as_much_as_the_whole_history(
    earlier: list[tuple[str, bool]], last: str, progressed: bool, allowed: int
) -> None:
    past = [
        PastAttempt(outcome=Outcome(outcome), progressed=further, submission=1)
        for outcome, further in [*earlier, (last, progressed)]
    ]
    retries = Retries(preemption=allowed)
    n_stuck = len(list(itertools.takewhile(lambda one: not one.progressed, reversed(past))))

    assert _decision(past[-1].outcome, len(past), n_stuck, retries) == decide_retry(past, retries)


def test_a_fault_ends_every_attempt_of_its_node_and_gangs_with_it() -> None:
    nodes = cluster_spec.parse("nodes=2,gpus_per_node=2").nodes
    gang = simulate_faults(nodes, jobs(1, 9000.0, gpus=4.0), Faults(node_mtbf_s=9000.0, seed=1))
    shares = simulate_faults(nodes[:1], jobs(4, 9000.0, gpus=0.5), Faults(node_mtbf_s=9000.0))

    assert any(run.outcome is Outcome.NODE_LOST for run in gang.runs)
    assert all(len(run.allocation) == 2 for run in gang.runs)
    lost = [run.end_s for run in shares.runs if run.outcome is Outcome.NODE_LOST]
    assert lost
    assert all(lost.count(end) == 4 for end in lost[:4])


def test_a_seed_repeats_itself_and_another_does_not() -> None:
    def ends(seed: int) -> list[float]:
        faults = Faults(node_mtbf_s=3000.0, preemption_every_s=3000.0, seed=seed)
        return [r.end_s for r in simulate_faults(one_gpu_nodes(5), jobs(20, 2000.0), faults).runs]

    assert ends(0) == ends(0) != ends(1)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.02/h", 180_000.0), ("2/hour", 1800.0), ("0/h", math.inf)]
)
def test_rates_are_read(text: str, seconds: float) -> None:
    assert preemption_every_s(text) == seconds


@pytest.mark.parametrize("text", ["0.02", "-1/h", "x/h", "0.02/day", ""])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"as 0\.02/h"):
        preemption_every_s(text)


def test_nothing_is_held_twice() -> None:
    mixed = [
        dataclasses.replace(
            job, trial=dataclasses.replace(job.trial, trial_id=f"{gpus}/{job.trial.trial_id}")
        )
        for gpus in (0.25, 1.0, 4.0)
        for job in jobs(12, 3000.0, gpus=gpus)
    ]
    nodes = cluster_spec.parse("nodes=3,gpus_per_node=2").nodes
    faults = Faults(node_mtbf_s=6000.0, preemption_every_s=6000.0)

    found = simulate_faults(nodes, mixed, faults)

    assert not found.given_up
    assert {r.trial.trial_id for r in found.runs} == {job.trial.trial_id for job in mixed}
    for moment in {run.start_s for run in found.runs}:
        held: dict[tuple[int, int], int] = {}
        for run in found.runs:
            if run.start_s <= moment < run.end_s:
                for part in run.allocation:
                    for gpu in part.gpus:
                        place = (part.node, gpu)
                        held[place] = held.get(place, 0) + part.units
        assert max(held.values()) <= UNIT


def test_the_summary_accounts_for_every_second() -> None:
    given = jobs(30, 4000.0)
    faults = Faults(node_mtbf_s=20_000.0, preemption_every_s=20_000.0)
    found = simulate_faults(one_gpu_nodes(10), given, faults)

    cost = fault_summary(found, given, faults)
    rows = dict(summary_rows(cost, faults, what="GPU"))

    assert cost.held_hours == pytest.approx(found.gpu_seconds / 3600)
    useful = 30 * 4000 / 3600
    assert cost.repeated_hours + cost.overhead_hours == pytest.approx(cost.held_hours - useful)
    assert cost.goodput == pytest.approx(useful / cost.held_hours)
    assert cost.best_goodput is not None
    assert cost.best_goodput >= cost.expected_goodput
    assert rows["faults"].startswith(f"{cost.node_lost} attempts lost with a node, ")
    assert "a node fails every 5 h 33 min, is preempted every 5 h 33 min, seed 0" in rows["faults"]
    times, waiting = gantt.still_waiting(found)
    assert waiting[0] == 20
    assert waiting.min() >= 0
    assert (times[-1], waiting[-1]) == (found.makespan_s, 0)


def test_trials_without_a_gpu_are_weighed_by_cores_wherever_they_run() -> None:
    given = jobs(6, 4000.0, gpus=0.0)
    faults = Faults(node_mtbf_s=20_000.0)
    beside_gpus, alone = (
        fault_summary(simulate_faults(nodes, given, faults), given, faults)
        for nodes in (
            cluster_spec.parse("nodes=3,gpus_per_node=2,cpus_per_node=2").nodes,
            cluster_spec.parse("nodes=3,cpus_per_node=2").nodes,
        )
    )

    assert beside_gpus == alone
    assert beside_gpus.held_hours > 6 * 4000 / 3600
    assert beside_gpus.best_goodput is not None
    assert beside_gpus.best_goodput > 0.5
