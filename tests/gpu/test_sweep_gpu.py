"""A sweep through Ray on real GPUs: shares and gangs side by side, and memory that really runs out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.node import mps
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialState

pytest.importorskip("ray")

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not GPUS, reason="needs CUDA"),
]

ROOT = Path(__file__).parents[2]
PEOPLE = {
    "source": "biographies",
    "style": "compact",
    "n_people": 200,
    "n_wordings": 2,
    "question_share": 0.0,
}
SMALL = {"architecture": "dense", "d_model": 64, "n_layers": 2, "n_heads": 2, "d_ff": 128}
MEMORY = {
    **SMALL,
    "architecture": "memory_plus",
    "n_keys": 16,
    "memory_layers": [1],
    "n_memory_heads": 2,
    "knn": 4,
}
WIDE = {"architecture": "dense", "d_model": 512, "n_layers": 4, "n_heads": 8, "d_ff": 2048}
HUGE = {"architecture": "dense", "d_model": 1024, "n_layers": 16, "n_heads": 8, "d_ff": 4096}
FEW = {"tokens": 200 * 2048, "batch_tokens": 2048, "seq_len": 64, "lr": 0.01}

SWEEPS = {
    # Forward passes of 2^16 tokens hold 9 GB and more, two hundredths of a GPU are 3.
    "share": {
        "model": WIDE,
        "train": {**FEW, "tokens": 2**18, "batch_tokens": 2**16},
        "resources": {"gpus": 0.02},
    },
    # Those of 2^18 tokens hold about 280 GB: twice what the largest of today's GPUs has. Asked for,
    # because a micro-batch that ranks choose by themselves would fit, and so would blocks that run
    # again for the backward pass.
    "whole": {
        "model": HUGE,
        "train": {**FEW, "tokens": 2**19, "batch_tokens": 2**18},
        "resources": {
            "gpus": 1,
            "micro_batch_tokens": 2**18,
            "activation_checkpointing": False,
        },
    },
    "tenth": {"model": SMALL, "resources": {"gpus": 0.1}, "seeds": [0, 1, 2, 3, 4, 5]},
    "quarter": {"model": MEMORY, "resources": {"gpus": 0.25}, "seeds": [0, 1, 2]},
    "two": {"model": {**SMALL, "n_layers": 3}, "resources": {"gpus": 2, "ranks": 2}},
    "four": {
        "model": {**MEMORY, "n_layers": 3},
        "resources": {"gpus": 4, "ranks": 4, "memory_ranks": 2},
    },
}
NEEDS = {"two": 2, "four": 4}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[TrialDir]]:
    """Return the trials of each part of one sweep, brought to its end."""
    folder = tmp_path_factory.mktemp("gpus")
    files = []
    for origin, part in SWEEPS.items():
        if NEEDS.get(origin, 1) <= GPUS:
            files.append(folder / f"{origin}.yaml")
            text = {"name": "gpus", "data": PEOPLE, "train": FEW, "retries": {"failure": 4}, **part}
            files[-1].write_text(json.dumps(text))  # JSON is YAML
    runs = Path(os.environ.get("MEMSCALE_TEST_RUNS", folder / "runs"))
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "submit", *files, "--runs", runs, "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=450,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    trials: dict[str, list[TrialDir]] = {}
    for trial in SweepDir(runs / "gpus").trials():
        trials.setdefault(Path(trial.spec().origin.partition(":")[0]).stem, []).append(trial)
    return trials


def test_every_trial_is_done(swept):
    states = {name: {trial.state() for trial in trials} for name, trials in swept.items()}

    assert states == {name: {TrialState.DONE} for name in SWEEPS if NEEDS.get(name, 1) <= GPUS}


def test_who_outgrows_its_share_runs_out_alone_and_gets_more_of_the_gpu(swept):
    (trial,) = swept["share"]
    first, second = trial.attempts()[:2]

    assert first.end()["outcome"] == "gpu_oom"
    assert "CUDA out of memory, Tried to allocate" in first.end()["reason"]
    assert "GiB allowed (retry with more of the GPU)" in first.end()["reason"]
    assert (first.launch()["gpus"], second.launch()["gpus"]) == (0.02, 0.04)
    assert second.launch()["micro_batch_tokens"] is None


def test_who_outgrows_a_whole_gpu_goes_on_with_half_the_micro_batch(swept):
    (trial,) = swept["whole"]
    *before, last = trial.attempts()

    assert before
    assert {attempt.end()["outcome"] for attempt in before} == {"gpu_oom"}
    assert last.launch()["micro_batch_tokens"] == 2**18 >> len(before)


def test_neighbours_of_those_that_ran_out_never_noticed(swept):
    for name in ("tenth", "quarter"):
        assert {len(trial.attempts()) for trial in swept[name]} == {1}


@pytest.mark.skipif(shutil.which(mps.CONTROL) is None, reason="needs NVIDIA's MPS")
def test_trials_with_a_share_are_clients_of_mps_and_others_are_not(swept):
    clients = {
        name: {
            mps.PIPES in json.loads((attempt.path / "environment.json").read_text())["variables"]
            for trial in swept[name]
            for attempt in trial.attempts()
        }
        for name in ("tenth", "quarter", "whole")
    }

    assert clients == {"tenth": {True}, "quarter": {True}, "whole": {False}}


@pytest.mark.skipif(GPUS < 4, reason="needs 4 GPUs")
def test_gangs_have_gpus_of_their_own(swept):
    for name, ranks in NEEDS.items():
        (trial,) = swept[name]
        assert len(trial.attempts()) == 1
        assert trial.attempts()[0].launch()["gpus"] == ranks
