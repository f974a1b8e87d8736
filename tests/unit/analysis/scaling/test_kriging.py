import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.scaling.kriging import LENGTH, LEVEL, NOISES, SLOPE, kriging

GENERATOR = np.random.default_rng(0)
RUNS = GENERATOR.uniform(0, 1, (6, 2))
LOSS = 3 - RUNS @ [0.8, 0.4]
PLACES = GENERATOR.uniform(0, 1, (3, 2))
BOX = np.array([[0.0, 0.0], [1.0, 1.0]])


def test_it_conditions_a_gaussian_process_on_the_runs():
    """The oracle partitions the joint precision matrix, as textbooks do, with no gain matrix."""
    found = kriging(RUNS, LOSS, PLACES, box=BOX)

    at = np.concatenate([RUNS, PLACES])
    middle = at - at.mean(axis=0)
    apart = np.linalg.norm(at[:, None] - at[None], axis=-1)
    joint = np.exp(-((apart / LENGTH) ** 2) / 2) + LEVEL**2 + SLOPE**2 * middle @ middle.T
    joint += np.diag([NOISES[-1] ** 2] * 6 + [1e-9] * 3)
    precision = np.linalg.inv(joint)
    y = LOSS - LOSS.mean()
    scale = y @ np.linalg.inv(joint[:6, :6]) @ y / 6
    conditional = np.linalg.inv(precision[6:, 6:])
    mean = LOSS.mean() - conditional @ precision[6:, :6] @ y
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.covariance == pytest.approx(scale * conditional, rel=1e-4, abs=1e-8)


def test_it_reproduces_a_line_and_grows_unsure_outside():
    found = kriging(RUNS, LOSS, np.array([[0.5, 0.5], [3.0, 3.0]]), box=BOX)

    assert found.mean[0] == pytest.approx(2.4, abs=0.02)
    assert found.covariance[1, 1] > 10 * found.covariance[0, 0] > 0


@given(unit=st.floats(-5, 5), slope=st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_units_of_inputs_and_of_the_loss_do_not_matter(unit, slope):
    one = kriging(RUNS, LOSS, PLACES)
    other = kriging(slope * RUNS + unit, slope * LOSS + unit, slope * PLACES + unit)

    assert other.mean == pytest.approx(slope * one.mean + unit, rel=1e-6, abs=1e-6)
    assert other.covariance == pytest.approx(slope**2 * one.covariance, rel=1e-5, abs=1e-9)


def test_noisy_runs_are_taken_for_noisy():
    at = GENERATOR.uniform(0, 1, (60, 2))
    smooth = np.sin(3 * at[:, 0]) + at[:, 1]

    noisy = kriging(at, smooth + 0.3 * GENERATOR.standard_normal(60), PLACES)

    assert noisy.noise > 10 * kriging(at, smooth, PLACES).noise


def test_an_input_that_never_varies_does_not_matter():
    constant = [np.column_stack([x, np.full(len(x), 7.0)]) for x in (RUNS, PLACES)]

    found = kriging(constant[0], LOSS, constant[1])

    assert found.mean == pytest.approx(kriging(RUNS, LOSS, PLACES).mean)


def test_without_runs_there_is_the_prior():
    found = kriging(np.empty((0, 2)), np.empty(0), PLACES)

    assert np.all(np.diag(found.covariance) > LEVEL**2)


def test_infinite_logarithms_are_refused():
    with pytest.raises(ValueError, match="finite logarithms"):
        kriging(RUNS, LOSS, np.array([[-np.inf, 0.0]]))
