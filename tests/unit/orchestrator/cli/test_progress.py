"""What is told of a running sweep where there is no terminal to redraw (`submit -q`)."""

import dataclasses
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from orchestrator.cli.app import find_trial
from orchestrator.cli.render.progress import LiveSweep, outcome_text, status_table, totals_text
from orchestrator.cli.submit import counts_text
from orchestrator.control.status import SweepStatus, TrialStatus
from orchestrator.records.trial_spec import Outcome, TrialState
from orchestrator.submit.submission import SubmissionResult
from orchestrator.tracking.exporter_process import DrainResult

STATUS = SweepStatus(
    sweep="s",
    submission=1,
    trials=(),
    controller_alive=True,
    controller="pid 1 on here",
    stopping=False,
    time_left_s=None,
    updated_at=0.0,
)
FULL = dataclasses.replace(STATUS, full_disk="the disk of runs/s is full since about noon: 0 free")


def test_a_full_disk_is_told_at_once_and_when_it_is_over():
    console = Console(width=200, file=io.StringIO(), highlight=False)
    with LiveSweep(console, quiet=True) as live:
        for status in (STATUS, STATUS, FULL, FULL, STATUS):
            live.update(status)
    console.print(status_table(FULL))

    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert [FULL.full_disk == line for line in lines[:4]] == [False, False, True, False]
    assert lines.count(FULL.full_disk) == 2, "once in lines, once in the table"


def test_the_last_totals_are_said_once_and_the_report_is_named():
    spec = {"trial_id": "dense-0", "architecture": "dense", "preset": None, "seed": 0, "steps": 9}
    done = TrialStatus(**spec, state=TrialState.DONE, step=9)
    status = dataclasses.replace(STATUS, trials=(done,))
    sent = DrainResult(points_waiting=0, problem=None)
    result = SubmissionResult(status=status, interrupted=False, drained=sent)
    console = Console(width=200, file=io.StringIO(), highlight=False)
    with LiveSweep(console, quiet=True) as live:
        live.update(STATUS)
        live.update(status)

    console.print(outcome_text(result, runs_option=" --runs r", said=live.totals))

    assert [line.strip() for line in console.file.getvalue().splitlines()] == [
        "s: 0 done  0 running  0 waiting",
        "s: 1 done  0 running  0 waiting",
        "Results: memscale report s --runs r",
    ]


def test_the_command_for_the_log_of_a_failed_trial_names_its_sweep(tmp_path):
    spec = {"trial_id": "dense-0", "architecture": "dense", "preset": None, "seed": 0, "steps": 9}
    failed = TrialStatus(**spec, state=TrialState.FAILED, step=0, reason="ValueError: no")
    status = dataclasses.replace(STATUS, trials=(failed,))
    sent = DrainResult(points_waiting=0, problem=None)
    result = SubmissionResult(status=status, interrupted=False, drained=sent)
    console = Console(width=200, file=io.StringIO(), highlight=False)
    console.print(outcome_text(result, runs_option=f" --runs {tmp_path}"))
    for sweep in ("s", "twin"):
        (tmp_path / sweep / "trials" / "dense-0").mkdir(parents=True)
        (tmp_path / sweep / "trials" / "dense-0" / "spec.json").touch()

    _, verb, name, *_ = console.file.getvalue().splitlines()[-1].split()

    assert verb == "logs"
    assert find_trial(tmp_path, name).path == tmp_path / "s" / "trials" / "dense-0"


def test_why_trials_wait_while_none_runs_is_told_after_a_moment(monkeypatch):
    spec = {"trial_id": "dense-0", "architecture": "dense", "preset": None, "seed": 0, "steps": 9}
    waiting = TrialStatus(**spec, state=TrialState.WAITING, step=0, wait="needs 1 GPU")
    stuck = dataclasses.replace(STATUS, trials=(waiting,))
    running = dataclasses.replace(waiting, state=TrialState.RUNNING, wait="")
    busy = dataclasses.replace(STATUS, trials=(waiting, running))
    console = Console(width=200, file=io.StringIO(), highlight=False)
    seconds = iter([100.0, 102.0, 104.0, 107.0, 112.0, 113.0, 114.0])
    monkeypatch.setattr("orchestrator.cli.render.progress.time.monotonic", lambda: next(seconds))

    with LiveSweep(console, quiet=True) as live:
        for status in (busy, stuck, stuck, stuck, stuck, busy, stuck):
            live.update(status)

    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert [line == "waiting: 1 trial: needs 1 GPU" for line in lines] == [0, 0, 1, 0]


def test_a_tracker_that_lacks_something_is_told_once_and_when_it_is_over():
    console = Console(width=200, file=io.StringIO(), highlight=False)
    away = {"http://tracker:5000": "it is away"}
    with LiveSweep(console, quiet=True) as live:
        for trackers in ({}, away, away, {}):
            live.update(STATUS, trackers)

    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert [line.endswith("folders: it is away") for line in lines] == [False, False, True, False]


@pytest.mark.parametrize(
    ("points", "problem", "said"),
    [
        (0, None, None),
        (0, "the exporter failed", "part of the sweep not in MLflow yet (the exporter failed); "),
        (1, "it is away", "1 point not in MLflow yet (it is away); "),
    ],
)
def test_what_a_tracker_lacks_at_the_end_is_told_as_it_is(points, problem, said):
    drained = DrainResult(points_waiting=points, problem=problem)
    result = SubmissionResult(status=STATUS, interrupted=True, drained=drained)
    console = Console(width=200, file=io.StringIO(), highlight=False)
    console.print(outcome_text(result, runs_option=""))

    told = [line for line in console.file.getvalue().splitlines() if "MLflow" in line]
    assert told == [] if said is None else told[0].startswith(said)
    assert " 0 points" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (
            ["done", "cancelled"],
            "ended; what was cancelled is trained only if it is submitted again",
        ),
        (["failed", "cancelled"], "ended; submit it again to retry what failed or was cancelled"),
        (["failed", "done"], "ended; submit it again to retry what failed or was cancelled"),
        (["waiting", "cancelled"], "nothing is running it; submit it again to go on"),
        (["done"], ""),
    ],
)
def test_a_sweep_that_nothing_runs_says_what_submitting_again_would_do(states, said):
    trials = tuple(
        TrialStatus(
            trial_id=f"dense-{i}",
            architecture="dense",
            preset=None,
            seed=i,
            steps=5,
            state=TrialState(state),
            step=0,
        )
        for i, state in enumerate(states)
    )
    status = dataclasses.replace(STATUS, controller_alive=False, trials=trials)

    assert totals_text(status).plain.endswith(said or "waiting  ")


@pytest.mark.parametrize("why", ["spec.json: not JSON", "dense-1: somebody removed this folder"])
def test_what_is_set_aside_is_submitted_again_with_damaged_files_restored(why):
    status = dataclasses.replace(
        STATUS, controller_alive=False, trials=(), unreadable=(why,), time_left_s=0.0
    )

    text = totals_text(status).plain
    # True of a removed folder, too: it has no files to restore.
    assert text.endswith(
        "ended; submit it again to train what is set aside, with damaged files restored"
    )
    assert "about" not in text


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (
            [Outcome.DIVERGED, Outcome.USER_ERROR],
            "ended; what failed would end the same way: mend its cause, then submit it again",
        ),
        ([Outcome.DIVERGED, Outcome.HANG], "submit it again to retry what failed or was cancelled"),
    ],
)
def test_what_would_fail_again_is_not_to_be_retried_as_it_is(outcomes, said):
    trials = tuple(
        TrialStatus(
            trial_id=f"dense-{outcome}",
            architecture="dense",
            preset=None,
            seed=0,
            steps=5,
            state=TrialState.FAILED,
            outcome=outcome,
        )
        for outcome in outcomes
    )
    status = dataclasses.replace(STATUS, controller_alive=False, trials=trials)

    assert totals_text(status).plain.endswith(said)


def test_totals_of_some_trials_say_of_how_many():
    """After `status --where`."""
    assert totals_text(STATUS).plain.startswith("s: 0 done")
    assert totals_text(dataclasses.replace(STATUS, hidden=36)).plain.startswith(
        "s, 0 of 36 trials: 0 done"
    )


def test_a_submission_says_what_becomes_of_all_its_trials():
    def told(**counts):
        return counts_text(
            [
                SimpleNamespace(status=status, to_train=status in ("new", "resume"))
                for status, n in counts.items()
                for _ in range(n)
            ]
        )

    assert told(new=2, done=1) == "3 trials, 2 to train, 1 already done"
    assert told(new=20, resume=8, done=6, running=2) == (
        "36 trials, 28 to train, 2 running, 6 already done"
    )
