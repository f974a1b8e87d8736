import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.fitting.bootstrap import (
    contrast_of_means,
    difference_of_means,
    draws_with_interval,
    mean_over_seeds,
    p_value_with_seeds,
    percentile_interval,
    resample_clusters,
)


def test_mean_of_three_seeds_has_the_textbook_t_interval():
    estimate = mean_over_seeds([1.0, 2.0, 3.0])

    # t(0.975, 2) = 4.302653, standard error 1 / sqrt(3)
    assert estimate.value == 2
    assert estimate.low == pytest.approx(2 - 4.302653 / 3**0.5, rel=1e-6)
    assert estimate.high == pytest.approx(2 + 4.302653 / 3**0.5, rel=1e-6)
    assert "Student" in estimate.method


def test_one_seed_has_no_interval():
    estimate = mean_over_seeds([0.4])

    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (0.4, None, None, 1)
    assert estimate.low is None


def test_an_interval_is_cut_at_what_is_possible():
    assert mean_over_seeds([0.0, 0.1], bounds=(0, 1)).low == 0


def test_nothing_and_not_finite_are_refused():
    with pytest.raises(ValueError, match="got none"):
        mean_over_seeds([])
    with pytest.raises(ValueError, match="must be finite"):
        mean_over_seeds([1.0, float("nan")])


def test_welch_interval_against_its_formula():
    a, b = [3.0, 3.4, 3.8, 3.0], [1.0, 2.0]

    estimate = difference_of_means(a, b)

    va, vb = np.var(a, ddof=1) / 4, np.var(b, ddof=1) / 2
    assert estimate.value == pytest.approx(np.mean(a) - np.mean(b))
    half = (estimate.high - estimate.low) / 2
    freedom = (va + vb) ** 2 / (va**2 / 3 + vb**2)
    assert 1 < freedom < 2
    # Between the t quantiles of 1 and 2 degrees of freedom.
    assert 4.302 < half / (va + vb) ** 0.5 < 12.707


def test_t_intervals_cover_the_mean_as_often_as_they_say():
    generator = np.random.default_rng(0)
    samples = generator.standard_normal((2000, 3))

    held = sum(e.low < 0 < e.high for e in map(mean_over_seeds, samples))

    assert 0.93 < held / 2000 < 0.97


def test_differences_with_one_seed_or_no_spread():
    assert difference_of_means([1.0], [2.0, 3.0]).low is None
    # Three times 0.1 has a standard deviation of 1e-17 as floats are rounded.
    for first, second in ([1.0, 1.0], [0.0, 0.0]), ([0.1] * 3, [0.3] * 3), ([0.0] * 2, [0.0] * 2):
        equal = difference_of_means(first, second)
        assert (equal.low, equal.high, equal.p) == (None, None, None)
        assert equal.why_no_interval == "seeds do not differ"
    assert difference_of_means([1.0], [2.0, 3.0]).why_no_interval == "one seed"
    assert difference_of_means([1.0, 1.0], [2.0, 3.0]).low is not None


def test_runs_of_a_cluster_are_drawn_together():
    clusters = ["a", "a", "b", "c", "c", "c"]

    drawn = resample_clusters(clusters, n_draws=500, seed=0)

    assert drawn.weights.shape == (500, 6)
    np.testing.assert_array_equal(drawn.weights[:, 0], drawn.weights[:, 1])
    np.testing.assert_array_equal(drawn.weights[:, 3], drawn.weights[:, 5])
    np.testing.assert_array_equal(drawn.weights[:, [0, 2, 3]].sum(axis=1), 3)
    assert abs(drawn.weights[:, 2].mean() - 1) < 0.15
    assert drawn.share_refused == 0


def test_draws_do_not_depend_on_the_order_of_runs():
    clusters = np.asarray(["a", "b", "c", "b"])
    shuffled = [3, 0, 2, 1]

    drawn = resample_clusters(clusters, n_draws=50, seed=1).weights
    again = resample_clusters(clusters[shuffled], n_draws=50, seed=1).weights

    np.testing.assert_array_equal(drawn[:, shuffled], again)


def test_refused_resamples_are_replaced_and_counted():
    drawn = resample_clusters(
        range(4), n_draws=300, seed=0, accept=lambda w: (w > 0).sum(axis=1) >= 3
    )

    assert ((drawn.weights > 0).sum(axis=1) >= 3).all()
    # P(three or four distinct of four) = 168 / 256
    assert drawn.share_refused == pytest.approx(1 - 168 / 256, abs=0.05)


def test_a_condition_that_nothing_meets_is_an_error():
    with pytest.raises(ValueError, match="add configurations"):
        resample_clusters([1, 2], n_draws=5, seed=0, accept=lambda w: np.zeros(len(w), bool))


@given(
    first=st.lists(st.floats(-5, 5), min_size=2, max_size=5),
    second=st.lists(st.floats(-5, 5), min_size=2, max_size=5),
)
def test_a_contrast_of_two_means_is_welchs_test(stats, first, second):
    assume(np.var(first) > 1e-3 and np.var(second) > 1e-3)

    found = contrast_of_means([(1.0, first), (-1.0, second)])

    oracle = stats.ttest_ind(first, second, equal_var=False)
    interval = oracle.confidence_interval(0.95)
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_contrasts_of_shared_means_hold_zero_as_often_as_they_say():
    generator = np.random.default_rng(3)
    values = generator.normal(0.0, [1.0, 1.0, 2.0, 3.0], size=(2000, 3, 4))
    weights = (1.0, 0.5, -1.0, -0.5)

    p = [contrast_of_means(list(zip(weights, v.T, strict=True))).p for v in values]

    # Of 2,000 true hypotheses 5 % are rejected, with a standard error of 0.5 %; Satterthwaite's
    # approximation stays below with so few seeds.
    assert 0.02 < np.mean(np.asarray(p) < 0.05) < 0.06


def test_an_error_beside_the_seeds_widens_and_one_seed_says_nothing():
    seeds = [(1.0, [1.0, 1.2, 0.9]), (-1.0, [0.7, 0.8, 0.75])]
    plain, wide = contrast_of_means(seeds), contrast_of_means(seeds, extra_sd=0.5)

    assert wide.value == plain.value
    assert wide.high - wide.low > plain.high - plain.low
    assert contrast_of_means([(1.0, [1.0]), (-1.0, [0.7, 0.8])]).p is None


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
@pytest.mark.parametrize("extra_sd", [0.0, 0.1, 0.4])
def test_a_p_value_with_more_seeds_is_that_of_runs_with_as_many(n, extra_sd):
    def contrast(n):
        # Of mean 1, 0.5 and 0.4, with a standard deviation over seeds that n does not change.
        deviates = np.resize([-1.0, 1.0], n) if n % 2 == 0 else np.linspace(-1, 1, n)
        deviates = deviates / deviates.std(ddof=1)
        terms = [
            (weight, mean + sd * deviates)
            for weight, mean, sd in ((1.0, 1.0, 0.3), (-0.7, 0.5, 0.2), (-0.3, 0.4, 0.1))
        ]
        return contrast_of_means(terms, extra_sd=extra_sd, extra_freedom=7.0)

    assert p_value_with_seeds(contrast(2), n) == pytest.approx(contrast(n).p)


def test_no_number_of_seeds_lowers_a_p_value_below_that_of_the_error_beside_them(stats):
    seeds = [(1.0, [0.0, 0.001]), (-1.0, [0.5, 0.501])]

    p = p_value_with_seeds(contrast_of_means(seeds, extra_sd=0.4), np.inf)

    assert p == pytest.approx(2 * stats.norm.sf(0.5 / 0.4), rel=1e-6)
    assert p_value_with_seeds(contrast_of_means(seeds), np.inf) == 0
    assert p_value_with_seeds(mean_over_seeds([1.0, 2.0]), 3) is None


@given(
    half_width=st.floats(0, 1e3),
    n_draws=st.integers(2, 400),
    level=st.floats(0.5, 1.0),
)
def test_draws_have_the_interval_that_was_asked_for(half_width, n_draws, level):
    draws = draws_with_interval(half_width, n_draws, level=level)

    wanted = (-half_width, half_width)
    assert percentile_interval(draws, level=level) == pytest.approx(wanted, abs=1e-9 * half_width)
    assert draws.shape == (n_draws,)


def test_a_percentile_interval_leaves_as_many_draws_out_below_as_above():
    draws = np.random.default_rng(0).permutation(np.arange(1_001.0))

    assert percentile_interval(draws, level=0.95) == pytest.approx((25, 975))
    assert percentile_interval(draws, level=0.5) == pytest.approx((250, 750))
