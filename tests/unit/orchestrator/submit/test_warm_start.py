"""When `memscale submit` has imports begin before its plan is there, and that none is left over."""

import gc

import pytest
import typer
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.cli import submit as command
from orchestrator.submit import warm_start
from orchestrator.submit.warm_start import WarmStart

SWEEP = """name: s
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense, preset: d16}
"""


class Interpreter:
    made: list["Interpreter"]

    def __init__(self, environment):
        self.environment, self.closed = environment, False
        self.made.append(self)

    def close(self):
        self.closed = True


def cores(monkeypatch, *, usable, there, running):
    monkeypatch.setattr(warm_start, "usable_cores", lambda: usable)
    monkeypatch.setattr(warm_start.os, "cpu_count", lambda: there)
    monkeypatch.setattr(warm_start, "n_running", lambda: running)


@pytest.fixture
def made(monkeypatch):
    """Return the interpreters that were started."""
    Interpreter.made = []
    monkeypatch.setattr(warm_start, "WarmInterpreter", Interpreter)
    cores(monkeypatch, usable=2, there=2, running=1)
    return Interpreter.made


@pytest.fixture
def ran(monkeypatch):
    """Return with what submissions were run, none of which trains."""
    runs = []

    def run(request, *, warm, **how):
        assert warm is None or not any(one.closed for one in Interpreter.made)
        runs.append(None if warm is None else warm.interpreter)
        raise typer.Exit(1)

    monkeypatch.setattr(command, "_run", run)
    return runs


def submit(folder, *options, text=SWEEP):
    (folder / "s.yaml").write_text(text)
    words = ["submit", folder / "s.yaml", "--runs", folder / "runs", *options]
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def test_a_submission_to_ray_of_this_machine_has_one(made, ran, tmp_path):
    assert submit(tmp_path).exit_code == 1

    assert ran == made
    (one,) = made
    assert one.closed
    assert one.environment["MEMSCALE_SWEEP_DIR"] == str(tmp_path / "runs" / "s")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--launcher", "process"),
        ("--launcher", "debug"),
        ("--address", "auto"),
        ("--detach",),
        ("--dry-run",),
    ],
)
def test_others_have_none(made, ran, tmp_path, options):
    submit(tmp_path, *options)
    assert made == []


def test_a_sweep_with_a_mistake_leaves_none(made, ran, tmp_path):
    result = submit(tmp_path, text=SWEEP.replace("d16", "d17"))

    assert result.exit_code != 0
    assert ran == []
    assert [one.closed for one in made] == [True]


def test_steps_are_timed_without_it(made, ran, tmp_path):
    text = SWEEP + "trials: [{grid: {model.preset: [d16]}, match: {step_time: dense}}]\n"
    submit(tmp_path, text=text)
    assert ran == [None]
    assert made == []


@pytest.mark.parametrize(("usable", "there", "running"), [(1, 8, 1), (2, 2, 2), (4, 8, 9)])
def test_without_a_free_core_planning_goes_first(
    made, monkeypatch, tmp_path, usable, there, running
):
    cores(monkeypatch, usable=usable, there=there, running=running)
    warm = WarmStart(tmp_path)
    warm.begin("s")
    warm.close()
    assert made == []


def test_counts_what_runs_now(tmp_path):
    loads = tmp_path / "loadavg"
    loads.write_text("0.20 0.18 0.12 3/80 11206\n")
    assert warm_start.n_running(loads) == 3
    assert warm_start.n_running() >= 1


def test_a_machine_that_starts_nothing_more_plans_without(made, monkeypatch, tmp_path):
    def fail(environment):
        raise OSError("no process left")

    monkeypatch.setattr(warm_start, "WarmInterpreter", fail)
    warm = WarmStart(tmp_path)
    warm.begin("s")
    warm.close()
    assert warm.interpreter is None


def test_the_collector_looks_at_no_plan(made, ran, tmp_path):
    """What planning leaves, torch above all, took a third of a second to look through."""
    before = gc.get_freeze_count()
    submit(tmp_path)
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()
