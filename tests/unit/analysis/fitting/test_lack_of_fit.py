"""Lack-of-fit tests: even p-values for noise, small ones for each thing that can be wrong."""

import numpy as np
import pytest

from analysis.fitting.lack_of_fit import lack_of_fit


def line(n=40):
    """A design of one size, and a straight line's Jacobian."""
    x = np.linspace(0.0, 10.0, n)
    return np.stack([np.ones(n), x], axis=1), x[:, None]


def check(residuals, jacobian, sizes, clusters=None, **options):
    labels = np.arange(len(residuals)) if clusters is None else clusters
    return lack_of_fit(residuals, jacobian, sizes, clusters=labels, **options)


def projected(errors, jacobian):
    return errors - jacobian @ np.linalg.lstsq(jacobian, errors, rcond=None)[0]


def test_noise_has_even_p_values(stats):
    jacobian, sizes = line(20)
    generator = np.random.default_rng(0)

    found = [
        check(projected(generator.standard_normal(20), jacobian), jacobian, sizes)
        for _ in range(60)
    ]

    for test in ("curve", "spread", "neighbours"):
        p_values = [one.uncorrected[test] for one in found]
        assert stats.kstest(p_values, "uniform").pvalue > 0.01, test
    smallest = [min(one.curve, one.spread, one.neighbours) for one in found]
    assert stats.kstest(smallest, "uniform").pvalue > 0.01


def test_pure_error_is_the_textbook_test(stats):
    jacobian, sizes = line(8)
    jacobian, sizes = np.repeat(jacobian, 3, axis=0), np.repeat(sizes, 3, axis=0)
    y = projected(np.random.default_rng(1).standard_normal(24), jacobian)
    means = y.reshape(8, 3).mean(axis=1)
    pure = ((y.reshape(8, 3) - means[:, None]) ** 2).sum() / 16
    lack = 3 * (means**2).sum() / 6

    found = check(y, jacobian, sizes)

    expected = stats.f.sf(lack / pure, 6, 16)
    assert found.uncorrected["seeds"] == pytest.approx(expected, abs=0.05)  # 3.5 standard errors
    assert found.seed_noise == pytest.approx(np.sqrt(pure))


def test_conditions_are_the_textbook_test(stats):
    jacobian, sizes = line(40)
    y = projected(np.random.default_rng(2).standard_normal(40), jacobian)
    group = np.random.default_rng(3).integers(2, size=40)
    full = np.column_stack([jacobian, group])
    rest = (projected(y, full) ** 2).sum()

    found = check(y, jacobian, sizes, conditions={"lr": group.tolist()})

    f = ((y**2).sum() - rest) / (rest / 37)
    expected = stats.f.sf(f, 1, 37)
    assert found.uncorrected["conditions: lr"] == pytest.approx(expected, abs=0.05)
    assert found.conditions["lr"] >= found.uncorrected["conditions: lr"]


def test_each_fault_is_seen_by_its_test():
    jacobian, sizes = line(40)
    noise = np.random.default_rng(4).standard_normal(40)
    x = sizes[:, 0]
    bent = check(projected(noise + 4 * np.cos(x / 2), jacobian), jacobian, sizes)
    blocks = np.repeat(np.random.default_rng(5).standard_normal(8), 5)
    alike = check(projected(noise + 3 * blocks, jacobian), jacobian, sizes)
    growing = check(projected(noise * np.exp(0.3 * x), jacobian), jacobian, sizes)

    assert bent.curve <= 0.02
    assert bent.systematic > 2.5 > 1.5 > bent.noise
    assert alike.neighbours <= 0.005
    assert alike.shared > 1.5
    assert growing.spread <= 0.005
    assert growing.neighbours > 0.1


def test_errors_that_a_cluster_shares_are_no_misfit_of_its_law():
    jacobian, sizes = line(40)
    runs = np.repeat(np.arange(10), 4)
    generator = np.random.default_rng(6)
    plain, clustered = [], []
    for _ in range(10):
        y = 0.3 * generator.standard_normal(40) + generator.standard_normal(10)[runs]
        y = projected(y, jacobian)
        plain.append(check(y, jacobian, sizes).neighbours <= 0.01)
        clustered.append(check(y, jacobian, sizes, clusters=runs).neighbours <= 0.01)

    assert sum(plain) >= 8
    assert sum(clustered) <= 1


def test_a_row_given_twice_is_no_seed():
    jacobian, sizes = line(10)
    rows = [*range(10), 0, 1, 2, 3]
    y = np.random.default_rng(8).standard_normal(10)[rows]

    found = check(y, jacobian[rows], sizes[rows])

    assert np.isnan(found.seeds)
    assert np.isnan(found.seed_noise)


def test_too_few_runs_have_no_p_values():
    jacobian, sizes = line(5)

    found = check(np.asarray([1.0, -1, 1, -1, 0]), jacobian, sizes)

    assert np.isnan([found.curve, found.neighbours, found.spread, found.seeds]).all()
