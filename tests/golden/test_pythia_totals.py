"""Totals of the Pythia suite, to the last parameter, for its vocabulary of 50,304.

Source: Biderman et al. 2023 (arXiv 2304.01373), table 1, which prints parameters without the two vocabulary matrices
and with them.
"""

import pytest
import torch

from workloads.architectures import pythia

VOCAB_SIZE = 50_304
TOTALS = {
    # preset: (without the vocabulary, with it)
    "14m": (1_189_888, 14_067_712),
    "31m": (4_739_072, 30_494_720),
    "70m": (18_915_328, 70_426_624),
    "160m": (85_056_000, 162_322_944),
    "410m": (302_311_424, 405_334_016),
    "1b": (805_736_448, 1_011_781_632),
    "1.4b": (1_208_602_624, 1_414_647_808),
    "2.8b": (2_517_652_480, 2_775_208_960),
}


@pytest.mark.parametrize("preset", TOTALS)
def test_totals(preset):
    non_embedding, total = TOTALS[preset]
    config = pythia.Config(**pythia.PRESETS[preset])
    count = config.param_count(VOCAB_SIZE)
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in config.build(VOCAB_SIZE).parameters())

    assert count.non_embedding == non_embedding
    assert count.total == built == total


@pytest.mark.parametrize("preset", TOTALS)
def test_the_closed_form(preset):
    """Biderman et al.: L (12 d^2 + 13 d) + 2 d, and two vocabulary matrices."""
    non_embedding, total = TOTALS[preset]
    config = pythia.Config(**pythia.PRESETS[preset])
    d, n_layers = config.d_model, config.n_layers

    assert non_embedding == n_layers * (12 * d**2 + 13 * d) + 2 * d
    assert total == non_embedding + 2 * VOCAB_SIZE * d


def test_the_whole_suite_is_there():
    assert set(TOTALS) <= set(pythia.PRESETS)


@pytest.mark.parametrize(("preset", "printed"), [("70m", 10.7), ("160m", 20.9), ("410m", 34.4)])
def test_multiply_adds_of_one_block_as_memoryformers_paper_prints_them(preset, printed):
    """12 s d^2 + 2 s^2 d at s = 2048, in billions (arXiv 2411.12992, table 1): the whole square of scores."""
    config = pythia.Config(**pythia.PRESETS[preset])
    s, d = 2048, config.d_model
    flops = config.flops_per_token(1, s)
    block = (flops.total - flops.head) / config.n_layers
    unseen_half = 2 * s * d

    assert round(s * (block + unseen_half) / 2 / 1e9, 1) == printed
