import numpy as np
import pytest
from scipy.stats import norm

from analysis.scaling.local_weights import BANDWIDTH, local_weights

BOX = np.log([[1e7, 1e9], [1e7, 1e11], [1e9, 1e9], [1e9, 1e11]])
TARGET = np.log([[1e10, 1e12]])


def test_along_the_way_to_the_target_no_distance_counts():
    way = np.linspace(0, 1, 5)[:, None]
    on_it = BOX.mean(axis=0) + way * (TARGET - BOX.mean(axis=0))

    assert local_weights(TARGET, on_it, box=BOX) == pytest.approx(np.ones(5))


def test_across_the_way_weights_are_a_gaussian_density():
    """The oracle is scipy's density; both ranges are ln(100), so across is their difference."""
    steps = np.asarray([0.0, 0.05, 0.1, 0.3])
    aside = BOX.mean(axis=0) + np.log(100) * np.outer(steps, [1, -1]) / np.sqrt(2)

    density = norm.pdf(steps, scale=BANDWIDTH)
    assert local_weights(TARGET, aside, box=BOX) == pytest.approx(density / density[0])


def test_units_do_not_count_and_the_nearest_target_does():
    targets = np.concatenate([TARGET, TARGET + np.asarray([2.0, -2.0])])
    stretch = np.asarray([3.0, 0.2])

    both = local_weights(targets, BOX, box=BOX)

    assert local_weights(targets * stretch, BOX * stretch, box=BOX * stretch) == pytest.approx(both)
    assert local_weights(targets, targets, box=BOX) == pytest.approx(np.ones(2))


def test_one_input_has_no_side():
    box = np.log([[1e7], [1e8]])
    assert local_weights(np.log([[1e9]]), box, box=box) == pytest.approx(np.ones(2))
