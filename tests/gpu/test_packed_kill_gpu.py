"""Four trials share a GPU; the process of one is killed. It resumes, and its neighbours lose nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

ROOT = Path(__file__).parents[2]
STEPS = 30_000
SWEEP = {
    "name": "packed",
    "data": {
        "source": "biographies",
        "style": "compact",
        "n_people": 200,
        "n_wordings": 2,
        "question_share": 0.0,
    },
    "model": {"architecture": "dense", "d_model": 64, "n_layers": 2, "n_heads": 2, "d_ff": 128},
    "train": {"tokens": STEPS * 2048, "batch_tokens": 2048, "seq_len": 64, "lr": 0.003},
    "logging": {"every_steps": 100, "evaluations": 1, "checkpoint_every_s": 0.3},
    "resources": {"gpus": 0.25},
    "retries": {"failure": 2},
    "seeds": [0, 1, 2, 3],
}


def saved_steps(trial):
    """Return the steps after which checkpoints were announced, by the number of the attempt."""
    return {
        attempt.number: [
            line.event["step"]
            for line in attempt.lines()
            if line.event is not None and line.event["event"] == "checkpoint"
        ]
        for attempt in trial.attempts()
    }


def logged_steps(trial):
    """Return the steps with a training loss, over all attempts."""
    return {
        line.step
        for attempt in trial.attempts()
        for line in attempt.lines()
        if "train/loss" in line.metrics
    }


def test_a_killed_trial_resumes_and_its_neighbours_go_on(tmp_path):
    (tmp_path / "packed.yaml").write_text(json.dumps(SWEEP))
    runs = tmp_path / "runs"
    words = ["submit", str(tmp_path / "packed.yaml"), "--runs", str(runs), "--quiet"]
    command = [sys.executable, "-m", "orchestrator.cli", *words, "--launcher", "process"]
    with (tmp_path / "log").open("wb") as log:
        submitted = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ)
    try:
        sweep = SweepDir(runs / "packed")
        deadline = time.monotonic() + 200

        def all_have_saved():
            trials = sweep.trials() if sweep.path.is_dir() else []
            return len(trials) == 4 and all(
                trial.attempts() and saved_steps(trial)[1] for trial in trials
            )

        while not all_have_saved():
            assert submitted.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        victim, *neighbours = sweep.trials()
        (process,) = registered(victim.attempts()[0])
        os.kill(process.pid, signal.SIGKILL)
        assert submitted.wait(timeout=200) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        submitted.terminate()
        submitted.wait(timeout=60)

    assert {trial.state() for trial in sweep.trials()} == {TrialState.DONE}
    assert len(victim.attempts()) == 2
    # What a client of MPS leaves behind when it is killed may end its neighbours; they resume too.
    outcomes = {t.attempts()[0].end()["outcome"] for t in neighbours if len(t.attempts()) > 1}
    assert outcomes <= {"gpu_fault"}
    for trial in sweep.trials():
        assert logged_steps(trial) >= set(range(100, STEPS + 1, 100))
    saved = saved_steps(victim)
    second = [line.step for line in victim.attempts()[1].lines() if line.step is not None]
    assert min(second) > saved[1][-1]
