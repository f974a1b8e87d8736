"""Trials that share a GPU train in few processes, with the numbers of one process each; a stand-in for the GPU is a name."""

import os
import signal
import threading
import time
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
train: {tokens: 8192, batch_tokens: 256, seq_len: 32, lr: 0.01}
model: {architecture: memory_plus, preset: d12}
trials:
  - grid: {train.lr: [0.01, 0.02]}
seeds: [0, 1]
logging: {every_steps: 1, evaluations: 2}
"""
OF_TIME = ("time/", "step_time/", "device/", "system/", "train/tokens_per_s")


def submit(runs, resources, more=""):
    """Submit the sweep and wait for its end."""
    file = Path(f"{runs}.yaml")
    file.write_text(f"{SWEEP}resources: {resources}\n{more}")
    words = ["submit", str(file), "--runs", runs, "--launcher", "process", "--quiet"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def results(runs):
    """Return the processes of a sweep, and per trial the numbers and weights."""
    processes, found = set(), {}
    for trial in SweepDir(Path(runs) / "reuse").trials():
        for attempt in trial.attempts():
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


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the results of trials with a process each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("alone"))
        submit("cpu", "{gpus: 0}")
        return results("cpu")


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder whose sweeps have a stand-in for a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(mps.PIPES, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return tmp_path / "share"


def test_trials_of_one_kind_share_processes_and_find_the_same_numbers(shared, alone):
    submit("share", "{gpus: 0.5}")

    one_each, expected = alone
    processes, found = results("share")
    assert len(one_each) == 4
    assert len(processes) == 2
    assert_equal(found, expected)


def test_a_killed_process_takes_no_number_from_its_neighbour(shared, alone):
    """Two trials share the stand-in; the process of one is killed between its steps."""
    killed = []

    def kill_one():
        sweep, deadline = SweepDir(shared / "reuse"), time.monotonic() + 120
        while time.monotonic() < deadline:
            trials = sweep.trials() if sweep.path.is_dir() else []
            running = [t for t in trials if t.attempts() and "train/loss" in t.metrics()]
            for trial in running:
                (process,) = registered(trial.attempts()[0])
                if process.alive() and trial.result() is None:
                    os.kill(process.pid, signal.SIGKILL)
                    killed.append(process)
                    return
            time.sleep(0.002)

    killer = threading.Thread(target=kill_one)
    killer.start()
    submit("share", "{gpus: 0.5}", "retries: {failure: 2}\n")
    killer.join()

    assert killed, "no trial was seen between its steps"
    trials = SweepDir(shared / "reuse").trials()
    assert sorted(len(trial.attempts()) for trial in trials) == [1, 1, 1, 2]
    assert all(trial.attempts()[-1].end()["outcome"] == "done" for trial in trials)
    assert_equal(results("share")[1], alone[1])


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for trial, (numbers, weights) in found.items():
        assert numbers == expected[trial][0]
        assert weights.keys() == expected[trial][1].keys()
        assert all(torch.equal(weights[name], expected[trial][1][name]) for name in weights)
