"""A trial finds the same, to the last bit, in every process and beside every neighbour."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.records.sweep_dir import SweepDir

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
ROOT = Path(__file__).parents[2]
SWEEP = {
    "name": "bits",
    "data": {"source": "biographies", "style": "compact", "n_people": 200, "n_wordings": 2, "question_share": 0.0},
    "model": {"architecture": "dense", "preset": "d32"},
    "train": {"tokens": 400 * 4096, "batch_tokens": 4096, "seq_len": 64, "lr": 0.003},
    "logging": {"every_steps": 20, "evaluations": 1},
}  # fmt: skip


def losses(folder: Path, *, seeds: list[int], gpus: float) -> dict[int, list[float]]:
    """Return the losses of all seeds, each with this share of a GPU and with a new compile cache."""
    folder.mkdir()
    resources = {"resources": {"gpus": gpus}}
    (folder / "bits.yaml").write_text(json.dumps({**SWEEP, "seeds": seeds, **resources}))
    words = ["submit", str(folder / "bits.yaml"), "--runs", str(folder / "runs"), "--gpus", "1"]
    command = [sys.executable, "-m", "orchestrator.cli", *words, "--launcher", "process", "--quiet"]
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **caches}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        trial.spec().seed: [value for _, value in trial.metrics()["train/loss"].values()]
        for trial in SweepDir(folder / "runs" / "bits").trials()
    }


def test_compiling_again_changes_no_bit(tmp_path):
    """By default Inductor chooses reductions by their time: seven processes found three results."""
    first, *others = (losses(tmp_path / str(n), seeds=[0], gpus=1) for n in range(4))

    assert len(first[0]) == 20
    for other in others:
        assert other == first


def test_neighbours_change_no_bit(tmp_path):
    seeds = [0, 1, 2, 3]
    alone = losses(tmp_path / "alone", seeds=seeds, gpus=1)
    together = losses(tmp_path / "together", seeds=seeds, gpus=0.25)

    assert alone.keys() == together.keys() == set(seeds)
    for seed, expected in alone.items():
        assert len(expected) == 20
        assert together[seed] == expected, seed
