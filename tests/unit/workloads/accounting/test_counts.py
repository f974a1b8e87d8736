"""Closed forms against the real modules: parameters, FLOPs, and what a forward pass keeps."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from workloads.accounting.counts import ParamCount, distinct_rows, training_flops
from workloads.architectures import dense, memory_plus
from workloads.layers.modules.init import initialise
from workloads.layers.modules.param_groups import param_groups

Config = dense.Config | memory_plus.Config


@st.composite
def _backbones(draw: st.DrawFn) -> dict[str, Any]:
    n_kv_heads = draw(st.integers(1, 3))
    n_heads = n_kv_heads * draw(st.integers(1, 3))
    return {
        "d_model": n_heads * 2 * draw(st.integers(1, 4)),
        "n_layers": draw(st.integers(1, 7)),
        "n_heads": n_heads,
        "n_kv_heads": draw(st.sampled_from([n_kv_heads, n_heads, None])),
        "d_ff": draw(st.integers(1, 40)),
        "qk_norm": draw(st.booleans()),
        "tied_embeddings": draw(st.booleans()),
    }


@st.composite
def _cases(draw: st.DrawFn) -> tuple[type[Config], dict[str, Any]]:
    """Class and fields; the Config is made in the test, as the shape checks of a test run draw random numbers."""
    backbone = draw(_backbones())
    if draw(st.booleans()):
        return dense.Config, backbone
    n_keys = draw(st.integers(1, 12))
    layers = draw(st.sets(st.integers(0, backbone["n_layers"] - 1), min_size=1))
    memory = {
        "n_keys": n_keys,
        "n_memory_heads": draw(st.integers(1, 3)),
        "knn": draw(st.integers(1, n_keys)),
        "key_dim": 2 * draw(st.integers(1, 5)),
        "value_dim": draw(st.sampled_from([None, 1, 5, 24])),
        "memory_qk_norm": draw(st.booleans()),
        "memory_layers": tuple(sorted(layers)),
    }
    return memory_plus.Config, {**backbone, **memory}


@given(case=_cases(), vocab_size=st.integers(1, 50))
def test_parameters_group_by_group(case, vocab_size):
    config = case[0](**case[1])
    with torch.device("meta"):
        model = config.build(vocab_size)
    found = dict.fromkeys(ParamCount().as_dict(), 0)
    groups = param_groups(model)
    for name, parameter in model.named_parameters():
        found[groups[name]] += parameter.numel()

    assert config.param_count(vocab_size).as_dict() == found


@given(case=_cases(), vocab_size=st.integers(1, 50), seq_len=st.integers(1, 12))
def test_flops_are_those_that_torch_counts(case, vocab_size, seq_len):
    """Exact, but for what torch sees otherwise: it counts the whole square of scores, and no bag."""
    config = case[0](**case[1])
    model = config.build(vocab_size)
    initialise(model, 0)
    counter = FlopCounterMode(display=False)
    # The fused attention of a CPU is unknown to torch's counter; the plain form is two products.
    with counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        model(torch.zeros(1, seq_len, dtype=torch.long))
    flops = config.flops_per_token(vocab_size, seq_len).total
    unseen_half = 2 * seq_len * config.n_layers * config.d_model
    bag = 0
    if isinstance(config, memory_plus.Config):
        bag = len(config.placement) * 2 * config.memory.lookup.rows_read * config.memory.value_dim

    assert counter.get_total_flops() == seq_len * (flops + unseen_half - bag)


def test_training_is_three_forward_passes():
    assert training_flops(10.0, 7) == 210.0


@pytest.mark.parametrize(
    ("n_rows", "draws", "at_once"), [(4, 3, 1), (5, 2, 2), (4, 2, 3), (3, 2, 3)]
)
def test_distinct_rows_are_the_mean_over_all_outcomes(n_rows, draws, at_once):
    one = list(itertools.combinations(range(n_rows), at_once))
    outcomes = list(itertools.product(one, repeat=draws))
    mean = sum(len({row for rows in drawn for row in rows}) for drawn in outcomes) / len(outcomes)

    found = distinct_rows(n_rows, draws=draws, without_repetition=at_once)

    assert found == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "config",
    [
        dense.Config(d_model=48, n_layers=3, n_heads=3, n_kv_heads=1, d_ff=128),
        dense.Config(
            d_model=32, n_layers=1, n_heads=2, d_ff=24, qk_norm=True, tied_embeddings=True
        ),
        memory_plus.Config(
            d_model=48, n_layers=2, n_heads=3, d_ff=96, n_keys=16, knn=5, value_dim=24
        ),
        memory_plus.Config(
            d_model=32,
            n_layers=3,
            n_heads=2,
            d_ff=64,
            n_keys=12,
            n_memory_heads=2,
            knn=8,
            memory_qk_norm=True,
            memory_layers=(0, 1, 2),
        ),
    ],
    ids=["grouped keys", "qk_norm", "memory", "memory_qk_norm everywhere"],
)
def test_activations_are_those_that_autograd_keeps(config, precision, bytes_kept):
    vocab_size, tokens = 100, 4096
    model = config.build(vocab_size)
    initialise(model, 0)
    kept = bytes_kept(model, torch.zeros(tokens // 64, 64, dtype=torch.long), precision)
    # Logits and probabilities belong to the loss, which is not taken here.
    loss = (8 if precision == "fp32" else 6) * vocab_size
    expected = config.activation_bytes_per_token(vocab_size, 64, precision=precision) - loss

    # Left out: token ids, rotation tables, copies of weights. A percent at this size, less in
    # larger batches.
    assert kept / tokens == pytest.approx(expected, rel=0.01)


def test_bf16_keeps_less_than_fp32():
    config = memory_plus.Config(**memory_plus.PRESETS["134m"])

    single, half = (
        config.activation_bytes_per_token(32_000, 2048, precision=p) for p in ("fp32", "bf16")
    )

    assert single / 2 < half < single


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.param_count(0), "vocab_size must be at least 1, got 0"),
        (lambda c: c.flops_per_token(10, 0), "seq_len must be at least 1, got 0"),
        (lambda c: c.bytes_per_token(10, batch_tokens=0), "batch_tokens must be at least 1, got 0"),
    ],
)
def test_impossible_questions_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(dense.Config(d_model=32, n_layers=2, n_heads=2, d_ff=64))
