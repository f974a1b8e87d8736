import numpy as np

from analysis.fitting.fit_law import fit_law
from analysis.fitting.result import FitStatus
from analysis.fitting.synthetic import make_runs
from analysis.laws.broken import BROKEN


def test_the_curve_is_the_printed_equation():
    x = np.geomspace(1e17, 1e22, 7)
    p = BROKEN.example

    found = BROKEN.evaluate({"x": x}, np.asarray([p[n] for n in BROKEN.parameter_names]))

    turn = (1 + (x / p["d"]) ** (1 / p["f"])) ** (-p["c1"] * p["f"])
    np.testing.assert_allclose(found, p["a"] + p["b"] * x ** -p["c0"] * turn, rtol=1e-12)


def test_a_break_outside_the_runs_is_not_reported_as_found():
    runs = make_runs(BROKEN, 40, noise=0.0)
    before = runs["x"] < 1e18
    fit = fit_law(BROKEN, {k: v[before] for k, v in runs.items()}, n_draws=0, hold_out=False)

    assert fit.status is not FitStatus.CONVERGED or fit.parameters["d"] <= 1e18


def test_an_abrupt_break_is_found():
    """Slopes above 5 after the break, as where a task is learnt at one data size (Caballero et al. 2023, figure 4)."""
    x = np.geomspace(150, 1000, 30)
    true = np.asarray([0.4, 2.3, 0.055, 9.0, 610.0, 0.06])
    fit = fit_law(
        BROKEN, {"x": x, "loss": BROKEN.evaluate({"x": x}, true)}, n_draws=0, hold_out=False
    )

    assert fit.status is FitStatus.CONVERGED
    np.testing.assert_allclose(list(fit.parameters.values()), true, rtol=1e-4)
