"""Trials that share a GPU train in few processes, with the numbers of one process each; a stand-in for the GPU is a name."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.node import mps
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from workloads.checkpoint import checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.long]

SWEEP = """
name: reuse
data: {source: biographies, style: compact, n_people: 40, n_wordings: 1, question_share: 0.0}
train: {tokens: 2048, batch_tokens: 256, seq_len: 32, lr: 0.01}
model: {architecture: memory_plus, preset: d12}
trials:
  - grid: {train.lr: [0.01, 0.02]}
seeds: [0, 1]
logging: {every_steps: 1, evaluations: 2}
"""
OF_TIME = ("time/", "step_time/", "device/", "system/", "train/tokens_per_s")


def trained(runs, resources):
    """Submit the sweep; return its processes, and per trial the numbers and weights."""
    file = Path(f"{runs}.yaml")
    file.write_text(f"{SWEEP}resources: {resources}\n")
    words = ["submit", str(file), "--runs", runs, "--launcher", "process", "--quiet"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    processes, found = set(), {}
    for trial in SweepDir(Path(runs) / "reuse").trials():
        (attempt,) = trial.attempts()
        processes.update(registered(attempt))
        numbers = {
            name: [value for _, value in points.values()]
            for name, points in trial.metrics().items()
            if not name.startswith(OF_TIME)
        }
        assert numbers["train/loss"]
        weights = checkpoint.load(trial.checkpoints / checkpoint.FINAL)["weights"]
        found[trial.trial_id] = numbers, weights
    return processes, found


def test_trials_of_one_kind_share_processes_and_find_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(mps.PIPES, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    one_each, expected = trained("cpu", "{gpus: 0}")
    shared, found = trained("share", "{gpus: 0.5}")

    assert len(one_each) == 4
    assert len(shared) == 2
    assert found.keys() == expected.keys()
    for trial, (numbers, weights) in found.items():
        assert numbers == expected[trial][0]
        assert weights.keys() == expected[trial][1].keys()
        assert all(torch.equal(weights[name], expected[trial][1][name]) for name in weights)
