import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES
from analysis.fitting.result import FitStatus
from analysis.fitting.synthetic import make_inputs, make_runs
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.sparse import (
    EFFECTIVE,
    EFFECTIVE_GROWING,
    INTERACTION,
    JOINT,
    JOINT_SHARED,
)

ALL = [EFFECTIVE, EFFECTIVE_GROWING, INTERACTION, JOINT, JOINT_SHARED]
every_form = pytest.mark.parametrize("law", ALL, ids=[law.name for law in ALL])


@every_form
def test_without_memory_it_is_the_dense_law(law):
    inputs = make_inputs(law, 20) | {"n_memory": np.zeros(20)}
    p = np.asarray([law.example[name] for name in law.parameter_names])
    dense = np.asarray([law.example[name] for name in CHINCHILLA.parameter_names])

    expected = CHINCHILLA.evaluate(
        {"params": inputs["n_active"], "tokens": inputs["tokens"]}, dense
    )

    np.testing.assert_allclose(law.evaluate(inputs, p), expected, rtol=1e-12)


@every_form
def test_it_never_fits_worse_than_the_dense_law(law):
    runs = make_runs(JOINT, 40, noise=0.02, seed=5)
    dense = fit_law(
        CHINCHILLA,
        runs,
        columns={"params": "n_active"},
        objective=SQUARES,
        n_draws=0,
        hold_out=False,
    )

    fit = fit_law(law, runs, objective=SQUARES, n_draws=0, hold_out=False)

    assert fit.objective <= dense.objective * (1 + 1e-9)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [(EFFECTIVE, EFFECTIVE_GROWING), (INTERACTION, JOINT), (JOINT_SHARED, JOINT)],
)
def test_a_nested_form_never_fits_better(smaller, larger):
    runs = make_runs(EFFECTIVE_GROWING, 50, noise=0.02, seed=2)

    few = fit_law(smaller, runs, objective=SQUARES, n_draws=0, hold_out=False)
    many = fit_law(larger, runs, objective=SQUARES, n_draws=0, hold_out=False)

    assert many.objective <= few.objective * (1 + 1e-9)


@every_form
def test_dense_runs_alone_say_nothing_about_memory(law):
    runs = make_runs(law, 30, noise=0.01) | {"n_memory": np.zeros(30)}

    fit = fit_law(law, runs, n_draws=0)

    assert fit.status is FitStatus.UNDERDETERMINED
    assert not fit.usable
