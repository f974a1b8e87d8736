"""`--backend slurm-direct` on real daemons: one job for each trial, whatever happens to it."""

import os
import signal

import pytest

from orchestrator.control.status import status_from_disk
from orchestrator.launchers.slurm.commands import SlurmError
from orchestrator.launchers.slurm.job_records import queue_reasons
from orchestrator.records.errors import BusyError
from orchestrator.records.locks import ControllerLock
from orchestrator.records.rank_registry import registered
from orchestrator.records.trial_spec import TrialState
from orchestrator.submit.submission import cancel, refuse_if_busy

pytestmark = pytest.mark.integration
DIRECT = "slurm-direct"


def arrays(job_ids):
    """Return how many tasks each array has."""
    of = [job_id.partition("_")[0] for job_id in job_ids]
    return [of.count(array) for array in dict.fromkeys(of)]


def test_every_trial_is_one_task_of_an_array(slurm, sweep, eventually):
    gated = sweep.spec(0, gate=True, gpus=2.0, ranks=2)
    plain = [sweep.spec(seed) for seed in range(1, 7)]

    sent = sweep.submit([gated, *plain, plain[0]], DIRECT, max_nodes=8)

    # MaxArraySize is 4 here, and the one with GPUs asks for something else than the rest.
    assert arrays(sent.job_ids) == [1, 4, 2]
    eventually(lambda: sweep.at_gate(gated), "the gated trial")
    assert status_from_disk(sweep.disk, ask_queue=queue_reasons).controller_alive
    assert sweep.status(gated).state is TrialState.RUNNING
    with pytest.raises(BusyError, match="perhaps a Slurm job of one trial"):
        ControllerLock(sweep.disk, submission=2).acquire()
    again = sweep.submit([gated], DIRECT)
    assert (list(again.job_ids), again.queued_before) == ([], 1)
    sweep.open_gate(gated)
    eventually(lambda: not slurm.jobs(), "the end of the jobs")
    end = status_from_disk(sweep.disk, ask_queue=queue_reasons)
    assert end.complete, sweep.printed()
    assert not end.controller_alive
    for spec in [gated, *plain]:
        assert sweep.outcomes(spec) == ["done"]
        assert sweep.steps(spec) == list(range(1, sweep.STEPS + 1))
    assert [sweep.seen_gpus(gated, rank) for rank in (0, 1)] == ["0", "1"]


@pytest.mark.long
def test_preempted_and_requeued(slurm, sweep, eventually):
    specs = [sweep.spec(seed, gate=True, cpus=2) for seed in range(3)]
    sweep.submit(specs, DIRECT, partition="low", max_nodes=3, minutes=30)
    eventually(lambda: sweep.at_gate(*specs), "every trial at its gate")

    slurm.preempt(10)

    eventually(
        lambda: all(sweep.outcomes(spec)[:1] == ["preempted"] for spec in specs), "checkpoints"
    )
    eventually(lambda: not slurm.jobs(), "the end of the jobs")
    for spec in specs:
        assert sweep.outcomes(spec) == ["preempted", "done"], sweep.printed()
        assert "its allocation ends" in sweep.trial(spec).attempts()[0].end()["reason"]
        # From the checkpoint on, not from the start, and nothing twice.
        assert sweep.steps(spec) == list(range(1, sweep.STEPS + 1))
        assert sweep.trial(spec).attempts()[1].launch()["submission"] == 1


@pytest.mark.slow
def test_killed_lost_and_submitted_again(slurm, sweep, eventually):
    killed, requeued, lost = (sweep.spec(seed, gate=True, cpus=2) for seed in range(3))
    sent = sweep.submit([killed, requeued, lost], DIRECT, max_nodes=3)
    eventually(lambda: sweep.at_gate(killed, requeued, lost), "every trial at its gate")
    _, job_of_requeued, _ = sent.job_ids

    # A rank dies: tried again in the same job.
    (rank,) = registered(sweep.trial(killed).attempt(1))
    os.kill(rank.pid, signal.SIGKILL)
    # An administrator puts a job back into the queue, without any notice but SIGTERM.
    slurm.command("scontrol", "requeue", job_of_requeued)
    # A job's own process is gone at once; the kernel ends what it had started.
    os.kill(sweep.trial(lost).controller()["pid"], signal.SIGKILL)

    eventually(lambda: not slurm.jobs(), "the end of the jobs")
    assert sweep.outcomes(killed) == ["killed", "done"]
    assert sweep.outcomes(requeued) == ["preempted", "done"]
    assert sweep.outcomes(lost) == []
    assert "submit it again" in sweep.status(lost).wait
    refuse_if_busy(sweep.disk.snapshot())

    again = sweep.submit([killed, requeued, lost], DIRECT)

    assert len(again.job_ids) == 1
    eventually(lambda: not slurm.jobs(), "the end of the last job")
    assert sweep.outcomes(lost) == ["node_lost", "done"], sweep.printed()
    for spec in (killed, requeued, lost):
        assert sorted(set(sweep.steps(spec))) == list(range(1, sweep.STEPS + 1))
    assert list(sweep.submit([killed, requeued, lost], DIRECT).job_ids) == []


@pytest.mark.long
def test_cancelled(slurm, sweep, eventually):
    running, *queued = (sweep.spec(seed, gate=True) for seed in range(3))
    sweep.submit([running, *queued], DIRECT, max_nodes=1)
    eventually(lambda: sweep.at_gate(running), "the first trial at its gate")
    assert "PENDING" in sweep.status(queued[0]).wait

    asked = cancel(sweep.disk, sweep.disk.trials(), whole_sweep=True)

    assert len(asked) == 3
    eventually(lambda: not slurm.jobs(), "the end of the jobs")
    assert sweep.outcomes(running) == ["cancelled"]
    states = {trial.state for trial in status_from_disk(sweep.disk, ask_queue=queue_reasons).trials}
    assert states == {TrialState.CANCELLED}


def test_what_slurm_refuses(slurm, sweep):
    with pytest.raises(
        SlurmError, match=r"--partition gpu: unknown; there are: low \(default\), high"
    ):
        sweep.submit([sweep.spec(0)], DIRECT, partition="gpu")
    nodes = "on one node; partition low has 3 nodes of 2 cores and 4 GPUs"
    with pytest.raises(SlurmError, match=f"needs 8 GPUs and 1 core {nodes}"):
        sweep.submit([sweep.spec(0, gpus=8.0)], DIRECT)
    with pytest.raises(SlurmError, match=f"needs 3 cores {nodes}"):
        sweep.submit([sweep.spec(0, cpus=3)], DIRECT)
    with pytest.raises(SlurmError, match="sbatch refused: .*Invalid node name"):
        sweep.submit([sweep.spec(0)], DIRECT, options={"nodelist": "n9"})
    with pytest.raises(SlurmError, match="--nodes 9: partition low has 3"):
        sweep.submit([sweep.spec(0)], "slurm", min_nodes=9, max_nodes=9)
    gang = sweep.spec(0, ranks=2, cpus=2, gpus=8.0)
    with pytest.raises(SlurmError, match=r"needs 8 GPUs and 4 cores in 2 ranks; .* --nodes 2, or"):
        sweep.submit([gang], "slurm")
    with pytest.raises(SlurmError, match="lower resources .partition low has 3 nodes"):
        sweep.submit([sweep.spec(0, ranks=8, cpus=2, gpus=32.0)], "slurm")
    assert slurm.jobs() == []


@pytest.mark.parametrize("how", ["shell", "option"])
def test_a_site_that_passes_nothing_on_to_jobs(slurm, sweep, eventually, monkeypatch, how):
    spec = sweep.spec(0)
    if how == "shell":
        monkeypatch.setenv("SBATCH_EXPORT", "NONE")

    sweep.submit([spec], DIRECT, options={} if how == "shell" else {"export": "NONE"})

    eventually(lambda: not slurm.jobs(), "the end of the job")
    assert sweep.outcomes(spec) == ["done"], sweep.printed()


def test_what_the_shell_has_changes_neither_jobs_nor_what_is_read(slurm, sweep, monkeypatch):
    spec = sweep.spec(0)
    for name, value in {
        "SBATCH_PARTITION": "high",
        "SBATCH_TIMELIMIT": "5",
        "SBATCH_COMMENT": "site",
        "SQUEUE_STATES": "R",
        "SINFO_PARTITION": "high",
    }.items():
        monkeypatch.setenv(name, value)

    (job_id,) = sweep.submit([spec], DIRECT, partition="low", options={"hold": ""}).job_ids

    assert sweep.submit([spec], DIRECT, partition="low").queued_before == 1
    said = slurm.command("scontrol", "show", "job", job_id)
    assert "Partition=low" in said
    assert "TimeLimit=01:00:00" in said


@pytest.mark.slow
def test_time_limit(slurm, sweep, eventually):
    spec = sweep.spec(0, gate=True)

    # Slurm says so 30 s before the end, or up to a minute earlier.
    sweep.submit([spec], DIRECT, minutes=2)

    eventually(lambda: not slurm.jobs() or sweep.outcomes(spec), "the notice")
    assert sweep.outcomes(spec) == ["preempted"], sweep.printed()
    eventually(lambda: not slurm.jobs(), "the end of the job")
    assert sweep.outcomes(spec) == ["preempted", "done"], sweep.printed()
    assert sweep.steps(spec) == list(range(1, sweep.STEPS + 1))
