"""`--backend slurm` on real daemons: a private Ray in an allocation, further pilots, preemption."""

import socket

import psutil
import pytest

from orchestrator.control.node_exclusion import exclude
from orchestrator.control.status import status_from_disk
from orchestrator.launchers.slurm.job_records import queue_reasons
from orchestrator.records.errors import BusyError
from orchestrator.records.rank_registry import registered
from orchestrator.records.trial_spec import TrialState

pytestmark = pytest.mark.integration
PILOT = "slurm"


@pytest.mark.long
def test_a_sweep_in_one_allocation(slurm, sweep, eventually):
    whole = sweep.spec(0, gate=True, gpus=1.0)
    halves = [sweep.spec(seed, gpus=0.5) for seed in (1, 2)]

    (job_id,) = sweep.submit([whole, *halves], PILOT, cpus=2, gpus=2).job_ids

    eventually(lambda: sweep.at_gate(whole) or job_id not in slurm.jobs(), "the gated trial")
    assert sweep.at_gate(whole), sweep.printed()
    assert status_from_disk(sweep.disk, ask_queue=queue_reasons).controller_alive
    with pytest.raises(BusyError, match=f"Slurm job {job_id} is RUNNING"):
        sweep.submit([whole], PILOT)
    # On a busy machine they would start after the first trial, on its GPU.
    eventually(lambda: all(sweep.outcomes(s) == ["done"] for s in halves), "halves of a GPU")
    sweep.open_gate(whole)
    eventually(lambda: not slurm.jobs(), "the end of the job")
    end = status_from_disk(sweep.disk, ask_queue=queue_reasons)
    assert end.complete, sweep.printed()
    assert not end.controller_alive
    assert all(sweep.outcomes(spec) == ["done"] for spec in (whole, *halves))
    assert {sweep.seen_gpus(spec) for spec in (whole, *halves)} == {"0", "1"}
    assert list(slurm.temporary.iterdir()) == []


@pytest.mark.long
def test_pilots_come_and_go_with_the_work(slurm, sweep, eventually):
    gated = [sweep.spec(seed, gate=True, cpus=2) for seed in range(3)]
    rest = [sweep.spec(seed) for seed in range(3, 7)]

    (head,) = sweep.submit([*gated, *rest], PILOT, cpus=2, min_nodes=1, max_nodes=3).job_ids

    # One trial fills a node, so all three at once means three nodes: the head's and two that were asked for.
    eventually(lambda: sweep.at_gate(*gated), "three nodes", 400.0)
    assert len(slurm.jobs()) == 3
    nodes = {registered(sweep.trial(spec).attempt(1))[0] for spec in gated}
    assert len(nodes) == 3
    sweep.open_gate(gated[0], gated[1])
    # The head's node takes the rest; one that stands idle for a minute is given back while the third trial still runs.
    eventually(lambda: len(slurm.jobs()) <= 2, "an idle pilot to leave", 400.0)
    assert head in slurm.jobs()
    sweep.open_gate(gated[2])
    eventually(lambda: not slurm.jobs(), "the end of the jobs")
    assert status_from_disk(sweep.disk, ask_queue=queue_reasons).complete, sweep.printed()
    assert all(sweep.outcomes(spec) == ["done"] for spec in (*gated, *rest))
    assert list(slurm.temporary.iterdir()) == []


@pytest.mark.long
def test_a_gang_gets_as_many_nodes_as_hold_it(slurm, sweep, eventually):
    gang = sweep.spec(0, gate=True, ranks=2, cpus=2, gpus=8.0)

    (head,) = sweep.submit([gang], PILOT, cpus=2, gpus=4, min_nodes=1, max_nodes=3).job_ids

    eventually(lambda: sweep.at_gate(gang), "two nodes", 400.0)
    assert len(slurm.jobs()) == 2
    attempt = sweep.trial(gang).attempt(1)
    assert len({process.host for process in registered(attempt)}) == 1, "one machine, two slurmd"
    assert len(attempt.launch()["node"].split(", ")) == 2
    sweep.open_gate(gang)
    eventually(lambda: head not in slurm.jobs(), "the end of the job")
    assert status_from_disk(sweep.disk, ask_queue=queue_reasons).complete, sweep.printed()
    assert sweep.outcomes(gang) == ["done"]


@pytest.mark.slow
def test_a_preempted_pilot_goes_back_to_the_queue(slurm, sweep, eventually):
    specs = [sweep.spec(seed, gate=True) for seed in range(2)]
    (job_id,) = sweep.submit(
        specs, PILOT, cpus=2, min_nodes=2, max_nodes=2, partition="low", minutes=30
    ).job_ids
    eventually(lambda: sweep.at_gate(*specs), "both trials at their gates", 400.0)

    slurm.preempt(10)

    eventually(lambda: all(sweep.outcomes(s) == ["preempted"] for s in specs), "checkpoints")
    assert sweep.trial(specs[0]).state() is TrialState.WAITING
    eventually(lambda: job_id in sweep.status(specs[0]).wait, "a sentence on the queue")
    eventually(lambda: not slurm.jobs(), "the end of the jobs", 400.0)
    assert status_from_disk(sweep.disk, ask_queue=queue_reasons).complete, sweep.printed()
    for spec in specs:
        assert sweep.outcomes(spec) == ["preempted", "done"]
        assert sweep.steps(spec) == list(range(1, sweep.STEPS + 1))


@pytest.mark.long
def test_a_preempted_worker_costs_no_step(slurm, sweep, eventually):
    specs = [sweep.spec(seed, gate=True, cpus=2) for seed in range(2)]
    (head,) = sweep.submit(
        specs, PILOT, cpus=2, min_nodes=1, max_nodes=2, partition="low", minutes=30
    ).job_ids
    eventually(lambda: sweep.at_gate(*specs), "both trials at their gates", 400.0)
    (worker,) = set(slurm.jobs()) - {head}

    slurm.command("scancel", "--signal=USR2", worker)

    eventually(lambda: any(sweep.outcomes(s) for s in specs), "a checkpoint")
    sweep.open_gate(*specs)
    eventually(lambda: not slurm.jobs(), "the end of the jobs", 400.0)
    assert sorted(map(sweep.outcomes, specs)) == [["done"], ["preempted", "done"]], sweep.printed()
    for spec in specs:
        assert sweep.steps(spec) == list(range(1, sweep.STEPS + 1))


@pytest.mark.long
def test_a_pilot_on_an_excluded_node_is_replaced_on_another(slurm, sweep, eventually):
    specs = [sweep.spec(seed, gate=True, cpus=2) for seed in range(3)]
    (head,) = sweep.submit(specs, PILOT, cpus=2, min_nodes=1, max_nodes=2).job_ids
    eventually(lambda: sum(map(sweep.at_gate, specs)) == 2, "two trials at their gates", 400.0)
    (worker,) = set(slurm.jobs()) - {head}
    where = slurm.command("squeue", "-h", "-j", worker, "-o", "%N").strip()
    (later,) = (spec for spec in specs if not sweep.at_gate(spec))
    # The first trial started on the head's node, before there was another.
    own, on_worker = sorted(
        (spec for spec in specs if spec is not later),
        key=lambda spec: sweep.trial(spec).attempt(1).launch()["started_at"],
    )
    (node_id,) = (
        word.partition("=")[2]
        for process in psutil.process_iter(["name"])
        if process.info["name"] == "raylet" and process.environ().get("SLURM_JOB_ID") == worker
        for word in process.cmdline()
        if word.startswith("--node_id=")
    )
    # All nodes are on one machine here, so their names end with the start of Ray's id.
    exclude(sweep.disk, f"{socket.gethostname()}-{node_id[:8]}", why="test", submission=1, now=0.0)

    sweep.open_gate(on_worker)

    eventually(lambda: sweep.at_gate(later), "the third trial", 400.0)
    (other,) = set(slurm.jobs()) - {head, worker}
    job = slurm.command("scontrol", "show", "job", other)
    assert f"ExcNodeList={where}" in job
    assert f"NodeList={where}" not in job.replace("ExcNodeList", "")
    sweep.open_gate(own, later)
    eventually(lambda: not slurm.jobs(), "the end of the jobs", 400.0)
    assert all(sweep.outcomes(spec) == ["done"] for spec in specs), sweep.printed()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("scontrol", "requeue"), ("scancel", "--signal=TERM")])
def test_a_pilot_that_gets_no_notice_but_sigterm(slurm, sweep, eventually, words):
    specs = [sweep.spec(seed, gate=True) for seed in range(2)]
    (job_id,) = sweep.submit(specs, PILOT, cpus=2).job_ids
    eventually(lambda: sweep.at_gate(*specs), "both trials at their gates", 400.0)

    # Ray ends on it, too: what trials lose is at most the way from their last checkpoint.
    slurm.command(*words, job_id)

    eventually(lambda: all(sweep.outcomes(s) for s in specs), "the end of the attempts", 400.0)
    eventually(lambda: not slurm.jobs(), "the end of the job", 400.0)
    assert status_from_disk(sweep.disk, ask_queue=queue_reasons).complete, sweep.printed()
    for spec in specs:
        first, *_, last = sweep.outcomes(spec)
        assert first in ("preempted", "killed", "node_lost")
        assert last == "done"
        assert sorted(set(sweep.steps(spec))) == list(range(1, sweep.STEPS + 1))


@pytest.mark.long
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_pilot_whose_ray_dies_goes_back_to_the_queue_at_once(slurm, sweep, eventually, name):
    spec = sweep.spec(0, gate=True)
    (job_id,) = sweep.submit([spec], PILOT, cpus=2).job_ids
    eventually(lambda: sweep.at_gate(spec), "the trial at its gate", 400.0)
    (killed,) = (
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == name and str(slurm.temporary) in str(process.info["cmdline"])
    )

    killed.kill()

    said = f"Ray of job {job_id} ended by itself"
    eventually(lambda: said in sweep.printed(), "a sentence", 60.0)
    eventually(lambda: "Restarts=1" in slurm.command("scontrol", "show", "job", job_id), "", 60.0)
    eventually(lambda: not slurm.jobs(), "the end of the job", 400.0)
    assert status_from_disk(sweep.disk, ask_queue=queue_reasons).complete, sweep.printed()
    # Its ranks are killed as Ray's, or get Slurm's signal as the job is requeued, if that is first.
    lost, done = sweep.outcomes(spec)
    assert lost in ("node_lost", "preempted")
    assert done == "done"
    assert sorted(set(sweep.steps(spec))) == list(range(1, sweep.STEPS + 1))
    assert list(slurm.temporary.iterdir()) == []


@pytest.mark.long
def test_a_pilot_whose_sweep_is_moved_ends_and_makes_no_folder(slurm, sweep, eventually):
    spec = sweep.spec(0, gate=True)
    sweep.submit([spec], PILOT, cpus=2)
    eventually(lambda: sweep.at_gate(spec), "the trial at its gate", 400.0)
    moved = sweep.disk.path.with_name("moved")

    sweep.disk.path.rename(moved)

    eventually(lambda: not slurm.jobs(), "the end of the job", 120.0)
    assert not sweep.disk.path.exists()
    said = [
        log.read_text() for log in moved.glob("slurm/submitit/*") if log.suffix in (".out", ".err")
    ]
    assert any(f"was moved to {moved} while it trained" in text for text in said)
    assert list(slurm.temporary.iterdir()) == []
