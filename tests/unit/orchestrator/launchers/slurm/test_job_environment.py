"""Signals by which Slurm, or the end of what started a job, announce the end of an allocation."""

import logging
import signal
from pathlib import Path

import pytest

from orchestrator.launchers.slurm.job_environment import notices, requeue_job


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP])
def test_the_first_notice_is_passed_on_and_others_are_noted(number: signal.Signals) -> None:
    before, told = signal.getsignal(number), []

    with notices(told.append) as came:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)

    assert told == [number]
    assert came == [number, signal.SIGTERM]
    assert signal.getsignal(number) is before


def test_a_node_without_slurms_commands_says_that_its_job_is_not_requeued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)

    with caplog.at_level(logging.ERROR):
        assert not requeue_job()

    assert "job 12 was not requeued: squeue: not found on PATH" in caplog.text
    assert "submit again" in caplog.text
