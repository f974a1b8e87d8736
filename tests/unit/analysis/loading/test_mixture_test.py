import itertools

import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.laws.chinchilla import CHINCHILLA
from analysis.loading.mixture_test import _best_split, find_mixture, orthonormal

TRUTH = np.asarray([482.0, 2085.0, 1.82, 0.348, 0.366])


def design(n_sizes=8, lengths=(5.0, 20.0, 80.0)):
    """Return inputs, the derivatives of ln(loss) by hand, and ln of the sizes."""
    N = np.repeat(np.geomspace(1e6, 1e8, n_sizes), len(lengths))
    D = N * np.tile(lengths, n_sizes)
    A, B, E, alpha, beta = TRUTH
    terms = np.array([A / N**alpha, B / D**beta, np.full(len(N), E)])
    slopes = np.array([*terms, -terms[0] * np.log(N), -terms[1] * np.log(D)]) / terms.sum(axis=0)
    return {"params": N, "tokens": D}, slopes.T, np.log(np.array([N, D]).T)


INPUTS, JACOBIAN, LOG_SIZES = design()


def halves(seed, n=24):
    return np.random.default_rng(seed).permutation(n) < n // 2


def test_two_halves_ten_standard_deviations_apart_are_told_apart():
    for seed in range(3):
        other = halves(seed)
        noise = np.random.default_rng([seed, 1]).standard_normal(24)

        found = find_mixture(0.003 * (noise + 10 * other), JACOBIAN, LOG_SIZES)

        assert np.array_equal(found.upper, other)
        assert found.offset == pytest.approx(0.03, rel=0.2)


def test_kinds_that_take_turns_in_size_are_told_apart():
    other = np.repeat(np.arange(8) % 2, 3).astype(bool)
    noise = np.random.default_rng(3).standard_normal(24)

    found = find_mixture(0.003 * (noise - 12 * other), JACOBIAN, LOG_SIZES)

    assert np.array_equal(found.upper, ~other)


def test_many_configurations_are_told_apart_without_simulating():
    _, jacobian, log_sizes = design(40, (5.0, 10.0, 20.0, 40.0))
    generator = np.random.default_rng(2)
    other = halves(2, n=160)
    even = 3.4 * generator.random(160)

    found = find_mixture(generator.standard_normal(160) + 6 * other, jacobian, log_sizes)

    assert np.mean(found.upper == other) > 0.98
    assert found.offset == pytest.approx(6, rel=0.1)
    assert find_mixture(generator.standard_normal(160), jacobian, log_sizes) is None
    assert find_mixture(even, jacobian, log_sizes) is None


def test_noise_of_one_kind_is_one_kind():
    generator = np.random.default_rng(0)
    for draw in (
        generator.standard_normal,
        lambda n: generator.uniform(-1, 1, n),
        lambda n: generator.standard_t(3, n),
    ):
        found = [find_mixture(draw(24), JACOBIAN, LOG_SIZES) for _ in range(12)]
        assert sum(f is not None for f in found) <= 1


def test_a_law_that_is_wrong_is_no_second_kind():
    """Residuals of a wrong law are smooth, here a wave over all sizes, twenty times the noise."""
    noise = np.random.default_rng(1).standard_normal(24)
    x = LOG_SIZES[:, 0] - LOG_SIZES[:, 0].mean()
    for wave in (np.sin(1.2 * x), x**3 / 5, np.tanh(3 * x)):
        assert find_mixture(0.003 * (noise + 20 * wave), JACOBIAN, LOG_SIZES) is None


def test_too_few_configurations_say_nothing():
    assert find_mixture(10.0 * halves(0)[:12], JACOBIAN[:12], LOG_SIZES[:12]) is None


ALL_SPLITS = np.asarray(list(itertools.product((0.0, 1.0), repeat=12)))


def test_the_search_mostly_finds_the_best_of_all_splits():
    """The oracle tries all 4,096 assignments of 12 configurations; changing one at a time may end below the best."""
    members = ALL_SPLITS.sum(axis=1)
    fair = ALL_SPLITS[(members >= 3) & (members <= 9)]
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(40):
        basis = orthonormal(np.column_stack([np.ones(12), generator.standard_normal((12, 2))]))
        r = generator.standard_normal(12)
        left = r - basis @ (basis.T @ r)
        starts = np.argsort(generator.random((24, 12)), axis=1) < 6

        (ratio,), _, _ = _best_split(left[None, :], basis, starts, 8)

        free = fair - (fair @ basis) @ basis.T
        size = (free**2).sum(axis=1)
        free, size = free[size > 1e-5], size[size > 1e-5]
        offset = free @ left / size
        shares.append(
            ratio / (np.abs(offset) / np.sqrt((left @ left - offset**2 * size) / 8)).max()
        )
    assert max(shares) <= 1 + 1e-9
    assert np.mean(np.asarray(shares) > 1 - 1e-9) >= 0.6
    assert np.mean(shares) > 0.97


def test_the_unit_of_the_residuals_does_not_matter():
    r = 0.003 * (np.random.default_rng(5).standard_normal(24) + 10 * halves(5))

    one, thousand = (find_mixture(k * r, JACOBIAN, LOG_SIZES) for k in (1, 1000))

    assert np.array_equal(one.upper, thousand.upper)
    assert thousand.offset == pytest.approx(1000 * one.offset)


def test_a_fit_says_it_and_the_order_of_rows_does_not_matter():
    other = halves(7)
    noise = np.random.default_rng(7).standard_normal(24)
    loss = CHINCHILLA.evaluate(INPUTS, TRUTH) * np.exp(0.003 * (noise + 12 * other))
    table = {**INPUTS, "loss": loss}
    turned = {name: values[::-1] for name, values in table.items()}

    fits = [fit_law(CHINCHILLA, t, n_draws=0, hold_out=False) for t in (table, turned)]
    accepted = fit_law(CHINCHILLA, table, n_draws=0, hold_out=False, accept={"architectures"})

    rows = [{int(i) for i in np.flatnonzero(~z)} for z in (other, other[::-1])]
    for fit, upper in zip(fits, rows, strict=True):
        assert "the runs fall into two groups 3." in fit.sentence
        assert (
            f"(rows {', '.join(str(i) for i in sorted(upper)[:4])} and 8 more against the other 12)"
            in fit.sentence
        )
    assert "two groups" not in accepted.sentence
    assert accepted.parameters == fits[0].parameters
