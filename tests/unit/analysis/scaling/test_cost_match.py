import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.scaling.cost_match import interpolation_weights


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
