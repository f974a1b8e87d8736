"""A sweep file that lost trials: status and report count the same, in the same words."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

import analysis
from analysis.report.tables import warnings
from orchestrator.cli.render.progress import status_table
from orchestrator.control.status import status_from_disk
from orchestrator.records.sweep_dir import SweepDir

SIZES = (32, 48, 64, 96, 128, 192)


@pytest.fixture
def shrunk(synthetic, tmp_path):
    """A sweep whose last submission asks for the first four of six trials; the last never ran."""
    made = synthetic.make_sweep(sizes=SIZES, seeds=(0,), architectures=("dense",))
    train = {**made[0].spec.train, "batch_tokens": 10_000}
    trials = [replace(trial, spec=replace(trial.spec, train=train)) for trial in made]
    for trial in trials[:-1]:
        synthetic.write_done(tmp_path, trial)
    sweep = SweepDir(tmp_path / "synthetic")
    sweep.add_trials(trial.spec for trial in trials)
    for n_asked in (6, 4):
        ids = [trial.spec.trial_id for trial in trials[:n_asked]]
        sweep.add_submission({"submitted_at": 1.0, "trial_ids": ids})
    return sweep, trials


def test_status_and_report_say_the_same_of_trials_that_left_the_sweep_file(shrunk):
    sweep, trials = shrunk
    said = (
        "2 trials are not in the sweep file as last submitted: 1 done, which fits and reports "
        "count, and 1 not done, which train once a file asks for them again"
    )

    status = status_from_disk(sweep, now=1.0)
    runs = analysis.load(sweep.path.parent)

    assert (len(status.trials), status.earlier) == (4, said)
    assert (len(runs.table), list(runs.notes)) == (5, [f"synthetic: {said}"])
    (left,) = runs.excluded.itertuples()
    assert (left.trial_id, left.state) == (trials[-1].spec.trial_id, "left alone")
    assert left.reason == "not started; not in the sweep file as last submitted"
    console = Console(width=300, file=io.StringIO())
    console.print(status_table(status))
    assert f"note: {said}" in console.file.getvalue()
    assert said in warnings(runs, analysis.fit_sweep(runs)).rows[0][0]


def test_a_report_does_not_ask_to_finish_what_submitting_again_leaves_alone(shrunk):
    from analysis.report.contents import report_contents

    runs = analysis.load(shrunk[0].path.parent)

    assert not any(
        "Finish the sweep first" in text
        for text in report_contents(runs, analysis.fit_sweep(runs)).advice
    )


def test_nothing_is_said_of_a_sweep_that_asks_for_all_its_trials(shrunk):
    sweep, trials = shrunk
    ids = [trial.spec.trial_id for trial in trials]
    sweep.add_submission({"submitted_at": 2.0, "trial_ids": ids})

    runs = analysis.load(sweep.path.parent)

    assert status_from_disk(sweep, now=1.0).earlier == ""
    assert list(runs.notes) == []
    assert runs.excluded["state"].tolist() == ["waiting"]
