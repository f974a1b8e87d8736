from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report.difference_tables import trends_table
from analysis.scaling.memory_trend import memory_trends, sd_about_line, slope_weights


def table_of(value, *, sizes=(2**12, 2**14, 2**16, 2**18), seeds=(0, 1, 2), preset="3m"):
    """A dense run and memories; value(log2 of the memory's parameters, seed) is the loss."""
    rows = [("dense", preset, 0.0, seed, value(10.0, seed)) for seed in seeds]
    rows += [
        ("memory_plus", preset, float(m), seed, value(np.log2(m), seed))
        for m in sizes
        for seed in seeds
    ]
    names = ["architecture", "preset", "memory_params", "seed", "loss"]
    table = pd.DataFrame(rows, columns=names).assign(training_tokens=1e6)
    table["total_params"] = 1e6 + table["memory_params"]
    key = table[["architecture", "preset", "memory_params"]].astype(str)
    return table.assign(configuration=key.agg(" ".join, axis=1))


def test_on_a_line_it_is_the_t_test_of_slopes_of_seeds(stats):
    """Where means lie on the line, only seeds count: scipy's regression of each, then its t test."""
    slopes = {0: -0.02, 1: -0.025, 2: -0.018}
    table = table_of(lambda x, seed: 3 + 0.1 * seed + slopes[seed] * x)

    (found,) = memory_trends(table)

    memory = table[table["memory_params"] > 0]
    each = [
        stats.linregress(np.log2(rows["memory_params"]), rows["loss"]).slope
        for _, rows in memory.groupby("seed")
    ]
    oracle = stats.ttest_1samp(each, 0.0)
    assert found.per_doubling.value == pytest.approx(np.mean(each))
    assert found.per_doubling.p == pytest.approx(oracle.pvalue) == found.p_holm
    assert (found.per_doubling.low, found.per_doubling.high) == pytest.approx(
        tuple(oracle.confidence_interval())
    )
    assert (found.n_sizes, found.smallest, found.largest) == (4, 2**12, 2**18)
    assert found.verdict == "better"


@pytest.mark.parametrize(("solve", "fields"), [("d_ff", ("d_ff",)), ("tokens", ())])
def test_a_field_that_match_solved_for_is_not_called_the_presets(solve, fields):
    table = table_of(lambda x, seed: 3 + 0.01 * seed - 0.02 * x)
    table["match.solve"] = np.where(table["memory_params"] > 0, solve, None)

    (found,) = memory_trends(table)

    assert found.solved == fields
    (note, *_) = trends_table([found], SimpleNamespace(level=0.95)).notes
    but = " but for d_ff, which match solved for" if fields else ""
    assert f"at equal preset and tokens{but};" in note


def test_a_setting_tried_at_some_sizes_alone_does_not_bend_the_line():
    plain = table_of(lambda x, seed: 3 + 0.1 * seed - 0.01 * x).assign(
        **{"model.output_init": None}
    )
    better = plain[plain["memory_params"].isin([2**14, 2**18])].assign(
        **{"model.output_init": "depth_scaled"}
    )
    better = better.assign(loss=better["loss"] - 0.1, configuration=better["configuration"] + " x")

    (found,) = memory_trends(pd.concat([plain, better], ignore_index=True))

    assert found.n_sizes == 4
    assert found.per_doubling.value == pytest.approx(-0.01)


def test_seeds_that_lie_high_or_low_together_do_not_hide_a_trend():
    table = table_of(lambda x, seed: 3 + seed - 0.01 * x + 1e-4 * ((7 * x + 3 * seed) % 5))

    (found,) = memory_trends(table)

    assert found.verdict == "better"


def test_means_off_the_line_widen_the_interval():
    straight = table_of(lambda x, seed: 3 - 0.02 * x + 0.002 * seed * (x - 15))
    bent = table_of(lambda x, seed: 3 - 0.02 * x + 0.002 * seed * (x - 15) + 0.01 * (x - 15) ** 2)

    (one,), (other,) = memory_trends(straight), memory_trends(bent)

    assert other.per_doubling.value == pytest.approx(one.per_doubling.value)
    width = [t.per_doubling.high - t.per_doubling.low for t in (one, other)]
    assert width[1] > 1.5 * width[0]


def test_with_equal_seeds_it_is_the_t_test_of_the_line_through_the_means(stats):
    """Then only the means' distance from their line is left: scipy's regression of the means."""
    bend = {12: 0.02, 14: -0.03, 16: 0.01, 18: 0.04}
    table = table_of(lambda x, _: 3 - 0.02 * x + bend.get(round(x), 0.0))

    (found,) = memory_trends(table)

    x = np.array([12.0, 14.0, 16.0, 18.0])
    oracle = stats.linregress(x, 3 - 0.02 * x + np.array([*bend.values()]))
    assert found.per_doubling.value == pytest.approx(oracle.slope)
    assert found.per_doubling.p == pytest.approx(oracle.pvalue)
    half = stats.t.ppf(0.975, 2) * oracle.stderr
    assert found.per_doubling.high == pytest.approx(oracle.slope + half)


def test_one_seed_has_no_interval_and_two_sizes_no_trend():
    (one,) = memory_trends(table_of(lambda x, _: 3 - 0.02 * x, seeds=(0,)))

    assert (one.per_doubling.low, one.verdict) == (None, "no interval")
    assert memory_trends(table_of(lambda x, _: 3 - 0.02 * x, sizes=(2**12, 2**14))) == []


def test_presets_have_trends_of_their_own_and_p_is_corrected_for_all():
    small = table_of(lambda x, seed: 3 - 0.02 * x + 0.001 * seed * x)
    large = table_of(lambda x, seed: 2 - 0.01 * x + 0.001 * seed * x, preset="10m")

    found = memory_trends(pd.concat([small, large], ignore_index=True))

    assert [t.preset for t in found] == ["3m", "10m"]
    assert found[0].p_holm == pytest.approx(2 * min(t.per_doubling.p for t in found))


@given(
    st.lists(st.integers(1, 40), min_size=3, max_size=8, unique=True),
    st.floats(-3, 3),
    st.floats(-3, 3),
)
def test_slope_and_lack_of_fit_of_a_line(places, intercept, slope):
    x = np.asarray(places, dtype=float)
    y = intercept + slope * x

    assert slope_weights(x) @ y == pytest.approx(slope, abs=1e-9)
    assert sd_about_line(x, np.stack([y, y + 1]))[0] == pytest.approx(0, abs=1e-6)
