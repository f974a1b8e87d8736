"""Curves of one size against numbers recorded when they had a fitter of their own."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import Objective
from analysis.laws.loss_to_accuracy import Exponential, Sigmoid
from analysis.laws.power import PowerLaw
from analysis.laws.saturating import Saturating
from analysis.loading.validation import ALL_KINDS

RECORDED = json.loads((Path(__file__).parent / "recorded_curves.json").read_text(encoding="utf-8"))
LAWS = {
    "saturating": Saturating(),
    "saturating_floor": Saturating(floor=0.25),
    "saturating_ceiling": Saturating(fixed_ceiling=1.0),
    "sigmoid": Sigmoid(chance=0.25),
    "exponential": Exponential(),
    "exponential_known": Exponential(fixed_eps=0.75),
    "exponential_nll": Exponential(),
}
FLAT_DRAWS = {"power_huber", "saturating_ceiling"}
"""Resamples that several curves fit equally well: which is found depends on the start, the objective
does not."""


QUICK = {"power_huber", "saturating_floor", "sigmoid"}
"""One of each family of curves."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in sorted(RECORDED)
    ],
)
def test_a_curve_comes_back_to_seven_digits(name):
    old, law = RECORDED[name], LAWS.get(name, PowerLaw())
    objective = Objective(residual="value", huber=old["options"].get("huber"))

    fit = fit_law(
        law,
        {law.inputs[0]: old["x"], "y": old["y"]},
        outcome="y",
        objective=objective,
        n_draws=200,
        accept=ALL_KINDS,
    )

    assert str(fit.status) == old["status"]
    assert list(fit.parameters) == list(old["parameters"])
    close = {"rtol": 2e-7, "atol": 1e-12}
    np.testing.assert_allclose(
        list(fit.parameters.values()), list(old["parameters"].values()), **close
    )
    np.testing.assert_allclose(fit.objective, old["objective"], rtol=1e-9)
    levels = [fit.levels.coefficient, fit.levels.curve, fit.levels.new_run]
    np.testing.assert_allclose(levels, old["levels"], rtol=1e-9)
    at = fit.predict(old["at"])
    np.testing.assert_allclose(at.y, old["predicted"], **close)
    if old["hold_out"] is not None:
        errors = [fit.hold_out.mean_absolute_error, fit.hold_out.mean_relative_error]
        np.testing.assert_allclose(errors, list(old["hold_out"].values()), rtol=1e-6)
    if name not in FLAT_DRAWS:
        np.testing.assert_allclose(
            list(fit.intervals.values()), list(old["intervals"].values()), **close
        )
        # Since then a new run's share is cut to where shares lie.
        ends = (0.0, 1.0) if law.outcome_is_share else (-np.inf, np.inf)
        for band in ("low", "high", "new_low", "new_high"):
            recorded = np.clip(old[band], *ends) if "new" in band else old[band]
            np.testing.assert_allclose(getattr(at, band), recorded, **close)
