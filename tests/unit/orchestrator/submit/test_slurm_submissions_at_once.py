"""Two submissions of one sweep to Slurm at once: each trial gets one job."""

import threading
from types import SimpleNamespace

import pytest

from orchestrator.launchers.slurm import job_records
from orchestrator.records.errors import BusyError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.submit import slurm_submission
from orchestrator.submit.slurm_submission import SlurmSubmission

TRIAL = SimpleNamespace(trial_id="dense-1")


@pytest.fixture
def queue(monkeypatch):
    """Stand in for Slurm, which takes a while to take a job."""
    jobs, begun = [], threading.Event()

    def submit(sweep, left, **rest):
        begun.set()
        threading.Event().wait(0.3)
        jobs.extend(
            SimpleNamespace(kind=job_records.TRIAL, trial_id=spec.trial_id) for spec in left
        )
        return ("1",)

    monkeypatch.setattr(job_records, "live_jobs", lambda sweep: list(jobs))
    monkeypatch.setattr(slurm_submission.slurm_direct, "submit", submit)
    monkeypatch.setattr(slurm_submission.commands, "max_array_size", lambda: 10)
    monkeypatch.setattr(slurm_submission, "_code", lambda record: None)
    monkeypatch.setattr(slurm_submission.Submission, "_how", lambda self, code: {})
    monkeypatch.setattr(
        slurm_submission.Submission,
        "_write_records",
        lambda self, sweep, how: {"number": 1, "trial_ids": []},
    )
    monkeypatch.setattr("orchestrator.submit.submission.code_snapshot.take", lambda sweep: None)
    return SimpleNamespace(jobs=jobs, begun=begun)


def submission(sweep: SweepDir, *, backend: str) -> SlurmSubmission:
    made = object.__new__(SlurmSubmission)
    plan = SimpleNamespace(
        sweep=SimpleNamespace(name="s", files=()), snapshot=sweep.snapshot(), trials=(), readable=()
    )
    request = SimpleNamespace(backend=backend)
    vars(made).update(plan=plan, request=request, address=None, job=None, runs=sweep.path.parent)
    return made


def test_each_trial_is_queued_once(tmp_path, queue):
    sweep = SweepDir(tmp_path / "s")
    both = [submission(sweep, backend="slurm-direct") for _ in range(2)]
    threads = [
        threading.Thread(target=one._send_trials, args=(sweep, None, [TRIAL])) for one in both
    ]
    threads[0].start()
    assert queue.begun.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()

    assert [job.trial_id for job in queue.jobs] == ["dense-1"]


def test_a_pilot_is_refused_beside_jobs_of_trials_that_came_meanwhile(tmp_path, queue):
    sweep = SweepDir(tmp_path / "s")
    pilot = submission(sweep, backend="slurm")
    queue.jobs.append(SimpleNamespace(kind=job_records.TRIAL, trial_id="dense-1"))

    with pytest.raises(BusyError), pilot.recorded(sweep):
        raise AssertionError
