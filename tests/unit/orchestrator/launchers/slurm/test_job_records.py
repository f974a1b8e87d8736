"""Records of jobs, and queue reasons in `memscale status`; `squeue` is a script."""

import pytest

from orchestrator.control.status import status_from_disk
from orchestrator.launchers.slurm import job_records
from orchestrator.records.errors import BusyError
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.submit.submission import cancel, refuse_if_busy


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A file with what squeue prints."""
    said, cancelled = tmp_path / "queue", tmp_path / "cancelled"
    said.touch()
    for name, does in {"squeue": f"cat {said}", "scancel": f'echo "$@" >> {cancelled}'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return said


@pytest.fixture
def sweep(tmp_path):
    sweep = SweepDir(tmp_path / "runs" / "s")
    train = {"tokens": 50, "batch_tokens": 10, "seq_len": 10}
    data, model = {"source": "x"}, {"architecture": "dense"}
    specs = [TrialSpec(sweep="s", data=data, model=model, train=train, seed=n) for n in range(3)]
    for spec in specs:
        sweep.trial(spec.trial_id).create(spec)
    sweep.add_submission({"trial_ids": [spec.trial_id for spec in specs]})
    return sweep


def states(sweep):
    return [
        (t.state, t.wait)
        for t in status_from_disk(sweep, ask_queue=job_records.queue_reasons).trials
    ]


def test_tasks_that_wait(queue, sweep, tmp_path):
    ids = sweep.submissions()[0]["trial_ids"]
    job_records.record(
        sweep, ["7_0", "7_1"], kind=job_records.TRIAL, submission=1, trial_ids=ids[:2]
    )
    queue.write_text("7_0|PENDING||Priority\n7_1|COMPLETING|n1|None\n8|RUNNING|n1|None\n")

    now = status_from_disk(sweep, ask_queue=job_records.queue_reasons)

    assert now.controller_alive
    assert now.trials[0].wait == "Slurm job 7_0 is PENDING (Priority)"
    assert "submit it again" in now.trials[1].wait
    refuse_if_busy(sweep.snapshot())
    assert cancel(sweep, sweep.trials(), whole_sweep=True)
    assert (tmp_path / "cancelled").read_text() == "--quiet 7_0\n"


def test_a_pilot_that_waits(queue, sweep):
    ids = sweep.submissions()[0]["trial_ids"]
    failed = sweep.trial(ids[2]).new_attempt({"submission": 1})
    write_json(failed.path / "end.json", {"outcome": "user_error", "reason": "x", "final": True})
    job_records.record(sweep, ["9"], kind=job_records.HEAD, submission=1)
    queue.write_text("9|PENDING||Resources\n")

    waits = "Slurm job 9 is PENDING (Resources)"
    assert states(sweep) == [(TrialState.WAITING, waits)] * 2 + [(TrialState.FAILED, "")]
    with pytest.raises(BusyError, match="sweep s: Slurm job 9 is PENDING"):
        refuse_if_busy(sweep.snapshot())
    queue.write_text("")
    assert not status_from_disk(sweep, ask_queue=job_records.queue_reasons).controller_alive
    refuse_if_busy(sweep.snapshot())


def test_where_slurm_is_not(sweep, monkeypatch, tmp_path):
    job_records.record(sweep, ["9"], kind=job_records.HEAD, submission=1)
    monkeypatch.setenv("PATH", str(tmp_path))

    now = status_from_disk(sweep, ask_queue=job_records.queue_reasons)

    assert not now.controller_alive
    assert "cannot be looked up here (squeue: not found on PATH" in now.trials[0].wait
    refuse_if_busy(sweep.snapshot())
