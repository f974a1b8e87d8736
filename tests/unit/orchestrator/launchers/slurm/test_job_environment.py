"""Signals by which Slurm, or the end of what started a job, announce the end of an allocation."""

import signal

import pytest

from orchestrator.launchers.slurm.job_environment import notices


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP])
def test_the_first_notice_is_passed_on_and_others_are_noted(number: signal.Signals) -> None:
    before, told = signal.getsignal(number), []

    with notices(told.append) as came:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)

    assert told == [number]
    assert came == [number, signal.SIGTERM]
    assert signal.getsignal(number) is before
