"""17 of 24 cells, two of the missing ones diverged: the fit works, says what was missing, and how the answer would move."""

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.fitting.fit_law import fit_law
from analysis.fitting.missing_run_sensitivity import fit_partial
from analysis.fitting.objective import SQUARES, Objective
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.saturating import Saturating
from analysis.laws.sparse import JOINT_SHARED
from analysis.plotting.draw import draw

GONE = (2, 5, 11, 17, 20, 21, 23)


def sweep():
    """Six sizes by four amounts of data."""
    table = pd.DataFrame(
        [(n, d) for n in np.geomspace(3e7, 3e9, 6) for d in np.geomspace(1e9, 6e10, 4)],
        columns=["params", "tokens"],
    )
    truth = CHINCHILLA.evaluate(
        {k: table[k].to_numpy() for k in table}, np.asarray(list(CHINCHILLA.example.values()))
    )
    table["true"] = truth
    table["loss"] = truth * np.exp(0.005 * np.random.default_rng(2).standard_normal(24))
    table["status"] = "finished"
    return table


@pytest.fixture(scope="module")
def whole():
    return sweep()


@pytest.fixture(scope="module")
def partial(whole):
    table = whole.copy()
    table.loc[list(GONE), "loss"] = np.nan
    table.loc[list(GONE), "status"] = "not run"
    table.loc[[11, 23], "status"] = "diverged"
    return table


@pytest.fixture(scope="module")
def found(partial):
    return fit_partial(CHINCHILLA, partial, n_draws=200, objective=SQUARES)


def test_it_fits_what_is_there(found, partial):
    there = partial.dropna(subset="loss").reset_index(drop=True)
    plain = fit_law(CHINCHILLA, there, n_draws=200, objective=SQUARES)

    assert found.fit.n_points == 17
    assert dict(found.fit.parameters) == pytest.approx(dict(plain.parameters), rel=1e-9)


def test_it_says_what_is_missing(found, whole):
    assert found.sentence.startswith("17 of 24 cells; missing: 5 not run, 2 diverged. At params")
    assert [cell.row for cell in found.missing] == list(GONE)
    assert {c.row for c in found.missing if c.reason == "diverged"} == {11, 23}
    inside = [c.expected[1] < whole["loss"][c.row] < c.expected[2] for c in found.missing]
    assert sum(inside) >= 6, "prediction intervals hold what the runs would have given"


def test_the_largest_cell_is_asked_for_and_is_an_extrapolation_when_it_is_missing(found, whole):
    largest = whole.iloc[23]

    assert found.at == pytest.approx({"params": largest["params"], "tokens": largest["tokens"]})
    assert found.answer.low[0] < whole["true"][23] < found.answer.high[0]
    cell = found.missing[-1]
    assert cell.answer[1] - cell.answer[0] == max(c.answer[1] - c.answer[0] for c in found.missing)
    assert "moved most by row 23" in found.sentence


def test_a_scenario_is_the_fit_with_that_row_put_in(found, partial):
    cell = found.missing[2]
    assert cell.row == 11
    for end, value in (("low", cell.expected[1]), ("high", cell.expected[2])):
        table = partial.copy()
        table.loc[11, "loss"] = value
        there = table.dropna(subset="loss").reset_index(drop=True)
        fit = fit_law(CHINCHILLA, there, n_draws=0, hold_out=False, objective=SQUARES)
        row = found.moves[(found.moves["scenario"] == end) & (found.moves["row"] == 11)].iloc[0]

        assert row["answer"] == pytest.approx(fit.predict(found.at).y[0], rel=1e-6)
        assert row["alpha"] == pytest.approx(fit.parameters["alpha"], rel=1e-4)


def test_a_left_out_scenario_is_the_fit_without_that_row(found, partial):
    there = partial.drop(index=7).dropna(subset="loss").reset_index(drop=True)
    fit = fit_law(CHINCHILLA, there, n_draws=0, hold_out=False, objective=SQUARES)

    row = found.moves[(found.moves["scenario"] == "left out") & (found.moves["row"] == 7)].iloc[0]

    assert row["answer"] == pytest.approx(fit.predict(found.at).y[0], rel=1e-6)


def test_the_whole_sweep_lies_where_the_partial_one_said(found, whole):
    fit = fit_law(CHINCHILLA, whole.drop(columns="status"), n_draws=0, objective=SQUARES)

    low, high = found.could_be
    assert low <= fit.predict(found.at).y[0] <= high


def test_nothing_missing_moves_nothing_but_by_leaving_out(whole):
    found = fit_partial(CHINCHILLA, whole, n_draws=0)

    assert found.missing == ()
    assert found.could_be is None
    assert found.sentence.startswith("24 of 24 cells. At")
    assert found.left_out[0] < found.answer.y[0] < found.left_out[1]


def test_a_cell_with_one_seed_left_is_there(partial):
    twice = pd.concat([partial, partial.assign(loss=partial["loss"].where(partial.index != 0))])

    found = fit_partial(CHINCHILLA, twice.reset_index(drop=True), n_draws=0, accept={"duplicates"})

    assert found.sentence.startswith("17 of 24 cells")


def test_too_few_cells_give_the_list_and_no_number(partial):
    few = partial.copy()
    few.loc[4:, "loss"] = np.inf

    found = fit_partial(CHINCHILLA, few.drop(columns="status"))

    assert not found.usable
    assert found.answer is None
    assert found.sentence.startswith("3 of 24 cells; missing: 1 not run, 20 diverged. No fit:")
    assert "No fit: 3 distinct runs for 5 parameters" in found.sentence


def test_what_is_wrong_keeps_its_row(partial):
    bad = partial.copy()
    bad.loc[19, "loss"] = -1
    with pytest.raises(ValueError, match="loss, row 19: must be positive"):
        fit_partial(CHINCHILLA, bad)
    bad.loc[19, "loss"] = 9.5

    assert "row 19: 9.5 is far above" in fit_partial(CHINCHILLA, bad, n_draws=0).fit.sentence


def test_words_in_place_of_a_loss_are_the_reason(partial):
    told = partial.drop(columns="status").astype({"loss": object})
    told.loc[2, "loss"] = "OOM"

    assert "1 OOM, 6 not run" in fit_partial(CHINCHILLA, told, n_draws=0).sentence


def test_its_summary_and_table_have_the_missing_cells(found):
    frame = found.to_frame()

    assert frame["cell"].tolist() == [f"row {i}" for i in GONE]
    assert frame["answer_high"].max() <= found.could_be[1]
    assert found.summary().startswith(found.sentence)
    assert found.fit.summary() in found.summary()
    assert draw(found).axes[0].get_ylabel() == "Loss (nats per token)"


def test_what_load_excluded_is_missing(found, partial):
    loaded = analysis.load(partial.drop(columns="true"))

    again = fit_partial("chinchilla", loaded, n_draws=200, objective=SQUARES)

    assert dict(again.fit.parameters) == pytest.approx(dict(found.fit.parameters), rel=1e-6)
    assert again.at == pytest.approx(dict(found.at))
    assert {c.name for c in again.missing} == {f"row {i}" for i in GONE}
    assert again.could_be == pytest.approx(found.could_be, rel=1e-3)
    assert again.sentence.startswith("17 of 24 cells; missing: ")
    assert "2 status is 'diverged'" in again.sentence
    assert "moved most by row 23" in again.sentence
    assert "run it again" in again.missing[0].reason


def test_excluded_rows_without_sizes_are_counted(partial):
    table = partial.drop(columns=["true", "status"])
    table.loc[2, "params"] = np.nan

    found = fit_partial("chinchilla", analysis.load(table), n_draws=0)

    assert "; 1 excluded row has no known params and tokens, so no cell. At" in found.sentence
    assert len(found.missing) == len(GONE) - 1


def test_excluded_rows_of_other_architectures_are_not_missing(partial):
    table = partial.assign(architecture=np.where(partial.index == 2, "moe", "dense"))

    found = fit_partial("chinchilla", analysis.load(table), n_draws=0)

    assert "row 2" not in {c.name for c in found.missing}


def test_warnings_of_loaded_runs_name_rows_of_the_file(partial):
    table = partial.drop(columns=["true", "status"])
    table.loc[19, "loss"] = 9.5

    found = fit_partial("chinchilla", analysis.load(table), n_draws=0)

    assert "row 19: 9.5 is far above" in found.fit.sentence


def test_other_laws_work_too():
    table = pd.DataFrame(make_runs(JOINT_SHARED, 40, noise=0.004))
    table.loc[[3, 30], "loss"] = np.nan

    found = fit_partial(JOINT_SHARED, table, n_draws=0)

    assert found.sentence.startswith("38 of 40 cells; missing: 2 not run")
    assert len(found.missing) == 2


def test_an_answer_without_memory_is_an_extrapolation_from_runs_that_have_some():
    table = pd.DataFrame(make_runs(JOINT_SHARED, 60, noise=0.004))
    some = table[table["n_memory"] > 0]

    at = {"n_active": 1e8, "n_memory": 0.0, "tokens": 1e10}
    found = fit_partial(JOINT_SHARED, some, at=at, n_draws=0)

    assert ", an extrapolation to a size of 0" in found.sentence


def test_an_accuracy_of_zero_is_an_outcome():
    x = np.geomspace(1e6, 1e9, 12)
    y = np.clip(0.9 / (1 + (1e8 / x) ** 1.2) + np.random.default_rng(0).normal(0, 0.002, 12), 0, 1)
    y[:2] = 0
    whole = {"x": x, "accuracy": y}
    gone = {"x": x, "accuracy": np.where(np.isin(np.arange(12), [2, 11]), np.nan, y)}

    bare, drawn = (
        fit_partial(Saturating(), gone, outcome="accuracy", n_draws=n, accept={"outliers"})
        for n in (0, 50)
    )
    none_missing = fit_partial(Saturating(), whole, outcome="accuracy", n_draws=0)

    assert none_missing.fit.n_points == 12
    for found in (bare, drawn):
        assert found.fit.n_points == 10
        for cell in found.missing:
            expected, low, high = cell.expected
            assert 0 <= low <= expected <= high <= 1
    # Without draws as far as the worst residual, in accuracy and not as a ratio.
    expected, low, high = bare.missing[1].expected
    assert high - expected == pytest.approx(np.abs(bare.fit.residuals).max())
    assert expected - low == pytest.approx(high - expected)


def test_outcomes_near_zero_have_the_ends_of_their_objective():
    N, D = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 3e10, 4)))
    truth = CHINCHILLA.evaluate(
        {"params": N, "tokens": D}, np.asarray([561.0, 1752.0, 0.0, 0.36, 0.36])
    )
    loss = truth * np.exp(0.01 * np.random.default_rng(0).standard_normal(16))
    loss[3], loss[15] = 0.0, np.nan

    found = fit_partial(
        CHINCHILLA,
        {"params": N, "tokens": D, "loss": loss},
        objective=Objective(huber=None, offset=1.0),
        n_draws=0,
    )

    expected, low, high = found.missing[0].expected
    assert low == 0.0  # a run has no negative loss
    assert np.log((high + 1) / (expected + 1)) == pytest.approx(np.abs(found.fit.residuals).max())
