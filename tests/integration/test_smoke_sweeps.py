"""Every architecture by one command: `memscale submit smoke` on embedded Ray, one MLflow experiment, one report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import analysis
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

MEMSCALE = Path(sys.executable).with_name("memscale")
SMOKE = Path(__file__).parents[2] / "sweeps" / "smoke"


def usage_prefix(name: str) -> str | None:
    """The prefix of what an architecture reports of its experts or tables, if it has any."""
    module = registry.architecture(name)
    count = module.Config(**module.PRESETS["d24"]).param_count(64)
    if count.memory_values:
        return "memory/"
    return "moe/" if count.router else None


def _memscale(*arguments: object, folder: Path) -> str:
    # Away from the checkout, as a user of the installed command is.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    done = subprocess.run(
        [MEMSCALE, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_a_smoke_sweep_for_every_architecture():
    names = registry.architectures()

    assert {path.stem for path in SMOKE.glob("*.yaml")} == set(names)
    for name in names:
        sweep = load_sweep(SMOKE / f"{name}.yaml")
        assert sweep.name == "smoke"
        assert {spec.architecture for spec in sweep.trials} == {name}


@pytest.mark.long
def test_all_architectures_one_command_one_experiment_one_figure(tmp_path, make_store):
    make_store(tmp_path / "runs")
    _memscale("submit", "smoke", "--runs", "runs", folder=tmp_path)

    trials = SweepDir(tmp_path / "runs" / "smoke").trials()
    trained = {trial.spec().architecture: trial for trial in trials}
    assert set(trained) == set(registry.architectures())
    assert len(trials) == 2 * len(trained)
    assert all(trial.result() is not None for trial in trials)

    runs = analysis.load(f"sqlite:///{tmp_path}/runs/mlflow.db", sweep="smoke")
    assert len(runs.excluded) == 0
    assert set(runs.table["architecture"]) == set(trained)
    assert len(runs.table) == len(trials)
    for name, trial in trained.items():
        rows = [
            json.loads(line)
            for line in (trial.attempts()[-1].path / "journal.jsonl").read_text().splitlines()
        ]
        prefix = usage_prefix(name)
        reported = [row for row in rows if prefix and prefix in json.dumps(row)]
        assert len(reported) >= 2 if prefix else "memory/" not in json.dumps(rows), name

    _memscale("report", "smoke", "--runs", "runs", folder=tmp_path)

    report = tmp_path / "runs" / "smoke" / "report"
    for picture in ("accuracy.png", "usage.png"):
        assert (report / picture).stat().st_size > 20_000
    page = (report / "report.html").read_text()
    assert all(name in page for name in trained)
    assert "<img" in page or "<svg" in page
