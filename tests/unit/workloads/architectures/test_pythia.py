"""What is special about `pythia`; logits are compared with GPT-NeoX's in test_against_transformers.py."""

import pytest
import torch

from workloads.architectures.pythia import PRESETS, Config
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}


def test_flops_are_those_that_torch_counts(check_flops):
    check_flops(Config(**SMALL))


def test_attention_and_feed_forward_of_a_block_read_the_same_residual():
    model = Config(**SMALL).build(11)
    initialise(model, 0)
    block, read = model.layers[0], []
    for norm in (block.mixer_norm, block.feed_forward_norm):
        norm.register_forward_hook(lambda norm, inputs, output: read.append(inputs[0]))

    model(torch.arange(8)[None])

    assert torch.equal(*read)


@pytest.mark.parametrize(("fraction", "columns"), [(0.0, 0), (0.25, 2), (1.0, 8)])
def test_positions_turn_a_share_of_each_heads_columns(fraction, columns):
    assert Config(**SMALL, rotary_fraction=fraction).rotary_columns == columns


def test_presets_have_the_suites_sizes():
    """Table 1 of the paper, non-embedding parameters."""
    suite = {"70m": 18_915_328, "160m": 85_056_000, "410m": 302_311_424, "1b": 805_736_448}

    found = {name: Config(**PRESETS[name]).param_count(50_304).non_embedding for name in suite}

    assert found == suite


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=r"n_heads must divide d_model \(16\)"):
        Config(**{**SMALL, "n_heads": 3})
