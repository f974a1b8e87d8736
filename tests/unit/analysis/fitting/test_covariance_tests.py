"""Tests of a fit's noise: likelihood ratios against scipy's normal densities of the contrasts."""

import numpy as np
import pytest
from scipy import linalg

from analysis.fitting.covariance_tests import (
    GROWTH,
    RATIOS,
    REACHES,
    shared_noise,
    uneven_noise,
)


def design(n_seeds):
    """A line over twelve sizes, each with its seeds: sizes (n, 1), and an orthonormal tangent."""
    x = np.repeat(np.linspace(0.0, 3.0, 12), n_seeds)
    return x[:, None], np.linalg.qr(np.column_stack([np.ones(len(x)), x]))[0]


def projected(errors, tangent):
    return errors - tangent @ (tangent.T @ errors)


@pytest.fixture(scope="module")
def log_density(stats):
    """Highest log density of the contrasts of errors over the scale of their covariance."""

    def density(errors, tangent, covariance):
        contrasts = linalg.null_space(tangent.T)
        left, within = contrasts.T @ errors, contrasts.T @ covariance @ contrasts
        scale = left @ np.linalg.solve(within, left) / len(left)
        return stats.multivariate_normal.logpdf(left, cov=scale * within)

    return density


def log_mean(logs):
    return np.log(np.mean(np.exp(logs)))


def test_uneven_noise_is_the_ratio_of_normal_densities(log_density):
    sizes, tangent = design(2)
    errors = projected(np.random.default_rng(0).standard_normal(24), tangent)
    even = log_density(errors, tangent, np.eye(24))
    ratios = [
        log_density(errors, tangent, np.diag(GROWTH ** (2 * sign * (sizes[:, 0] / 3 - 0.5)))) - even
        for sign in (1, -1)
    ]

    found = uneven_noise(errors[None, :], tangent, sizes)

    assert found[0] == pytest.approx(log_mean(ratios))


@pytest.mark.parametrize("n_seeds", [np.full(12, 1), np.full(12, 2), np.r_[np.full(6, 1), 6 * [3]]])
def test_shared_noise_is_the_ratio_of_normal_densities(n_seeds, log_density):
    sizes, tangent = design(n_seeds)
    place = np.repeat(np.arange(12), n_seeds)
    errors = projected(np.random.default_rng(1).standard_normal(len(place)), tangent)
    independent = log_density(errors, tangent, np.eye(len(place)))
    distance = np.abs(sizes - sizes.T) / 3
    ratios = [
        log_density(errors, tangent, np.eye(len(place)) + ratio * 2 ** (-distance / reach))
        - independent
        for reach in REACHES
        for ratio in RATIOS
    ]
    means = np.bincount(place, errors) / n_seeds
    within = ((errors - means[place]) ** 2).sum()
    first = np.flatnonzero(np.diff(place, prepend=-1))
    of_means = np.linalg.qr(tangent[first] * np.sqrt(n_seeds)[:, None])[0]

    found = shared_noise(
        (np.sqrt(n_seeds) * means)[None, :], np.asarray([within]), n_seeds, of_means, sizes[first]
    )

    assert found.log_ratio[0] == pytest.approx(log_mean(ratios))


def test_the_size_of_a_shared_error_is_found():
    x, y = (v.ravel() for v in np.meshgrid(np.arange(15.0), np.arange(15.0)))
    sizes = np.stack([x, y], axis=1)
    tangent = np.linalg.qr(np.column_stack([np.ones(225), sizes]))[0]
    generator = np.random.default_rng(2)
    common = generator.standard_normal(15)
    common -= np.polyval(np.polyfit(np.arange(15), common, 1), np.arange(15))
    common *= 2 / np.sqrt((common**2).sum() / 13)
    errors = generator.standard_normal(225) + common[x.astype(int)]

    found = shared_noise(
        projected(errors, tangent)[None, :], np.zeros(1), np.ones(225, dtype=int), tangent, sizes
    )

    assert found.log_ratio[0] > 50
    assert found.size == pytest.approx(2, rel=0.15)
