"""`resources: {gpus: 0.5}` and nothing else makes trials clients of MPS; a stand-in for NVIDIA's daemon serves them."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.node import mps, supervisor
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState

pytestmark = [pytest.mark.integration, pytest.mark.long]

SWEEP = """
name: shares
data: {source: biographies, style: compact, n_people: 40, n_wordings: 1, question_share: 0.0}
train: {tokens: 1024, batch_tokens: 256, seq_len: 32, lr: 0.01}
model: {architecture: dense, preset: d12}
trials:
  - grid: {train.lr: [0.01, 0.02]}
    set: {resources.gpus: 0.5}
  - set: {resources.gpus: 1, train.lr: 0.03}
"""
CONTROL = """\
#!{python} -S
import os, pathlib, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    pathlib.Path({pid!r}).write_text(str(os.getpid()))
    (pipes / "control").touch()
    while not (pipes / "quit").exists():
        time.sleep(0.01)
elif sys.stdin.read() == "quit\\n":
    (pipes / "quit").touch()
"""
CLIENT = "import os; assert os.path.exists(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/control')"


def test_trials_with_a_fraction_of_a_gpu_are_clients_of_one_daemon(tmp_path, monkeypatch):
    control, pid = tmp_path / "control", tmp_path / "pid"
    control.write_text(CONTROL.format(python=sys.executable, pid=str(pid)))
    control.chmod(0o755)
    daemon = partial(mps.MpsDaemon, control=str(control), client=CLIENT)
    monkeypatch.setattr(supervisor, "MpsDaemon", daemon)
    monkeypatch.delenv(mps.PIPES, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.chdir(tmp_path)
    Path("shares.yaml").write_text(SWEEP)

    words = ["submit", "shares.yaml", "--launcher", "process", "--quiet"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)

    assert done.exit_code == 0, done.output
    pipes: dict[float, list[str | None]] = {}
    for trial in SweepDir(tmp_path / "runs" / "shares").trials():
        assert trial.state() is TrialState.DONE
        (attempt,) = trial.attempts()
        seen = json.loads((attempt.path / "environment.json").read_text())["variables"]
        assert seen["CUDA_VISIBLE_DEVICES"] == "0"
        pipes.setdefault(attempt.launch()["gpus"], []).append(seen.get(mps.PIPES))
    assert pipes[1] == [None]
    assert len(pipes[0.5]) == 2
    assert len({*pipes[0.5]} - {None}) == 1
    assert ProcessId.of(int(pid.read_text())) is None, "the daemon ended with the sweep"
