"""Models near any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.architectures import dense, memory_plus
from workloads.layers.backbone.size_family import WIDTHS, backbone_fields


@pytest.mark.parametrize("architecture", [dense, memory_plus])
@given(log10_size=st.floats(4.5, 9.5))
def test_a_size_is_met_within_five_percent(architecture, log10_size):
    size = round(10**log10_size)

    config = architecture.Config.nearest_size(size)

    assert config.param_count(1).non_embedding == pytest.approx(size, rel=0.05)
    assert config.d_model <= config.d_ff <= 4 * config.d_model


def test_wider_members_are_larger():
    sizes = [dense.Config(**backbone_fields(d)).param_count(1).non_embedding for d in WIDTHS]

    assert sizes == sorted(set(sizes))


def test_overrides_are_kept():
    config = memory_plus.Config.nearest_size(3_000_000, n_keys=64, n_layers=4, qk_norm=True)

    assert (config.n_keys, config.n_layers, config.qk_norm) == (64, 4, True)
    assert config.param_count(1).non_embedding == pytest.approx(3_000_000, rel=0.05)


def test_a_given_width_is_not_searched():
    assert dense.Config.nearest_size(1_000_000, d_model=144, n_heads=4).d_model == 144


@pytest.mark.parametrize(
    ("size", "overrides", "message"),
    [
        (0, {}, "non_embedding_params must be at least 1, got 0"),
        (100, {}, "no member of the family is near 100, the nearest has"),
        (10**6, {"d_model": 2048}, "with d_model as given is near 1000000"),
        (10**6, {"d_ff": -1}, "d_ff must be at least 1, got -1"),
    ],
)
def test_what_cannot_be_met_is_refused(size, overrides, message):
    with pytest.raises(ValueError, match=message):
        dense.Config.nearest_size(size, **overrides)
