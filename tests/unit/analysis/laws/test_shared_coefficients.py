import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.law import LawProblem
from analysis.fitting.objective import SQUARES
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.shared_coefficients import SharedCoefficients

GROUPS = ("dense", "memory")


def two_architectures(noise=0.0):
    """The second has a third of the first's A and everything else in common."""
    dense = make_runs(CHINCHILLA, 30, noise=noise)
    example = CHINCHILLA.example
    other = make_runs(
        CHINCHILLA,
        30,
        noise=noise,
        seed=1,
        inputs_seed=1,
        parameters={**example, "A": example["A"] / 3},
    )
    both = {k: np.concatenate([dense[k], other[k]]) for k in dense}
    return both | {"group": np.repeat([0, 1], 30)}


def test_shared_and_own_coefficients_come_back():
    law = SharedCoefficients(CHINCHILLA, own=["A"], groups=GROUPS)

    fit = fit_law(law, two_architectures(), objective=SQUARES, n_draws=0, hold_out=False)

    e = CHINCHILLA.example
    expected = {
        **{n: e[n] for n in ("B", "E", "alpha", "beta")},
        "A[dense]": e["A"],
        "A[memory]": e["A"] / 3,
    }
    assert dict(fit.parameters) == pytest.approx(expected, rel=1e-6)


def test_all_of_its_own_is_two_separate_fits():
    runs = two_architectures(noise=0.01)
    law = SharedCoefficients(CHINCHILLA, own=CHINCHILLA.parameter_names, groups=GROUPS)

    joint = fit_law(law, runs, objective=SQUARES, n_draws=0, hold_out=False)

    alone = [
        fit_law(
            CHINCHILLA,
            {k: v[runs["group"] == g] for k, v in runs.items()},
            objective=SQUARES,
            n_draws=0,
            hold_out=False,
        )
        for g in (0, 1)
    ]
    assert joint.objective == pytest.approx(sum(f.objective for f in alone), rel=1e-6)
    assert joint.parameters["beta[memory]"] == pytest.approx(alone[1].parameters["beta"], rel=1e-3)


def test_sharing_more_never_fits_better():
    runs = two_architectures(noise=0.01)
    objectives = [
        fit_law(
            SharedCoefficients(CHINCHILLA, own=own, groups=GROUPS),
            runs,
            objective=SQUARES,
            n_draws=0,
            hold_out=False,
        ).objective
        for own in (["A"], ["A", "alpha"], ["A", "alpha", "E"])
    ]

    assert objectives[0] >= objectives[1] * (1 - 1e-9)
    assert objectives[1] >= objectives[2] * (1 - 1e-9)


def test_derivatives_are_those_of_finite_differences():
    law = SharedCoefficients(CHINCHILLA, own=["A", "alpha"], groups=GROUPS)
    runs = two_architectures(noise=0.01)
    problem = LawProblem(law, {k: runs[k] for k in law.inputs}, runs["loss"], SQUARES)
    theta = problem.starts()[:3]

    exact = problem.jacobian(theta)

    for i in range(theta.shape[1]):
        step = np.zeros(theta.shape[1])
        step[i] = 1e-6
        numeric = (problem.values(theta + step) - problem.values(theta - step)) / 2e-6
        np.testing.assert_allclose(exact[:, :, i], numeric, rtol=1e-5, atol=1e-7)


def test_bad_arguments():
    with pytest.raises(ValueError, match="alpha needs A too"):
        SharedCoefficients(CHINCHILLA, own=["alpha"], groups=GROUPS)
    with pytest.raises(ValueError, match="must name parameters of chinchilla"):
        SharedCoefficients(CHINCHILLA, own=["gamma"], groups=GROUPS)
    with pytest.raises(ValueError, match="two or more different names"):
        SharedCoefficients(CHINCHILLA, own=["A"], groups=["dense"])
    with pytest.raises(ValueError, match=r"group: must be 0\.\.1"):
        fit_law(
            SharedCoefficients(CHINCHILLA, own=["A"], groups=GROUPS),
            two_architectures() | {"group": np.full(60, 7.0)},
        )


def test_bounds_of_the_law_are_kept():
    bounded = CHINCHILLA.within({"alpha": (0.5, 0.5), "A": (100.0, 200.0)})
    law = SharedCoefficients(bounded, own=["A"], groups=GROUPS)

    fit = fit_law(law, two_architectures(), objective=SQUARES, n_draws=0, hold_out=False)

    assert law.n_free == 5
    assert fit.parameters["alpha"] == pytest.approx(0.5)
    assert all(99.99 < fit.parameters[f"A[{g}]"] < 200.01 for g in GROUPS)
    assert "alpha = 0.5, A[dense] within 100..200, A[memory] within 100..200" in fit.summary()
