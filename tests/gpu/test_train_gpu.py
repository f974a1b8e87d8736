import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from workloads.training.metrics.reporter import Interrupted
from workloads.training.rank_job import RankJob
from workloads.training.train import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

STEPS = 20
DENSE = {"architecture": "dense", "d_model": 64, "n_layers": 2, "n_heads": 2, "d_ff": 128}
MEMORY = {
    **DENSE,
    "architecture": "memory_plus",
    "n_keys": 16,
    "memory_layers": [1],
    "n_memory_heads": 2,
    "knn": 4,
}


def job_in(folder: Path, **changes: object) -> RankJob:
    job = RankJob(
        data={"source": "biographies", "n_people": 200, "style": "compact", "n_probe_people": 20},
        model=MEMORY,
        train={"tokens": STEPS * 2048, "batch_tokens": 2048, "seq_len": 64, "lr": 0.01},
        seed=5,
        checkpoints=folder / "checkpoints",
        cache=folder / "cache",
        log_every_steps=5,
        evaluations=2,
        checkpoint_every_s=0.0,
    )
    return replace(job, **changes)


class Recorder:
    def __init__(self, *, stop_at: int = 10**9, no_waiting: bool = False) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.checkpoints: list[int] = []
        self._stop_at, self._asked, self._no_waiting = stop_at, 0, no_waiting

    def metrics(self, step, values):
        self.rows[step] = dict(values)

    def checkpoint(self, step, path):
        self.checkpoints.append(step)

    def progress(self, step, steps, phase, values):
        if self._no_waiting:
            # The next step may only queue work, unless it is one whose numbers are read. The first
            # ones compile and are captured.
            reading = (step + 1) % 5 == 0 or phase != "train" or step % 5 == 0 or step < 6
            torch.cuda.set_sync_debug_mode("default" if reading else "error")

    def should_stop(self):
        self._asked += 1
        return self._asked == self._stop_at


@pytest.mark.parametrize("model", [DENSE, MEMORY], ids=["dense", "memory_plus"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, model, precision):
    train = {**job_in(tmp_path).train, "precision": precision}
    undisturbed, first, second = Recorder(), Recorder(stop_at=7), Recorder()
    expected = run(job_in(tmp_path / "a", model=model, train=train), undisturbed)

    job = job_in(tmp_path / "b", model=model, train=train)
    with pytest.raises(Interrupted):
        run(job, first)
    metrics = run(job, second)

    assert first.checkpoints == [5, 7]
    assert sorted(second.rows) == [10, 15, 20]
    assert expected["train/loss"] < undisturbed.rows[5]["train/loss"] - 0.1
    # Scatters on a GPU add in any order, so the last bits differ.
    for name in ("train/loss", "valid/loss", "recall/train_wording/answer_nll"):
        assert metrics[name] == pytest.approx(
            expected[name], rel=2e-2 if precision == "bf16" else 2e-3
        )


def test_a_gpu_in_fp32_computes_what_a_cpu_does(tmp_path):
    train = {**job_in(tmp_path).train, "precision": "fp32"}
    on_gpu, on_cpu = Recorder(), Recorder()
    run(job_in(tmp_path / "gpu", train=train), on_gpu)
    run(job_in(tmp_path / "cpu", train=train, device="cpu"), on_cpu)

    for step in (5, 10):
        gpu, cpu = on_gpu.rows[step], on_cpu.rows[step]
        assert gpu["train/loss"] == pytest.approx(cpu["train/loss"], rel=1e-3)


# torch says on first use that it may miss some waits; those it sees are enough here.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_steps_whose_numbers_nobody_reads_never_wait_for_the_gpu(tmp_path):
    reporter = Recorder(no_waiting=True)
    try:
        run(job_in(tmp_path, model=DENSE, checkpoint_every_s=1e9), reporter)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert sorted(reporter.rows) == [5, 10, 15, 20]


RANK = """
import json, sys
from pathlib import Path
from workloads.training.rank_job import RankJob
from workloads.training.train import run

class Reporter:
    def metrics(self, step, values): pass
    def checkpoint(self, step, path): pass
    def progress(self, step, steps, phase, values): pass
    def should_stop(self): return False

fields, rank, out = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
for name in ("checkpoints", "cache", "rendezvous"):
    fields[name] = Path(fields[name])
out.write_text(json.dumps(run(RankJob(**fields, rank=rank, world_size=2), Reporter())))
"""


def test_two_ranks_compute_what_one_does(tmp_path):
    """On one GPU they share it and talk through gloo, on two through NCCL."""
    train = {**job_in(tmp_path).train, "precision": "fp32", "tokens": 5 * 2048}
    expected = run(job_in(tmp_path / "alone", train=train, evaluations=1), Recorder())
    fields = asdict(job_in(tmp_path, train=train, evaluations=1, rendezvous=tmp_path / "port"))
    del fields["rank"], fields["world_size"]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                RANK,
                json.dumps(fields, default=str),
                str(rank),
                tmp_path / f"{rank}.json",
            ],
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=200) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()

    for rank in range(2):
        metrics = json.loads((tmp_path / f"{rank}.json").read_text())
        for name in ("train/loss", "valid/loss", "train/grad_norm"):
            assert metrics[name] == pytest.approx(expected[name], rel=1e-3)
