import numpy as np
import pytest

from analysis.fitting.model_selection import compare_laws
from analysis.fitting.objective import SQUARES, Objective
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA, CHINCHILLA_TIED
from analysis.laws.kaplan import KAPLAN
from analysis.laws.sparse import EFFECTIVE, INTERACTION, JOINT


def test_the_true_law_predicts_the_largest_runs_best():
    runs = make_runs(CHINCHILLA, 80, noise=0.002)

    table, fits = compare_laws([KAPLAN, CHINCHILLA], runs, objective=SQUARES, n_draws=0)

    assert table["law"].tolist() == ["chinchilla", "kaplan"]
    assert table["aic"].iloc[0] < table["aic"].iloc[1]
    assert fits["chinchilla"].hold_out.mean_absolute_log_error == table["hold_out_error"].iloc[0]


def test_the_true_form_of_memory_predicts_best():
    runs = make_runs(EFFECTIVE, 100, noise=0.001)

    table, _ = compare_laws([JOINT, INTERACTION, EFFECTIVE], runs, objective=SQUARES, n_draws=0)

    assert table["law"].iloc[0] == "sparse_effective"


def test_information_criteria_are_those_of_the_textbook():
    runs = make_runs(CHINCHILLA, 60, noise=0.01)

    table, fits = compare_laws([CHINCHILLA_TIED], runs, objective=SQUARES, n_draws=0)

    deviance = 60 * np.log(np.mean(fits["chinchilla_tied"].residuals ** 2))
    assert table["aic"].iloc[0] == pytest.approx(deviance + 2 * 5)
    assert table["bic"].iloc[0] == pytest.approx(deviance + 5 * np.log(60))


def test_a_robust_fit_has_no_likelihood():
    table, _ = compare_laws([CHINCHILLA], make_runs(CHINCHILLA, 40, noise=0.01), objective=Objective(), n_draws=0)  # fmt: skip

    assert np.isnan(table["aic"].iloc[0])


def test_a_law_without_numbers_comes_last():
    table, _ = compare_laws([CHINCHILLA, CHINCHILLA_TIED], make_runs(CHINCHILLA, 5, noise=0), n_draws=0)  # fmt: skip

    assert table["status"].tolist()[-1] == "underdetermined" or table["hold_out_error"].isna().all()
