"""Whoever only reads survives storage that fails, too: what the commands say, and a table that is watched."""

import dataclasses
import errno
import io
import os

import pytest
import typer
from rich.console import Console

from orchestrator.cli.app import errors_as_sentences
from orchestrator.cli.render import progress
from orchestrator.control.failure_classifier import EXIT_CODES
from orchestrator.control.status import SweepStatus
from orchestrator.node.fork_server import _exit_code
from orchestrator.records.circuit_breaker import WARN_EVERY_S, CircuitBreaker
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome


def failure(path=None):
    return OSError(errno.EIO, os.strerror(errno.EIO), *([] if path is None else [str(path)]))


def test_an_outage_begins_with_an_error_and_is_told_once_a_minute(tmp_path, caplog):
    now = [1000.0]
    breaker = CircuitBreaker(tmp_path, clock=lambda: now[0])
    for _ in range(150):
        with breaker.guarded():
            raise failure()
        now[0] += 1.0

    assert breaker.is_open
    assert breaker.reason().startswith(f"the storage of {tmp_path} fails (Input/output error); ")
    assert breaker.reason().endswith("(for 2 min 30 s)")
    assert len(caplog.messages) == 1 + 150 // WARN_EVERY_S

    breaker.close()
    assert not breaker.is_open


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "x"), ValueError("x")])
def test_other_errors_are_no_outage(tmp_path, error):
    breaker = CircuitBreaker(tmp_path)

    with pytest.raises(type(error)), breaker.guarded():
        raise error
    assert not breaker.is_open


def test_a_command_says_what_fails_in_a_sentence(tmp_path, capsys):
    with pytest.raises(typer.Exit) as caught, errors_as_sentences(tmp_path):
        raise failure()

    assert caught.value.exit_code == 75
    assert capsys.readouterr().err.startswith(f"the storage of {tmp_path} fails (Input/output")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_command_says_where_it_is_full(tmp_path, capsys, code):
    with pytest.raises(typer.Exit) as caught, errors_as_sentences(tmp_path):
        raise OSError(code, os.strerror(code), str(tmp_path / "report.html"))

    said = capsys.readouterr().err
    assert caught.value.exit_code == 75
    assert f"at {tmp_path}/report.html ({os.strerror(code)})" in said
    assert "make room, or name another folder" in said
    assert "checkpoint" not in said


def test_a_watched_table_outlives_it(tmp_path, monkeypatch):
    ended = SweepStatus(
        sweep="s",
        submission=1,
        trials=(),
        controller_alive=True,
        controller="pid 1 on h",
        stopping=False,
        time_left_s=None,
        updated_at=0.0,
    )
    answers = [ended, failure(), failure(), dataclasses.replace(ended, controller_alive=False)]

    def status(sweep, ask_queue):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(progress, "status_from_disk", status)
    monkeypatch.setattr(progress.time, "sleep", lambda seconds: None)

    progress.watch(SweepDir(tmp_path / "s"), Console(file=io.StringIO()))

    assert answers == []


def test_a_rank_whose_log_cannot_be_opened_ends_as_what_it_is(tmp_path):
    assert _exit_code(failure(tmp_path / "log.txt")) == EXIT_CODES[Outcome.STORAGE]
    assert _exit_code(OSError(errno.ENOSPC, "x")) == EXIT_CODES[Outcome.DISK_FULL]
    assert _exit_code(ValueError("x")) == EXIT_CODES[Outcome.USER_ERROR]
