"""A trial that takes the step of one before it finds, bit for bit, what it finds alone."""

from dataclasses import replace

import pytest
import torch

from orchestrator.sweep import registry
from workloads.checkpoint import checkpoint
from workloads.training import kept_step
from workloads.training.metrics.reporter import Interrupted
from workloads.training.rank_job import RankJob
from workloads.training.train import run

OF_TIME = ("time/", "step_time/", "device/model_bytes", "train/tokens_per_s")


class Recorder:
    def __init__(self, *, stop_at=None):
        self.rows, self.asked, self.stop_at = {}, 0, stop_at

    def metrics(self, step, values):
        self.rows[step] = {k: v for k, v in values.items() if not k.startswith(OF_TIME)}

    def checkpoint(self, step, path):
        pass

    def progress(self, step, steps, phase, values):
        pass

    def should_stop(self):
        self.asked += 1
        return self.asked == self.stop_at


def job(folder, name="dense", *, seed=0, lr=0.01, train=(), **changes):
    made = RankJob(
        data={"source": "biographies", "n_people": 40, "style": "compact", "n_probe_people": 10},
        model={"architecture": name, **registry.architecture(name).PRESETS["d12"]},
        train={"tokens": 6 * 256, "batch_tokens": 256, "seq_len": 32, "lr": lr, **dict(train)},
        seed=seed,
        checkpoints=folder / f"checkpoints-{seed}",
        cache=folder.parent / "cache",
        log_every_steps=1,
        evaluations=2,
        device="cpu",
    )
    return replace(made, **changes)


def trained(of, between=None):
    recorder = Recorder()
    run(of, recorder, between=between)
    return recorder.rows, checkpoint.load(of.checkpoints / checkpoint.FINAL)["weights"]


LIKE_OTHERS = {
    "all_attention", "cosformer", "latent_attention", "linformer", "memory", "ngram_input", "peer",
    "per_layer_embedding", "pythia", "value_embeddings",
}  # fmt: skip
"""What they hold between steps, others hold, too: parameters, tables, buffers and random numbers."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in LIKE_OTHERS else ())
        for name in registry.architectures()
    ],
)
def test_the_next_trial_of_a_kind_finds_what_it_finds_alone(tmp_path, name):
    rows, weights = trained(job(tmp_path / "alone", name, seed=1, lr=0.02))
    between = {}
    trained(job(tmp_path / "shared", name, seed=0), between)
    step = between["step"].step

    found, found_weights = trained(job(tmp_path / "shared", name, seed=1, lr=0.02), between)

    assert between["step"].step is step
    assert found == rows
    assert found_weights.keys() == weights.keys()
    assert all(torch.equal(found_weights[key], weights[key]) for key in weights)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"batch_tokens": 128}},
        {"train": {"beta2": 0.9}},
        {"model": {"architecture": "dense", **registry.architecture("dense").PRESETS["d16"]}},
        {"micro_batch_tokens": 64},
    ],
    ids=str,
)
def test_a_trial_of_another_kind_begins_anew(tmp_path, changes):
    expected = trained(job(tmp_path / "alone", seed=1, **changes))[0]
    between = {}
    trained(job(tmp_path, seed=0), between)
    step = between["step"].step

    assert trained(job(tmp_path, seed=1, **changes), between)[0] == expected
    assert between["step"].step is not step


def test_a_trial_that_is_resumed_begins_anew(tmp_path):
    expected = trained(job(tmp_path / "alone", seed=1))[0]
    with pytest.raises(Interrupted):
        run(job(tmp_path, seed=1), Recorder(stop_at=3))
    between, kept_meanwhile = {}, []
    trained(job(tmp_path, seed=0), between)

    class Looks(Recorder):
        def metrics(self, step, values):
            kept_meanwhile.append("step" in between)
            super().metrics(step, values)

    recorder = Looks()
    run(job(tmp_path, seed=1), recorder, between=between)

    assert sorted(recorder.rows) == [4, 5, 6]
    assert recorder.rows == {step: expected[step] for step in recorder.rows}
    assert not any(kept_meanwhile), "two models at a time"


def test_a_trial_that_does_not_come_to_its_end_leaves_nothing(tmp_path):
    between = {}
    trained(job(tmp_path, seed=0), between)
    with pytest.raises(Interrupted):
        run(job(tmp_path, seed=1), Recorder(stop_at=3), between=between)

    assert between == {}


def test_a_trial_that_began_from_trained_weights_leaves_nothing(tmp_path):
    between = {}
    trained(job(tmp_path, seed=0), between)
    kept = between.pop("step")

    kept_step.keep(between, job(tmp_path, from_pretrained="llama"), kept.step, kept.use)

    assert between == {}


def test_tables_with_an_optimizer_of_their_own_begin_anew(tmp_path):
    between = {}
    trained(job(tmp_path, "memory_plus", train={"table_optimizer": "rowwise"}), between)

    assert between == {}
