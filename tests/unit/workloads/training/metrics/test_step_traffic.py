"""The closed form of memory traffic, against tensors that a real step reads and writes."""

from dataclasses import replace

import pytest
import torch

from orchestrator.sweep import registry
from workloads.training.config import TrainConfig
from workloads.training.metrics.device_use import GPUS, MFU, MODEL_BYTES, PEAK, device_use
from workloads.training.metrics.step_traffic import step_traffic
from workloads.training.rank_job import RankJob

VOCAB = 64
TRAIN = TrainConfig(tokens=4096, batch_tokens=512, seq_len=64, lr=0.1)
ROWS_READ = 4 * TRAIN.batch_tokens * 16
"""Bytes of the embedding's rows, each 16 wide, that a step reads."""
LAZY = replace(TRAIN, table_optimizer="lazy_adamw")


def config_of(name):
    module = registry.architecture(name)
    return module.Config(**module.PRESETS["d16"])


def traffic(name, train, **changes):
    return step_traffic(
        config_of(name), VOCAB, train, **{"precision": "fp32", "passes": 1, **changes}
    )


def test_adamw_moves_what_its_tensors_hold():
    """Oracle: bytes of torch's own optimizer state, gradients and parameters after a step."""
    model = config_of("dense").build(VOCAB)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    weights = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.grad.nbytes for p in model.parameters())
    state = sum(
        t.nbytes for kept in optimizer.state.values() for n, t in kept.items() if n != "step"
    )
    found = traffic("dense", TRAIN)

    assert found.update == 2 * (weights + state)
    assert found.gradients == 2 * gradients
    # The tied table is the head's matrix, and of it each token reads a row.
    assert found.weights == 2 * (weights + ROWS_READ)
    assert found.total == found.update + found.gradients + found.weights + found.activations


def test_a_lazy_update_moves_the_rows_read_and_an_exact_one_the_table():
    count = config_of("memory_plus").param_count(VOCAB)
    dense = 24 * (count.total - count.memory_values)
    exact = traffic("memory_plus", replace(TRAIN, table_optimizer="deferred_adamw")).update - dense
    small = replace(LAZY, batch_tokens=64)

    assert exact == 24 * count.memory_values
    assert 0 < traffic("memory_plus", small).update - dense < exact
    assert traffic("memory_plus", replace(LAZY, table_optimizer="sgd")).update - dense <= exact / 3


def test_more_passes_read_weights_again_and_activations_once():
    one, four = (traffic("dense", TRAIN, passes=n) for n in (1, 4))

    assert four.weights - 2 * ROWS_READ == 4 * (one.weights - 2 * ROWS_READ)
    assert four.gradients == 4 * one.gradients
    assert (four.activations, four.update) == (one.activations, one.update)


def test_sharded_optimizer_state_is_moved_once_and_replicas_each():
    replicas = traffic("dense", TRAIN, ranks=4)
    sharded = traffic("dense", TRAIN, ranks=4, dense_sharded=True)

    assert replicas.update == 4 * sharded.update == 4 * traffic("dense", TRAIN).update


def use(tmp_path, names, **job):
    made = RankJob(data={}, model={}, train={}, seed=0, checkpoints=tmp_path, cache=tmp_path, **job)
    return device_use(
        config_of("dense"),
        VOCAB,
        TRAIN,
        made,
        bf16=True,
        passes=1,
        activation_checkpointing=False,
        gpus=names,
    )


def test_mfu_is_that_of_6_n_and_half_the_attention(tmp_path):
    """Equation of Chowdhery et al. 2022 (PaLM, appendix B) with causal attention counted half."""
    config = config_of("dense")
    count = config.param_count(VOCAB)
    matrices = count.total - count.norm  # the tied table is the head's matrix
    attention = 12 * config.n_layers * config.d_model * TRAIN.seq_len / 2
    found = use(tmp_path, ["NVIDIA H200", "NVIDIA H200"], gpus=2).metrics(1e6)

    expected = (6 * matrices + attention) * 1e6 / (2 * 989.4e12)
    # Over a short sequence half the square is (s + 1) / 2 positions a token.
    assert found[MFU] == pytest.approx(expected, rel=0.02)
    assert (found[GPUS], found[PEAK]) == (2.0, 989.4e12)


def test_unknown_devices_have_no_utilisation(tmp_path):
    for gpus in ([], ["NVIDIA H200", "NVIDIA H200 MIG 1g.18gb"]):
        found = use(tmp_path, gpus).metrics(1e6)
        assert found[MODEL_BYTES] > 0
        assert not {MFU, GPUS, PEAK} & found.keys()


def test_a_share_of_a_gpu_is_measured_by_the_whole_one(tmp_path):
    whole, share = (use(tmp_path, ["NVIDIA H200"], gpus=n).metrics(1e6) for n in (1.0, 0.25))

    assert share[MFU] == whole[MFU]
    assert share[GPUS] == 0.25
