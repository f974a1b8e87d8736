"""A trial with tables in host memory is killed; another process goes on with it, and has the bits of one that went through."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.node.hardware import gpu_environment, visible_gpus
from tests.unit.workloads.training.optimizer.test_row_prefetch import engram_job
from tests.unit.workloads.training.optimizer.test_table_optimizer import Recorder
from workloads.checkpoint import checkpoint
from workloads.training.train import run

ROOT = Path(__file__).parents[5]
STEPS = 100
SAVED_AT_LEAST = 10
"""The checkpoint before the kill is of this step or a later one."""
LOST_AT_LEAST = 2
"""Steps since that checkpoint, which are made again."""


class Told(Recorder):
    """Prints metrics and checkpoints, a line of JSON each, and takes its time."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self._pause_s = pause_s

    def metrics(self, step, values):
        super().metrics(step, values)
        print(json.dumps({"step": step, "metrics": self.rows[step]}), flush=True)

    def checkpoint(self, step, path):
        print(json.dumps({"saved": step}), flush=True)

    def progress(self, step, steps, phase, values):
        if phase == "train":
            time.sleep(self._pause_s)


def train(folder: str, device: str, pause_s: str) -> None:
    """Train the trial of a folder, or go on with it."""
    job = engram_job(Path(folder), Path(folder).parent / "cache", "host", "bf16", device=device)
    fields = {**job.train, "tokens": STEPS * job.train["batch_tokens"]}
    run(replace(job, train=fields, checkpoint_every_s=0.05), Told(float(pause_s)))


def rows_of(folder: Path, device: str, *, kill: bool = False) -> dict[int, dict[str, float]]:
    """Train in a process with a trial's environment; return its metrics by step.

    Args:
        folder: Of the trial.
        device: cpu or cuda.
        kill: End it with SIGKILL some steps after a checkpoint.
    """
    gpus = visible_gpus()[:1] if device == "cuda" else ()
    words = [str(folder), device, "0.02" if kill else "0"]
    rows: dict[int, dict[str, float]] = {}
    saved = STEPS
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.unit.workloads.training.optimizer.test_host_table_kill",
            *words,
        ],
        cwd=ROOT,
        env={**os.environ, **gpu_environment(gpus), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for line in process.stdout or ():
                if not (line.startswith("{") and line.endswith("\n")):
                    continue  # torn by the kill
                told: dict[str, Any] = json.loads(line)
                if "saved" in told:
                    saved = told["saved"]
                    continue
                rows[told["step"]] = told["metrics"]
                if kill and SAVED_AT_LEAST <= saved <= told["step"] - LOST_AT_LEAST:
                    process.kill()
            process.wait(timeout=60)
        finally:
            process.kill()  # does nothing to one that has ended
    assert process.returncode == (-signal.SIGKILL if kill else 0)
    return rows


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor]
    weights = checkpoint.load(folder / "checkpoints" / checkpoint.FINAL)["weights"]
    return weights


def check(folder: Path, device: str) -> None:
    """Train a trial in two processes, the first of which is killed, and in one; compare them."""
    killed = rows_of(folder / "killed", device, kill=True)
    assert SAVED_AT_LEAST + LOST_AT_LEAST <= max(killed) < STEPS
    assert not (folder / "killed" / "checkpoints" / checkpoint.FINAL).exists()
    resumed = rows_of(folder / "killed", device)
    whole = rows_of(folder / "whole", device)

    assert SAVED_AT_LEAST < min(resumed) <= max(killed) + 1
    assert whole.keys() == set(range(1, STEPS + 1)) == killed.keys() | resumed.keys()
    assert {step: whole[step] for step in killed} == killed
    assert {step: whole[step] for step in resumed} == resumed
    expected, found = final_weights(folder / "whole"), final_weights(folder / "killed")
    assert expected.keys() == found.keys()
    differ = [name for name, value in expected.items() if not torch.equal(value, found[name])]
    assert not differ


@pytest.mark.long
def test_another_process_goes_on_bit_for_bit(tmp_path):
    check(tmp_path, "cpu")


if __name__ == "__main__":
    train(*sys.argv[1:])
