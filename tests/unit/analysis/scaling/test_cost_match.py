import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.scaling.configuration_costs import Configuration
from analysis.scaling.cost_match import CostMatch, NoMatch, interpolation_weights, match_cost
from analysis.scaling.cost_measures import COST_MEASURES


def configuration(params, *, tokens=1e6):
    return Configuration(
        name=f"{params:g} {tokens:g}",
        architecture="dense",
        series="dense",
        preset=None,
        data=(),
        tokens=tokens,
        values=np.zeros(2),
        costs={"total_params": params},
        taken={},
        params=params,
        memory=0.0,
    )


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ([], NoMatch.DATA),
        ([configuration(p, tokens=2e6) for p in (100, 200, 400)], NoMatch.TOKENS),
        ([configuration(p) for p in (100, 200)], NoMatch.FEW),
        ([configuration(p) for p in (100, 200, 200, 400)], NoMatch.TIED),
        ([configuration(p) for p in (200, 300, 400)], NoMatch.OUTSIDE),
    ],
)
def test_without_a_match_the_reason_is_the_one_that_is_true(there, reason):
    one, measure = configuration(150), COST_MEASURES["total_params"]

    assert match_cost(one, there, measure) is reason
    assert isinstance(match_cost(one, [*there, configuration(150)], measure), CostMatch)


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
