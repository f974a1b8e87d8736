"""Totals of published mixtures of experts, to the last parameter.

Sources: Berges et al. 2024 (arXiv 2412.09764), table 1 prints 984 million and 3.545 billion for their MoE at 134M and
1.3B; the exact totals follow from the shapes there with 32,000 tokens, norm gains counted. OLMoE-1B-7B
(allenai/OLMoE-1B-7B-0924): 6,919,161,856 in its files, of which 5,637,144,576 are experts that a token does not meet.
"""

import pytest
import torch

from workloads.architectures import dense, moe

VOCAB_SIZE = 32_000
TOTALS = {
    "134m": 983_599_872,
    "373m": 1_827_390_464,
    "720m": 2_797_610_496,
    "1.3b": 3_545_507_840,
}
OLMOE, OLMOE_VOCAB_SIZE = 6_919_161_856, 50_304


def _config(preset: str) -> moe.Config:
    return moe.Config(**moe.PRESETS[preset])


@pytest.mark.parametrize(("preset", "total"), TOTALS.items())
def test_baseline_of_memory_layers(preset, total):
    config = _config(preset)
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in config.build(VOCAB_SIZE).parameters())

    assert config.param_count(VOCAB_SIZE).total == total
    assert built == total


@pytest.mark.parametrize(("preset", "unit", "printed"), [("134m", 1e6, 984), ("1.3b", 1e6, 3_545)])
def test_printed_totals(preset, unit, printed):
    count = _config(preset).param_count(VOCAB_SIZE)

    assert round((count.total - count.norm) / unit) == printed


@pytest.mark.parametrize("preset", TOTALS)
def test_a_token_meets_as_much_as_in_the_dense_model_and_the_router(preset):
    config, plain = _config(preset), dense.Config(**dense.PRESETS[preset])
    router = config.n_layers * config.d_model * config.n_experts

    assert config.active_param_count(VOCAB_SIZE) == plain.active_param_count(VOCAB_SIZE) + router
    assert config.flops_per_token(VOCAB_SIZE, 4096).feed_forward == (
        plain.flops_per_token(VOCAB_SIZE, 4096).feed_forward
    )


def test_olmoe():
    config = _config("olmoe_1b")
    count = config.param_count(OLMOE_VOCAB_SIZE)
    # Theirs normalise queries and keys across heads: two gains of d_model a layer instead of two of d_head.
    fewer_gains = 16 * 2 * (2048 - 128)

    assert count.total + fewer_gains == OLMOE
    assert count.non_embedding - config.active_param_count(OLMOE_VOCAB_SIZE) == 5_637_144_576
