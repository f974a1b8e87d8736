from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.architectures import dense, memory_plus
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.micro_batch import (
    OVERESTIMATE,
    Passes,
    choose_passes,
    fitting_passes,
    smaller_passes,
)
from workloads.training.memory_estimate.peak_memory import checkpointed_activations, training_memory

SEQUENCES = st.integers(1, 300)


def peak_bytes(rows, checkpointing):
    """A model whose blocks take 10 bytes a sequence, or 2 where they run again, and 5 besides."""
    return 5.0 + rows * (2.0 if checkpointing else 10.0)


@given(sequences=SEQUENCES, limit=st.floats(0, 4000))
def test_the_fewest_passes_that_fit_are_taken(sequences, limit):
    found = choose_passes(peak_bytes, sequences=sequences, limit_bytes=limit)
    way = found.activation_checkpointing
    passes = -(-sequences // found.rows)

    assert 1 <= found.rows <= sequences
    assert way == (peak_bytes(1, False) > limit), "blocks run again only where one row is too much"
    if found.rows > 1:
        assert peak_bytes(found.rows, way) <= limit
    if passes > 1:
        assert peak_bytes(-(-sequences // (passes - 1)), way) > limit


@given(sequences=SEQUENCES, limit=st.floats(0, 4000), asked=st.booleans())
def test_what_is_asked_for_is_kept(sequences, limit, asked):
    found = choose_passes(peak_bytes, sequences=sequences, limit_bytes=limit, checkpointing=asked)

    assert found.activation_checkpointing is asked
    assert smaller_passes(found, 20, checkpointing=asked).activation_checkpointing is asked


@given(rows=st.integers(1, 64), times=st.integers(0, 9))
def test_each_time_memory_runs_out_passes_get_smaller_until_blocks_run_again(rows, times):
    before = Passes(rows=rows, activation_checkpointing=False)
    taken = [smaller_passes(before, n) for n in range(times + 1)]

    for earlier, later in pairwise(taken):
        smaller = peak_bytes(later.rows, later.activation_checkpointing) < peak_bytes(
            earlier.rows, earlier.activation_checkpointing
        )
        assert smaller or earlier == later == Passes(rows=1, activation_checkpointing=True)


@pytest.mark.parametrize("module", [dense, memory_plus])
def test_the_estimate_decides(module):
    config, vocab_size = module.Config(**module.PRESETS["1m"]), 4096
    train = TrainConfig(tokens=2**14, batch_tokens=2**14, seq_len=256, lr=0.1)

    def estimate(**options):
        return training_memory(config, vocab_size, train, precision="fp32", **options)

    def passes(limit_bytes, **asked):
        return fitting_passes(estimate, sequences=64, seq_len=256, limit_bytes=limit_bytes, **asked)

    whole, one = (
        estimate(micro_batch_tokens=n * 256, activation_checkpointing=False).peak for n in (64, 1)
    )
    assert passes(whole) == Passes(rows=64, activation_checkpointing=False)
    assert 1 <= passes(0.6 * whole).rows < 64
    assert passes(0.999 * one).activation_checkpointing
    assert passes(0.6 * whole, micro_batch_tokens=16 * 256).rows == 16
    assert passes(0.999 * one, micro_batch_tokens=256).activation_checkpointing


def test_sharded_parameters_stay_gathered_only_in_memory_that_the_passes_leave():
    config, vocab_size = dense.Config(**dense.PRESETS["1m"]), 4096
    train = TrainConfig(tokens=2**14, batch_tokens=2**14, seq_len=256, lr=0.1)
    estimate = partial(
        training_memory, config, vocab_size, train, precision="fp32", ranks=4, dense_sharded=True
    )

    def passes(usable_bytes, **more):
        limit_bytes = usable_bytes * OVERESTIMATE
        return fitting_passes(estimate, sequences=16, seq_len=256, limit_bytes=limit_bytes, **more)

    kept = estimate(micro_batch_tokens=16 * 256, reshard_after_forward=False).peak
    whole = Passes(rows=16, activation_checkpointing=False)
    assert passes(kept, may_keep_gathered=True) == replace(whole, reshard_after_forward=False)
    # What is allowed for activations that were estimated too high is not there for weights.
    assert passes(0.999 * kept, may_keep_gathered=True) == whole
    assert passes(kept) == whole, "there are none, or memory has run out before"
    one = 256
    asked = passes(kept, may_keep_gathered=True, micro_batch_tokens=one)
    assert asked == Passes(rows=1, activation_checkpointing=False, reshard_after_forward=False)


def test_checkpointed_blocks_keep_their_inputs_and_one_block():
    """From 20 blocks to 40, memory grows by 20 inputs of fp32."""
    shallow, deep = (dense.Config(**{**dense.PRESETS["1m"], "n_layers": n}) for n in (20, 40))
    kept = [checkpointed_activations(c, 64, 256, precision="bf16") for c in (shallow, deep)]

    assert kept[1] - kept[0] == 20 * 4 * shallow.d_model
    assert kept[1] < deep.activation_bytes_per_token(64, 256, precision="bf16") / 4
