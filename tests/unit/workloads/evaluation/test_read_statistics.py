"""Evenness of reads: against scipy, definitions by brute force, and drawn uniform reads."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy, poisson

from workloads.evaluation.read_statistics import read_statistics

READS = st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(any)


@given(READS)
def test_statistics_are_what_their_definitions_say(reads):
    n_rows, total = len(reads), sum(reads)
    found = read_statistics(np.array(reads))

    assert found.rows_read == sum(n > 0 for n in reads) / n_rows
    uniform = np.full(n_rows, 1 / n_rows)
    assert found.kl_to_uniform == pytest.approx(entropy(reads, uniform), abs=1e-9)
    assert found.normalised_entropy == pytest.approx(entropy(reads) / math.log(n_rows), abs=1e-9)
    # Half the mean absolute difference between two rows over the mean.
    difference = sum(abs(a - b) for a in reads for b in reads) / n_rows**2
    assert found.gini == pytest.approx(difference / (2 * total / n_rows), abs=1e-9)
    assert found.max_over_mean == pytest.approx(max(reads) * n_rows / total)


@given(READS, st.randoms())
def test_neither_the_order_of_rows_nor_the_length_of_the_text_changes_evenness(reads, random):
    shuffled = random.sample(reads, len(reads))
    names = ("rows_read", "normalised_entropy", "kl_to_uniform", "gini", "max_over_mean")
    one, other = read_statistics(np.array(reads)), read_statistics(3 * np.array(shuffled))
    for name in names:
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-9)


def test_the_ends_of_the_scales():
    even, one_row = (read_statistics(np.array(reads)) for reads in ([7] * 8, [0] * 7 + [56]))
    assert (even.rows_read, even.normalised_entropy, even.kl_to_uniform, even.gini) == (1, 1, 0, 0)
    assert (one_row.rows_read, one_row.normalised_entropy) == (1 / 8, 0)
    assert (one_row.gini, one_row.kl_to_uniform) == pytest.approx((7 / 8, math.log(8)))
    assert read_statistics(np.array([5])).normalised_entropy == 1
    with pytest.raises(ValueError, match="no row was read"):
        read_statistics(np.zeros(3, dtype=np.int64))


@pytest.mark.parametrize("mean", [0.3, 4.0, 300.0])
def test_what_chance_alone_gives(mean):
    n_rows = 20_000
    rng = np.random.default_rng(0)
    drawn = np.bincount(rng.integers(0, n_rows, round(mean * n_rows)), minlength=n_rows)
    found = read_statistics(drawn)

    assert found.rows_read == pytest.approx(found.rows_read_if_uniform, rel=0.02)
    assert found.kl_to_uniform == pytest.approx(found.kl_if_uniform, rel=0.05)
    counts = np.arange(1, 2000)
    ratios = counts / mean
    exact = (poisson.pmf(counts, mean) * ratios * np.log(ratios)).sum()
    assert found.kl_if_uniform == pytest.approx(exact, rel=1e-6)
