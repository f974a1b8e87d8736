import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.scaling.equal_cost import equal_cost, interpolation_weights


def table_of(rows):
    names = ("architecture", "training_flops", "training_tokens", "seed", "loss")
    table = pd.DataFrame(rows, columns=names)
    key = table[["architecture", "training_flops", "training_tokens"]].astype(str)
    return table.assign(configuration=key.agg(" ".join, axis=1))


def two(*, shift=0.0, offset=1.0, seeds=3, noise=0.01, sizes=6):
    """Losses on one curve; the second architecture's lie `shift` below it, at `offset` the FLOPs."""
    generator = np.random.default_rng(0)
    rows = []
    for flops in np.geomspace(1e10, 1e12, sizes):
        for seed in range(seeds):
            for name, x, below in (("dense", flops, 0.0), ("memory", flops * offset, shift)):
                value = 2 + (x / 1e9) ** -0.3 - below + noise * generator.standard_normal()
                rows.append((name, x, 1e6, seed, value))
    return table_of(rows)


def test_at_exactly_equal_flops_one_size_is_welchs_test(stats):
    table = two(shift=0.02, sizes=1)

    (found,) = equal_cost(table, reference="dense").differences

    sides = [table.loc[table["architecture"] == name, "loss"] for name in ("memory", "dense")]
    oracle = stats.ttest_ind(*sides, equal_var=False)
    assert found.largest.value == pytest.approx(sides[0].mean() - sides[1].mean())
    assert found.mean.p == pytest.approx(oracle.pvalue) == found.p_holm
    assert not found.interpolated


def test_between_sizes_the_reference_is_interpolated_and_outside_there_is_no_number():
    table = two(shift=0.02, offset=1.3, noise=0.0, seeds=2)

    (found,) = equal_cost(table, reference="dense").differences

    assert (found.n_sizes, found.n_unmatched, found.interpolated) == (5, 1, True)
    assert found.mean.value == pytest.approx(-0.02, abs=1e-3)
    assert found.mean.low < -0.02 < found.mean.high


def test_interpolation_makes_no_difference_of_none():
    table = two(shift=0.0, offset=1.3, noise=1e-4)

    (found,) = equal_cost(table, reference="dense").differences

    assert found.verdict == "not told apart"


def test_the_correction_is_for_all_comparisons():
    table = two(shift=0.05)
    third = table[table["architecture"] == "memory"].assign(architecture="third")
    third["configuration"] = "third " + third["configuration"]

    found = equal_cost(pd.concat([table, third]), reference="dense")

    assert found.n_corrected == 2
    assert [d.p_holm for d in found.differences] == pytest.approx(
        [2 * d.mean.p for d in found.differences]
    )
    assert {d.verdict for d in found.differences} == {"better"}


def test_other_data_and_one_seed_are_no_comparison():
    table = two(shift=0.05)
    other = table.assign(**{"data.n_people": np.where(table["architecture"] == "dense", 1, 2)})

    assert equal_cost(other, reference="dense").differences == []
    assert "no dense runs on the same data" in equal_cost(other, reference="dense").unmatched[0]
    (one_seed,) = equal_cost(two(seeds=1), reference="dense").differences
    assert (one_seed.p_holm, one_seed.verdict) == (None, "no interval")


@given(
    places=st.lists(st.floats(0.2, 2.0), min_size=2, max_size=6),
    where=st.floats(0, 1),
    coefficients=st.tuples(*[st.floats(-3, 3)] * 3),
)
def test_parabolas_are_interpolated_exactly(places, where, coefficients):
    x = np.concatenate([[0.0], np.cumsum(places)])
    at = float(x[0] + where * (x[-1] - x[0]))

    weights, error = interpolation_weights(x, at, np.polyval(coefficients, x))

    assert weights.sum() == pytest.approx(1)
    assert weights @ np.polyval(coefficients, x) == pytest.approx(
        np.polyval(coefficients, at), abs=1e-6
    )
    assert error >= 0
