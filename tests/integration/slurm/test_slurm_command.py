"""`memscale submit --backend …` as a person types it, with real training, on real daemons."""

import os
import subprocess
import sys

import pytest

from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SWEEP = """
name: tiny
data: {source: biographies, style: compact, n_people: 60, n_first_names: 10, n_middle_names: 10, n_last_names: 10, n_years: 5, n_cities: 5, n_universities: 5, n_majors: 5, n_employers: 5}
train: {tokens: 5_120, batch_tokens: 256, seq_len: 32, lr: 1.0e-2}
model: {architecture: dense, preset: d12}
trials:
  - grid: {model.preset: [d12]}
resources: {gpus: 0}
seeds: [0, 1]
logging: {every_steps: 5, evaluations: 2, checkpoint_every_s: 0.2}
"""


class Place:
    """A folder in which somebody works with the command."""

    def __init__(self, folder):
        self.folder = folder
        self.disk = SweepDir(folder / "runs" / "tiny")
        (folder / "tiny.yaml").write_text(SWEEP, encoding="utf-8")

    def run(self, *words, code=0):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "MEMSCALE_"))}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "orchestrator.cli", *words],
            cwd=self.folder,
            env={**kept, "MLFLOW_DISABLE_TELEMETRY": "true", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def place(slurm, tmp_path):
    yield Place(tmp_path)
    slurm.end_jobs()


def test_one_job_for_each_trial(slurm, place):
    text = place.run("submit", "tiny.yaml", "--backend", "slurm-direct", "--time", "30", "--quiet")

    assert "2 trials, 2 to train as Slurm job" in text
    assert {t.state() for t in place.disk.trials()} == {TrialState.DONE}
    assert "2 done" in place.run("status", "tiny")
    assert "The tracker has every point" in place.run("sync", "tiny")
    again = place.run("submit", "tiny.yaml", "--backend", "slurm-direct")
    assert "2 trials, 0 to train" in again
    assert slurm.jobs() == []


def test_a_pilot_that_outlives_the_command(slurm, place, eventually):
    text = place.run(
        *("submit", "tiny.yaml", "--backend", "slurm", "--cpus", "2", "--nodes", "1:2"),
        *("--partition", "low", "--time", "1:00:00", "--slurm", "comment=tiny", "--detach"),
    )

    assert "2 trials, 2 to train as Slurm job" in text
    (job_id,) = slurm.jobs()
    assert "Comment=tiny" in slurm.command("scontrol", "show", "job", job_id)
    refused = place.run("submit", "tiny.yaml", "--backend", "slurm", code=3)
    assert f"Slurm job {job_id} is" in refused
    eventually(lambda: not slurm.jobs(), "the end of the job", 400.0)
    assert "2 done" in place.run("status", "tiny")
    assert "The tracker has every point" in place.run("sync", "tiny")
