"""Compiled and captured steps beside plain ones: the same losses, for every architecture."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.sweep import registry
from workloads.training.metrics.reporter import Interrupted
from workloads.training.rank_job import RankJob
from workloads.training.train import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
STEPS = 200


class Recorder:
    def __init__(self, *, stop_at: int = 10**9) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self._asked, self._stop_at = 0, stop_at

    def metrics(self, step, values):
        self.rows[step] = dict(values)

    def checkpoint(self, step, path):
        pass

    def progress(self, step, steps, phase, values):
        pass

    def should_stop(self):
        self._asked += 1
        return self._asked == self._stop_at


def job(folder: Path, name: str, **changes: object) -> RankJob:
    fields = registry.architecture(name).PRESETS["d32"]
    made = RankJob(
        data={"source": "biographies", "n_people": 200, "style": "compact", "n_probe_people": 20},
        model={"architecture": name, **fields},
        train={"tokens": STEPS * 4096, "batch_tokens": 4096, "seq_len": 64, "lr": 0.003},
        seed=3,
        checkpoints=folder / "checkpoints",
        cache=folder / "cache",
        log_every_steps=5,
        evaluations=2,
        checkpoint_every_s=1e9,
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        *((name, {}) for name in registry.architectures()),
        ("memory_plus", {"table_optimizer": "rowwise", "table_precision": "bf16"}),
        ("peer", {"table_optimizer": "lazy_adamw"}),
        ("engram", {"table_optimizer": "deferred_adamw", "table_clip": "previous"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("table_optimizer", "adamw"),
)
def test_compiled_steps_lose_what_plain_ones_lose(tmp_path, name, tables):
    torch._dynamo.reset()
    plain, compiled = Recorder(), Recorder()
    train = {**job(tmp_path, name).train, **tables}
    run(job(tmp_path / "plain", name, train=train, compile=False), plain)
    run(job(tmp_path / "compiled", name, train=train), compiled)

    assert sorted(plain.rows) == sorted(compiled.rows)
    for step, row in plain.rows.items():
        # bf16 products, other orders of sums: the curves differ by its noise.
        assert compiled.rows[step]["train/loss"] == pytest.approx(row["train/loss"], rel=3e-2), step
    for metric in ("valid/loss", "train/loss"):
        if metric in plain.rows[STEPS]:
            expected = plain.rows[STEPS][metric]
            assert compiled.rows[STEPS][metric] == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("name", ["dense", "memory_plus"])
def test_a_captured_run_goes_on_where_it_was(tmp_path, name):
    undisturbed, first, second = Recorder(), Recorder(stop_at=23), Recorder()
    expected = run(job(tmp_path / "a", name), undisturbed)
    with pytest.raises(Interrupted):
        run(job(tmp_path / "b", name), first)
    found = run(job(tmp_path / "b", name), second)

    assert min(second.rows) > 20
    if name == "dense":
        for step, row in second.rows.items():
            before = undisturbed.rows[step]
            assert row["train/loss"] == before["train/loss"], step
            assert row.get("valid/loss") == before.get("valid/loss"), step
    for metric in ("train/loss", "recall/train_wording/answer_nll"):
        assert found[metric] == pytest.approx(expected[metric], rel=2e-2)


@pytest.mark.parametrize("name", registry.architectures())
def test_blocks_that_run_again_lose_what_others_lose(tmp_path, name):
    """Compiled, and captured where that is possible, both."""
    torch._dynamo.reset()
    kept, again = Recorder(), Recorder()
    run(job(tmp_path / "kept", name, activation_checkpointing=False), kept)
    run(job(tmp_path / "again", name, activation_checkpointing=True), again)

    for step, row in kept.rows.items():
        assert again.rows[step]["train/loss"] == pytest.approx(row["train/loss"], rel=3e-2), step
        assert again.rows[step]["device/activation_checkpointing"] == 1.0


@pytest.mark.parametrize("name", ["dense", "memory_plus"])
def test_phases_of_captured_steps_are_parts_of_their_time(tmp_path, name):
    found = run(job(tmp_path, name, log_every_steps=10), Recorder())

    phases = [found[f"step_time/{phase}_s"] for phase in ("forward", "backward", "optimizer")]
    step_s = 4096 / found["train/tokens_per_s"]
    assert all(phase > 0 for phase in phases)
    assert found["step_time/communication_s"] < 0.1 * sum(phases)
    # The rate is that of other steps, and of a shared host.
    assert 0.05 * step_s < sum(phases) < 3.0 * step_s


@pytest.mark.parametrize("name", ["dense", "memory_plus"])
def test_a_trial_finds_what_it_finds_alone_with_the_graphs_of_another(tmp_path, name):
    """Also where its graphs, compiled code and memory are those of a trial with other weights."""
    alone, found, between = Recorder(), Recorder(), {}
    train = {**job(tmp_path, name).train, "lr": 0.001}
    cache = tmp_path / "cache"
    run(job(tmp_path / "alone", name, cache=cache), alone)
    first = job(tmp_path / "first", name, cache=cache, seed=4, train=train)
    run(first, Recorder(), between=between)
    step = between["step"].step
    run(job(tmp_path / "second", name, cache=cache), found, between=between)

    assert between["step"].step is step
    for at, row in alone.rows.items():
        if name == "dense":
            assert found.rows[at]["train/loss"] == row["train/loss"], at
            assert found.rows[at]["train/grad_norm"] == row["train/grad_norm"], at
        else:  # sums of gradients of table rows have no fixed order here
            assert found.rows[at]["train/loss"] == pytest.approx(row["train/loss"], rel=2e-2), at
