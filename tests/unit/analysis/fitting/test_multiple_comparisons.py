from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.fitting.bootstrap import difference_of_means
from analysis.fitting.multiple_comparisons import holm, holm_corrected, n_corrected

p_values = st.lists(st.floats(0, 1), max_size=6)


@given(p_values)
def test_holm_is_the_closed_test_of_bonferroni(p):
    """Marcus, Peritz and Gabriel 1976: reject one if every set that holds it is rejected."""
    indices = range(len(p))
    sets = [s for size in range(1, len(p) + 1) for s in combinations(indices, size)]
    expected = [
        max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s) for i in indices
    ]

    assert holm(p) == pytest.approx(expected, abs=1e-15)


@given(p_values)
def test_no_value_falls_and_their_order_stays(p):
    adjusted = holm(p)

    assert all(after >= before for before, after in zip(p, adjusted, strict=True))
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_what_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="must lie in 0..1, got 1.5"):
        holm([0.1, 1.5])


def test_seeds_that_do_not_differ_are_counted_and_have_no_p():
    apart = difference_of_means([1.0, 1.1, 1.2], [2.0, 2.1, 2.2])
    equal = difference_of_means([1.0, 1.0], [2.0, 2.0])
    one_seed = difference_of_means([1.0], [2.0, 2.1])

    found = holm_corrected([apart, equal, one_seed])

    assert found == [pytest.approx(2 * apart.p), None, None]
    assert n_corrected([apart, equal, one_seed]) == 2
    assert n_corrected([equal, one_seed]) == 0
