"""A runs folder of version 0.1.0 (tests/golden/test_recorded_runs.py) is resumed and reported."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState

pytestmark = pytest.mark.integration

RECORDED = Path(__file__).parents[1] / "golden" / "recorded_runs.tar.gz"
DONE = "dense-17daa1858bc3"
FAILED = "dense-4aea58ac29f3"
INTERRUPTED = "memory_plus-5072d636fd76"


AS_DATA = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""What Python takes from 3.11.4 on."""


@pytest.fixture
def sweep(tmp_path, make_store):
    with tarfile.open(RECORDED) as recorded:
        recorded.extractall(tmp_path / "runs", **AS_DATA)
    make_store(tmp_path / "runs")
    return SweepDir(tmp_path / "runs" / "recorded")


def memscale(sweep, *words):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "MEMSCALE_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "orchestrator.cli", *words, "--runs", sweep.path.parent],
        env={**kept, "MLFLOW_DISABLE_TELEMETRY": "true", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_submitting_it_again_trains_only_what_is_missing(sweep):
    file = sweep.path.parent.parent / "recorded.yaml"
    file.write_bytes((sweep.path / "sweep.yaml").read_bytes())
    result = (sweep.trial(DONE).path / "result.json").read_bytes()

    said = memscale(sweep, "submit", str(file), "--launcher", "process", "-q")

    assert "recorded: 3 trials, 2 to train, 1 already done." in said
    assert {trial.state() for trial in sweep.trials()} == {TrialState.DONE}
    assert (sweep.trial(DONE).path / "result.json").read_bytes() == result
    assert [len(sweep.trial(i).attempts()) for i in (DONE, FAILED, INTERRUPTED)] == [1, 2, 2]
    for trial_id, step in ((FAILED, 64), (INTERRUPTED, 84)):
        lines = list(sweep.trial(trial_id).attempt(2).lines())
        first = min(line.step for line in lines if line.step is not None)
        assert step < first <= step + 10, trial_id
    assert "3 done" in memscale(sweep, "status", "recorded")
    memscale(sweep, "report", "recorded")
    assert (sweep.path / "report" / "report.html").is_file()
