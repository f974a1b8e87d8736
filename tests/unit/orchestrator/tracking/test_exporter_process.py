"""When the exporter of a sweep starts, and with which environment; a stub takes its place."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.records.locks import locked
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.tracking import exporter_process, sync_state
from orchestrator.tracking.exporter_process import exporting


@pytest.fixture
def started(monkeypatch):
    """The environments of the processes that were started; each ends when it is told to."""
    environments = []

    def popen(command, *, env, **settings):
        environments.append(env)
        stdin = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115 -- the exporter closes it
        return SimpleNamespace(stdin=stdin, poll=lambda: None, wait=lambda timeout: 0, pid=1)

    monkeypatch.setattr(exporter_process.subprocess, "Popen", popen)
    return environments


def test_it_starts_when_it_is_told_to_and_once(tmp_path, started):
    with exporting(SweepDir(tmp_path), at_once=False) as exporter:
        exporter.keep_alive()
        assert started == []
        assert not exporter.alive()
        exporter.begin()
        exporter.begin()
        exporter.keep_alive()
        assert exporter.alive()
    assert len(started) == 1


def test_without_a_word_it_starts_by_itself_after_a_while_or_at_the_end(
    tmp_path, started, monkeypatch
):
    with exporting(SweepDir(tmp_path), at_once=False) as exporter:
        exporter.keep_alive(wait_s=0.0)
        assert len(started) == 1
    with exporting(SweepDir(tmp_path), at_once=False):
        assert len(started) == 1
    assert len(started) == 2


def test_one_that_fails_is_not_said_to_have_taken_too_long(tmp_path, monkeypatch):
    stdin = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115 -- the exporter closes it
    failed = SimpleNamespace(stdin=stdin, poll=lambda: 1, wait=lambda timeout: 1, pid=1)
    monkeypatch.setattr(exporter_process.subprocess, "Popen", lambda *_, **__: failed)
    with exporting(SweepDir(tmp_path)) as exporter:
        pass

    assert exporter.problem == "the exporter failed; see tracking.log beside the sweep"


def test_a_wrong_address_is_forgotten_once_sync_has_told_it(sweep, monkeypatch):
    """But not where it was known before: a tracker that is only down took nothing, either."""
    runs, wrong = sweep.disk.path.parent, "http://wrong"

    def fail(*_: object, **__: object) -> SimpleNamespace:
        stdin = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115 -- the exporter closes it
        sync_state.save_problem(sweep.disk, wrong, "nothing answers at http://wrong")
        return SimpleNamespace(stdin=stdin, poll=lambda: 4, wait=lambda timeout: 4, pid=1)

    monkeypatch.setattr(exporter_process.subprocess, "Popen", fail)
    words = ["sync", "demo", "--runs", str(runs), "--tracking-uri", wrong]
    sweep.submit([])
    sweep.disk.path.joinpath("trials").mkdir(exist_ok=True)

    told = CliRunner().invoke(app, words)

    assert told.exit_code == 1
    assert "nothing answers at http://wrong" in told.output
    assert sync_state.problems(sweep.disk) == {}

    lock = locked(sweep.disk.path / sync_state.LOCK)
    CliRunner().invoke(app, words)
    os.close(lock)
    assert sync_state.problems(sweep.disk), "another exporter is at work"
    CliRunner().invoke(app, words)
    assert sync_state.problems(sweep.disk), "it was known before"


def test_it_has_the_environment_of_before_what_a_launcher_set(tmp_path, started, monkeypatch):
    monkeypatch.setenv("MARK_OF_A_LAUNCHER", "1")
    with exporting(SweepDir(tmp_path), "http://tracker", environment={"PATH": "/bin"}):
        pass
    (environment,) = started
    assert environment["PATH"] == "/bin"
    assert environment["MLFLOW_TRACKING_URI"] == "http://tracker"
    assert "MARK_OF_A_LAUNCHER" not in environment
