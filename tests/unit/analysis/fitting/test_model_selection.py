import numpy as np
import pytest

from analysis.fitting import model_selection
from analysis.fitting.model_selection import choose_law, compare_laws
from analysis.fitting.objective import SQUARES, Objective
from analysis.fitting.synthetic import make_inputs, make_runs
from analysis.laws.chinchilla import CHINCHILLA, CHINCHILLA_TIED
from analysis.laws.kaplan import KAPLAN
from analysis.laws.saturating import Saturating
from analysis.laws.sparse import EFFECTIVE, INTERACTION, JOINT
from analysis.laws.vocabulary import VOCABULARY


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
    table, _ = compare_laws(
        [CHINCHILLA], make_runs(CHINCHILLA, 40, noise=0.01), objective=Objective(), n_draws=0
    )

    assert np.isnan(table["aic"].iloc[0])


def test_negative_outcomes_are_ranked_in_their_own_units():
    inputs = make_inputs(VOCABULARY, 60)
    truth = np.asarray([VOCABULARY.example[name] for name in VOCABULARY.parameter_names])
    noise = 0.002 * np.random.default_rng(0).standard_normal(60)
    runs = inputs | {"loss": VOCABULARY.evaluate(inputs, truth) - 6 + noise}
    assert runs["loss"].max() < 0

    table, fits = compare_laws([VOCABULARY], runs, n_draws=0)

    errors = fits["vocabulary"].hold_out.predicted - fits["vocabulary"].hold_out.observed
    (row,) = table.to_dict(orient="records")
    assert 0 < row["hold_out_error"] == pytest.approx(np.abs(errors).mean())
    assert row["hold_out_rms"] == pytest.approx(np.sqrt((errors**2).mean()))
    assert row["hold_out_bias"] == pytest.approx(errors.mean())


def test_laws_of_different_residuals_are_ranked_in_one_unit():
    runs = of_chinchilla(5, 4) | {"vocabulary": np.tile([8e3, 3.2e4], 10)}
    runs["characters"] = 4 * runs["tokens"]

    table, fits = compare_laws([VOCABULARY, "chinchilla"], runs, n_draws=0)

    for _, row in table.iterrows():
        held = fits[row["law"]].hold_out
        assert row["hold_out_error"] == pytest.approx(np.abs(held.errors).mean())


def test_a_law_without_numbers_comes_last():
    table, _ = compare_laws(
        [CHINCHILLA, CHINCHILLA_TIED], make_runs(CHINCHILLA, 5, noise=0), n_draws=0
    )

    assert table["status"].tolist()[-1] == "underdetermined" or table["hold_out_error"].isna().all()


@pytest.mark.long
def test_the_law_is_chosen_among_all_that_the_table_has_columns_for():
    runs = make_runs(KAPLAN, 24, noise=0.002)

    choice = choose_law(runs, n_draws=2)

    assert choice.fit.law is KAPLAN
    candidates = choice.table["candidate"].tolist()
    assert {"chinchilla", "farseer", "kaplan, least squares"} <= set(candidates)
    assert "learning_rate" not in candidates
    assert choice.table["hold_out_error"].is_monotonic_increasing
    assert "kaplan" in choice.sentence


def test_intervals_hold_the_choice_of_the_law():
    runs = make_runs(CHINCHILLA, 30, noise=0.02)
    far = {"params": 1e12, "tokens": 1e13}

    choice = choose_law(runs, ["chinchilla", CHINCHILLA_TIED], n_draws=8)

    assert len(choice.fits) > 1
    at = choice.predict(far)
    each = [fit.predict(far) for fit in choice.fits.values()]
    assert at.y == each[0].y
    assert at.low == min(p.low for p in each) < max(p.high for p in each) == at.high


def test_a_misfit_is_left_out_where_another_law_is_none(monkeypatch):
    runs = make_runs(CHINCHILLA, 40, noise=0.003)
    monkeypatch.setattr(model_selection, "_as_good", lambda errors, best: True)

    choice = choose_law(runs, [KAPLAN, CHINCHILLA], n_draws=10, objective=SQUARES)
    alone = choose_law(runs, [KAPLAN], n_draws=10, objective=SQUARES)

    assert list(choice.fits) == ["chinchilla"]
    assert choice.sentence.endswith("left out as misfits: kaplan")
    assert choice.table.set_index("candidate")["kept"].to_dict() == {
        "chinchilla": True,
        "kaplan": False,
    }
    assert alone.fit.verdict.is_misfit  # nothing better is there, and its verdict says so


def of_chinchilla(n_params, n_tokens, **columns):
    """Return a grid of runs that Chinchilla's law made, with further columns."""
    N, D = (
        v.ravel()
        for v in np.meshgrid(np.geomspace(1e7, 1e9, n_params), np.geomspace(1e9, 3e10, n_tokens))
    )
    noise = np.exp(0.004 * np.random.default_rng(0).standard_normal(len(N)))
    loss = CHINCHILLA.evaluate(
        {"params": N, "tokens": D}, np.asarray(list(CHINCHILLA.example.values()))
    )
    return {"params": N, "tokens": D, "loss": loss * noise} | columns


def test_laws_are_ranked_on_the_same_held_out_runs():
    # By its own size, routed would be held to other runs, and more of them.
    n = 30
    runs = of_chinchilla(6, 5, experts=np.random.default_rng(0).choice([1.0, 4.0, 16.0, 64.0], n))
    runs["x"] = 6 * runs["params"] * runs["tokens"]
    largest = np.argsort(runs["x"])[-8:]

    _, fits = compare_laws(["routed", "chinchilla", "power"], runs, n_draws=0)
    choice = choose_law(runs, ["power", "routed", "chinchilla"], n_draws=0)

    assert all(set(f.hold_out.rows) == set(largest) for f in fits.values())
    assert all(set(f.hold_out.rows) == set(largest) for f in choice.fits.values())
    errors = choice.table.set_index("candidate")["hold_out_error"]
    for name, fit in fits.items():
        mine = np.abs(fit.hold_out.predicted - fit.hold_out.observed).mean()
        assert errors[name] == pytest.approx(mine)


def test_a_law_of_many_parameters_is_held_to_no_fewer_runs_than_others():
    # Alone, chinchilla is held to three runs, and farseer to two.
    runs = of_chinchilla(4, 3)

    _, fits = compare_laws(["farseer", "chinchilla"], runs, n_draws=0)
    choice = choose_law(runs, ["farseer", "chinchilla"], n_draws=0)

    assert [fit.hold_out.rows.tolist() for fit in fits.values()] == [[10, 11], [10, 11]]
    assert "predicts the 2 largest runs best" in choice.sentence


@pytest.mark.parametrize(("n", "n_held"), [(10, 2), (11, 3)])
def test_a_law_that_the_other_runs_do_not_determine_has_no_rank(n, n_held):
    """Of 11 runs farseer can predict one, on which errors have no spread."""
    runs = {name: values[:n] for name, values in of_chinchilla(4, 3).items()}

    table, fits = compare_laws(["farseer", "chinchilla"], runs, n_draws=0)
    choice = choose_law(runs, ["farseer", "chinchilla"], n_draws=0)

    assert table["law"].tolist() == ["chinchilla", "farseer"]
    assert np.isnan(table["hold_out_error"].iloc[1])
    assert (
        "not possible: the smaller runs alone are underdetermined" in fits["farseer"].hold_out_note
    )
    assert len(fits["chinchilla"].hold_out.rows) == n_held  # farseer does not lower their number
    assert choice.sentence.endswith(
        "without a rank, for they cannot predict these runs: farseer, farseer, least squares"
    )


def test_where_no_law_predicts_two_runs_they_are_ranked_on_one():
    runs = make_runs(CHINCHILLA, 7, noise=0.001)

    alone = choose_law(runs, ["chinchilla"], n_draws=0)
    table, fits = compare_laws(["chinchilla", CHINCHILLA_TIED], runs, n_draws=0)

    assert len(alone.fit.hold_out.rows) == 1
    assert len(fits["chinchilla_tied"].hold_out.rows) == 2
    assert table["hold_out_error"].isna().tolist() == [False, True]


def test_runs_to_hold_out_may_be_given():
    runs = of_chinchilla(4, 4)
    mask = np.arange(16) >= 13

    choice = choose_law(runs, ["chinchilla", "kaplan"], n_draws=0, hold_out=mask)

    assert choice.fit.hold_out.rows.tolist() == [13, 14, 15]


def test_no_law_for_a_table_says_which_columns_it_has():
    with pytest.raises(ValueError, match="none explains loss by the columns width, loss"):
        choose_law({"width": [1, 2, 3], "loss": [3, 2, 1]})

    with pytest.raises(ValueError, match="no candidate predicts held-out runs"):
        choose_law(make_runs(CHINCHILLA, 4, noise=0), ["chinchilla"])


def test_laws_of_one_name_are_told_apart():
    runs = make_runs(CHINCHILLA, 30, noise=0.001)
    laws = ["chinchilla", CHINCHILLA.within({"alpha": (0.5, 0.5), "beta": (0.1, 0.5)})]
    bounded = "chinchilla, alpha = 0.5, beta within 0.1..0.5"

    table, fits = compare_laws(laws, runs, n_draws=0)
    choice = choose_law(runs, laws, n_draws=0)

    assert table["law"].tolist() == list(fits) == ["chinchilla", bounded]
    assert table["n_free"].tolist() == [5, 4]
    assert set(choice.table["candidate"]) == {
        name + more for name in ("chinchilla", bounded) for more in ("", ", least squares")
    }
    curves = {"x": runs["params"], "y": 0.9 / (1 + (1e9 / runs["params"]))}
    levels = [Saturating(), Saturating(floor=None)]
    table, _ = compare_laws(levels, curves, outcome="y", n_draws=0)
    assert set(table["law"]) == {f"saturating, {law.equation}" for law in levels}


def test_fixed_levels_and_hidden_digits_tell_laws_apart():
    x = np.geomspace(1e6, 1e9, 12)
    curves = {"x": x, "y": 0.9 / (1 + 1e8 / x)}
    near = [CHINCHILLA.within({"alpha": (a, a)}) for a in (0.3400001, 0.34000012)]

    levels, _ = compare_laws(
        [Saturating(), Saturating(fixed_ceiling=0.9)], curves, outcome="y", n_draws=0
    )
    digits, fits = compare_laws(near, make_runs(CHINCHILLA, 20, noise=0.001), n_draws=0)

    assert set(levels["law"]) == {
        f"saturating, y = {top} / (1 + (x0/x)^k)" for top in ("ceiling", "0.9")
    }
    name = f"chinchilla, alpha = 0.34, {CHINCHILLA.equation}"
    assert set(digits["law"]) == {name, f"{name} (2)"}
    assert fits[f"{name} (2)"].law.bounds["alpha"] == (0.34000012, 0.34000012)


@pytest.mark.parametrize("bounds", [{}, {"alpha": (0.3, 0.3)}])
def test_a_law_given_twice_is_refused(bounds):
    twice = [CHINCHILLA.within(bounds), CHINCHILLA.within(bounds)]
    said = ", alpha = 0.3" if bounds else ""

    with pytest.raises(ValueError, match=f"^laws: chinchilla{said} is given twice; leave one out$"):
        compare_laws(twice, make_runs(CHINCHILLA, 20, noise=0.001), n_draws=0)


@pytest.mark.parametrize("ranked", ["choose", "compare"])
def test_noisy_held_out_runs_count_as_little_as_in_the_fit(ranked):
    """Of ten held-out runs six have eighty times the noise of the others, and hide the true law."""
    runs = make_runs(CHINCHILLA, 40, noise=0)
    largest = np.argsort(runs["params"] * runs["tokens"])[-10:]
    sigma = np.full(40, 0.001)
    sigma[largest[4:]] = 0.08
    laws, options = ["chinchilla", CHINCHILLA.within({"alpha": (0.3, 0.3)})], {"objective": SQUARES}
    options |= {"sigma": sigma, "n_draws": 0}
    first = []
    for seed in range(8):
        noise = np.exp(sigma * np.random.default_rng(seed).standard_normal(40))
        noisy = runs | {"loss": runs["loss"] * noise}
        if ranked == "choose":
            first.append(choose_law(noisy, laws, **options).table["candidate"][0])
        else:
            first.append(compare_laws(laws, noisy, **options)[0]["law"][0])

    assert first.count("chinchilla") >= 7


def test_errors_with_sigma_are_weighted_means():
    runs = make_runs(CHINCHILLA, 40, noise=0.01)
    sigma = np.linspace(0.005, 0.02, 40)

    table, fits = compare_laws([CHINCHILLA], runs, sigma=sigma, objective=SQUARES, n_draws=0)

    held = fits["chinchilla"].hold_out
    errors, inverse = held.log_errors, 1 / sigma[held.rows]
    row = table.loc[0]
    assert row["hold_out_error"] == pytest.approx(np.average(np.abs(errors), weights=inverse))
    assert row["hold_out_rms"] ** 2 == pytest.approx(np.average(errors**2, weights=inverse**2))
    assert row["hold_out_bias"] == pytest.approx(np.average(errors, weights=inverse**2))
