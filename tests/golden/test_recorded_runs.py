"""A runs folder of version 0.1.0, recorded before its code was reorganised, still reads the same.

`recorded_runs.tar.gz` holds one small sweep: a dense trial that is done, one that failed (its rank
was killed), and a memory_plus trial that was interrupted at step 84 with a checkpoint of that step.
Names of machine, folders and user are invented; locks, the tracker and the copy of the code are left
out. `tests/integration/test_recorded_runs.py` resumes it.
"""

import tarfile
from pathlib import Path

import pytest

import analysis
from orchestrator.cli.app import make_plan
from orchestrator.control.status import NO_CONTROLLER, status_from_disk
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, TrialState, identity_difference
from orchestrator.tracking import sync_state

DONE = "dense-17daa1858bc3"
FAILED = "dense-4aea58ac29f3"
INTERRUPTED = "memory_plus-5072d636fd76"


AS_DATA = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""What Python takes from 3.11.4 on."""


@pytest.fixture
def sweep(tmp_path):
    with tarfile.open(Path(__file__).parent / "recorded_runs.tar.gz") as recorded:
        recorded.extractall(tmp_path / "runs", **AS_DATA)
    return SweepDir(tmp_path / "runs" / "recorded")


def test_the_status_says_how_every_trial_stands(sweep):
    status = status_from_disk(sweep)

    by_id = {trial.trial_id: trial for trial in status.trials}
    assert list(by_id) == [FAILED, DONE, INTERRUPTED]
    assert by_id[DONE].state is TrialState.DONE
    assert by_id[DONE].loss == pytest.approx(2.8221553804779735, abs=1e-15)
    assert by_id[FAILED].state is TrialState.FAILED
    assert by_id[FAILED].outcome is Outcome.KILLED
    assert by_id[INTERRUPTED].state is TrialState.WAITING
    assert (by_id[INTERRUPTED].step, by_id[INTERRUPTED].wait) == (84, NO_CONTROLLER)
    # The same without the cache of statuses.
    (sweep.path / "statuses.jsonl").unlink()
    assert status_from_disk(sweep, now=status.updated_at) == status


def test_its_sweep_file_still_asks_for_the_same_trials(sweep):
    plan = make_plan([sweep.path / "sweep.yaml"], sweep.path.parent)

    found = {t.spec.trial_id: (t.status, round(300 * t.remaining)) for t in plan.trials}
    assert found == {FAILED: ("retry", 236), DONE: ("done", 0), INTERRUPTED: ("resume", 216)}
    assert plan.left_over == ()
    for trial in plan.trials:
        recorded = sweep.trial(trial.spec.trial_id).spec()
        # Fields that are newer than the recording are None, which no id contains.
        assert identity_difference(recorded.identity(), trial.spec.identity()) == []
        # The memory estimate counts more than it did: what records the use of rows.
        counted = trial.spec.accounting | {"peak_memory_bytes": 0}
        assert counted.pop("model_state_bytes") < trial.spec.accounting["peak_memory_bytes"]
        assert counted == recorded.accounting | {"peak_memory_bytes": 0}


def test_analysis_loads_its_results_and_says_what_is_missing(sweep):
    runs = analysis.load(sweep.path.parent, sweep="recorded")

    assert list(runs.table["trial_id"]) == [DONE]
    assert list(runs.table["loss"]) == [2.8221553804779735]
    assert set(runs.excluded["trial_id"]) == {FAILED, INTERRUPTED}


def test_what_was_sent_to_a_tracker_is_known(sweep):
    uri = "sqlite:////home/researcher/sweeps/runs/mlflow.db"

    assert sync_state.load_parent(sweep, uri) is not None
    assert sync_state.load_parent(sweep, "sqlite:///another.db") is None
    assert sync_state.points_waiting(sweep, uri) == 0
    assert sync_state.points_waiting(sweep, "sqlite:///another.db") > 0
