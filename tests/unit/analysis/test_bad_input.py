"""Each mistake in a table is one sentence with the row and what to do, for every fit."""

import re

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.fitting.fit_law import fit_law
from analysis.fitting.residual_groups import check_residual_groups
from analysis.fitting.synthetic import make_runs
from analysis.fitting.two_stage import fit_chain
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.loss_to_accuracy import Sigmoid
from analysis.scaling.envelope import fit_envelope
from analysis.scaling.isoflop import fit_isoflop


def runs(n=24):
    table = make_runs(CHINCHILLA, n, noise=0.004)
    table["flops"] = 6 * table["params"] * table["tokens"]
    table["accuracy"] = 0.25 + 0.6 / (1 + np.exp(2 * (table["loss"] - 2.6)))
    table["run"] = np.arange(n) // 3
    return table


def law(table, **options):
    return fit_law(CHINCHILLA, table, n_draws=0, hold_out=False, **options)


def chain(table, **options):
    return fit_chain(CHINCHILLA, Sigmoid(chance=0.25), table, n_draws=0, hold_out=False, **options)


def isoflop(table, **options):
    return fit_isoflop(table, n_draws=0, **options)


def envelope(table, **options):
    return fit_envelope(
        {**table, "params": np.repeat(table["params"][::3], 3)}, n_draws=0, **options
    )


every_fit = pytest.mark.parametrize("fit", [law, chain, isoflop, envelope])


@every_fit
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -2.5])
def test_a_loss_that_is_none_is_named_by_its_row(fit, value):
    table = runs()
    table["loss"][5] = value

    with pytest.raises(
        ValueError, match=rf"loss, row 5: must be positive and finite, got {value}.*;.* out"
    ):
        fit(table)


@every_fit
def test_a_missing_column_is_named_and_a_near_one_proposed(fit):
    table = pd.DataFrame(runs()).rename(columns={"loss": "losss"})
    table = {k: v.to_numpy() for k, v in table.items()}

    with pytest.raises(ValueError, match="loss: no such column; did you mean losss"):
        fit(table)


@every_fit
def test_a_missing_column_says_what_helps_in_a_fit(fit):
    table = {k: v for k, v in runs().items() if k != "loss"}

    with pytest.raises(ValueError, match="give loss, too, or name .* outcome='…' for the outcome"):
        fit(table)


def test_the_end_of_a_longer_name_is_proposed_too():
    with pytest.raises(ValueError, match="acc: no such column; did you mean accuracy"):
        fit_law(CHINCHILLA, {**runs(), "accuracy": runs()["loss"]}, outcome="acc")


OURS = {"params": "active_params", "tokens": "training_tokens", "flops": "training_flops"}


def of_a_sweep():
    """The runs under the names of a sweep's columns, among others, total ones fourfold."""
    table = {OURS.get(k, k): v for k, v in runs().items()}
    others = {f"params_{i}": table["active_params"] for i in range(20)}
    return {**others, **table, "total_params": [4 * v for v in table["active_params"]]}


def families(table, **options):
    return analysis.fit_families(
        {**table, "architecture": ["a"] * 24}, n_draws=0, hold_out=False, **options
    )


def choice(table, **options):
    return analysis.choose_law(table, ["chinchilla"], n_draws=0, **options).fit


def partial(table, **options):
    return analysis.fit_partial(CHINCHILLA, table, n_draws=0, **options)


@pytest.mark.parametrize("fit", [law, chain, isoflop, families, choice, partial])
def test_every_fit_takes_the_sizes_of_a_sweep_from_the_same_columns(fit):
    note = "columns: params is column active_params, tokens is column training_tokens"
    ours, named = fit(of_a_sweep()).summary(), fit(runs()).summary()

    assert note in ours
    assert "columns:" not in named
    assert coefficients(ours) == coefficients(named)
    stored = fit(of_a_sweep(), columns={"params": "total_params"}).summary()
    assert "params is column total_params" in stored
    assert coefficients(stored) != coefficients(ours)


def coefficients(summary):
    """Lines with the numbers of a fit."""
    return re.findall(r"^(?:A |params |isoFLOP).*", summary, re.MULTILINE)


def test_a_table_that_was_written_and_loaded_gives_the_same_fit(tmp_path):
    pd.DataFrame(of_a_sweep()).to_csv(tmp_path / "runs.csv", index=False)

    loaded = analysis.load(tmp_path / "runs.csv")

    assert any("laws take active_params as params" in note for note in loaded.notes)
    assert law(loaded).parameters == pytest.approx(law(of_a_sweep()).parameters, rel=1e-9)


def test_an_error_lists_few_of_many_columns():
    with pytest.raises(ValueError, match="x: no such column; there are params_0, .* 19 more; give"):
        fit_law("power", of_a_sweep())


@pytest.mark.parametrize("columns", [{}, {"tokens": "tokns"}])
@pytest.mark.parametrize("fit", [law, chain, isoflop, families, choice, partial])
def test_a_missing_input_is_named_in_what_helps(fit, columns):
    table = {k: v for k, v in runs().items() if k != "tokens"}

    with pytest.raises(ValueError, match="no such column; .*: columns={'tokens': '…'}") as raised:
        fit(table, columns=columns)

    assert str(raised.value).startswith(f"{columns.get('tokens', 'tokens')}: ")


@pytest.mark.parametrize("fit", [law, chain, isoflop])
def test_text_among_numbers_is_named(fit):
    table = runs()
    table["tokens"] = [f"{v:g}" for v in table["tokens"]]
    table["tokens"][3] = "12B"

    with pytest.raises(ValueError, match="tokens, row 3: not a number, got '12B'"):
        fit(table)


@pytest.mark.parametrize("fit", [law, chain, isoflop])
def test_mixed_units_are_refused_unless_accepted(fit):
    table = runs()
    table["params"][[2, 9]] /= 1e6

    with pytest.raises(ValueError, match=r"params: mixed units, rows 2 and 9 .*accept=\{'units'\}"):
        fit(table)
    fit(table, accept={"units", "flops"})


def test_per_cent_among_shares_is_refused():
    table = runs()
    table["accuracy"][4] *= 100

    with pytest.raises(ValueError, match=r"accuracy: mixed units, row 4 .*per cent among shares"):
        chain(table)


def test_flops_that_cannot_be_are_refused_where_they_are_used_and_said_where_they_are_not():
    table = runs()
    table["flops"] = table["flops"] / 1e12

    with pytest.raises(ValueError, match=r"flops: all 24 rows .*units=\{'flops': 1e\+12\}"):
        isoflop(table)
    assert "flops: all 24 rows" in law(table).sentence
    assert law(runs()).warnings == ()


def test_one_run_is_no_fit_and_no_number():
    one = {k: v[:1] for k, v in runs().items()}

    assert "1 distinct run for 5 parameters" in law(one).sentence
    assert not chain(one).usable
    assert "needs at least" in chain(one).sentence
    found = isoflop(one)
    assert all(not line.usable for line in found.lines.values())
    assert "1 distinct sizes" in found.lines["params"].sentence
    with pytest.raises(ValueError, match="no run has two checkpoints"):
        fit_envelope(one)


def test_duplicate_runs_are_named_and_still_counted():
    table = {k: np.append(v, v[[2, 7]]) for k, v in runs().items()}

    for fit in (law(table), isoflop(table).parametric):
        assert fit.n_points == 26
        assert "duplicate runs: rows 24 and 25 repeat an earlier row" in fit.sentence
        assert "row 24 is row 2 again" in fit.sentence
    assert any("duplicate" in w for w in chain(table).warnings)
    assert not law(table, clusters=[str(i) for i in range(24)] + ["2", "7"]).warnings


def test_a_diverged_run_is_named_with_the_smaller_run_that_beats_it():
    table = runs()
    largest = int(np.argmax(table["params"] * table["tokens"]))
    table["loss"][largest] = 9.5

    fit = law(table)

    assert f"row {largest}: 9.5 is far above" in fit.sentence
    assert "if it diverged" in fit.sentence
    assert any(
        f"row {largest}:" in w for w in chain(table, link_rows=np.arange(24) != largest).warnings
    )


def test_rows_keep_their_numbers_under_a_mask():
    table = runs()
    table["loss"][0] = np.nan
    largest = int(np.argmax(table["params"] * table["tokens"]))
    table["loss"][largest] = 9.5
    rows = np.arange(24) != 0

    found = chain(table, law_rows=rows, link_rows=rows)

    assert any(w.startswith(f"row {largest}: 9.5") for w in found.warnings)


def test_two_architectures_under_one_name_are_seen_at_equal_sizes():
    table = runs()
    both = {k: np.append(v, v) for k, v in table.items()}
    both["loss"][24:] *= 0.9

    fit = law(both)

    assert "have equal sizes, and loss is" in fit.sentence
    assert "two architectures or two recipes under one name" in fit.sentence


def test_seeds_of_one_configuration_are_of_one_kind_however_far_apart():
    table = runs()
    both = {k: np.append(v, v) for k, v in table.items()}
    both["loss"][24:] *= 0.9

    named = law(both, clusters=np.tile(np.arange(24), 2))
    of_two = law(both, clusters=np.arange(48))

    assert "two recipes" not in named.sentence
    assert "have equal sizes, and mean loss is" in of_two.sentence
    stages = [chain(both, clusters=np.tile(np.arange(24), 2)), chain(both, clusters=np.arange(48))]
    assert ["two recipes" in " ".join(found.warnings) for found in stages] == [False, True]


def of_budgets(table, **options):
    budgets = [f"budget {i // 6}" for i in range(24)] * 2
    return isoflop(table, budgets=budgets, accept={"flops"}, **options).parametric


@pytest.mark.parametrize("fit", [law, chain, of_budgets, partial])
def test_a_table_of_memscale_says_which_runs_are_seeds(fit):
    both = {k: np.append(v, v) for k, v in runs().items()}
    both["loss"][24:] *= 0.9
    both["seed"] = np.repeat([0, 1], 24)
    names = np.asarray([f"dense-{i:08x}" for i in range(24)])

    seeds = fit({**both, "configuration": np.tile(names, 2)})
    two_each = fit({**both, "configuration": np.append(names, np.char.add(names, "0"))})

    assert "two recipes" not in words(seeds)
    assert "have equal sizes, and mean loss is" in words(two_each)


def test_a_table_of_memscale_that_is_there_twice_has_duplicates():
    both = {k: np.append(v, v) for k, v in runs().items()}
    names = [f"dense-{i:08x}" for i in range(24)]

    assert "duplicate runs" in law({**both, "configuration": names * 2, "seed": [0] * 48}).sentence


def words(found):
    """Warnings of a fit, also of one inside."""
    return " ".join(getattr(found, "fit", found).warnings)


def test_two_architectures_under_one_name_are_seen_in_the_residuals():
    dense = make_runs(CHINCHILLA, 30, noise=0.003)
    other = make_runs(CHINCHILLA, 10, noise=0.003, inputs_seed=1, seed=5)
    both = {k: np.append(dense[k], other[k] * (0.97 if k == "loss" else 1)) for k in dense}

    assert "fall into two groups 3" in law(both).sentence
    assert not law(dense).warnings


def test_several_named_architectures_are_not_one_law():
    table = pd.DataFrame(runs()).assign(architecture=["dense"] * 20 + ["moe"] * 4)

    assert "2 architectures (dense, moe; row 20 is the first of moe)" in law(table).sentence
    assert not law(table[:20]).warnings


def test_normal_and_even_residuals_are_one_group():
    generator = np.random.default_rng(0)
    for n in (20, 40, 200):
        for draw in (generator.normal, generator.uniform):
            assert sum(check_residual_groups(draw(size=n)) is not None for _ in range(200)) <= 1


def test_a_run_of_two_sizes_is_two_runs():
    table = runs()

    with pytest.raises(ValueError, match=r"run, row 1: 0 has params .* two runs under one name"):
        fit_envelope(table, n_draws=0)


@pytest.mark.parametrize("embeddings", [lambda n: 3.2e6 + 0 * n, lambda n: 5e3 * n**0.45])
def test_flops_with_embeddings_beside_parameters_without_are_said(embeddings):
    """Kaplan's smallest models have a hundred times as many parameters in their embeddings as beside them."""
    params = np.repeat(np.geomspace(1e4, 1e8, 5), 2)
    tokens = np.tile([1e8, 1e9], 5)
    runs = {
        "params": params,
        "tokens": tokens,
        "flops": 6 * (params + embeddings(params)) * tokens,
        "loss": 1.8 + 30 / params**0.25 + 50 / tokens**0.3,
    }
    assert (runs["flops"] / params / tokens).max() > 100

    loaded = analysis.load(runs)

    assert len(loaded.table) == 10
    assert any("(embeddings); Kaplan et al. 2020" in note for note in loaded.notes)
    for factor, rows in ((1e3, slice(None)), (1e3, [0]), (1e3, [0, 1, 2, 3])):
        wrong = 6 * params * tokens
        wrong[rows] *= factor
        with pytest.raises(ValueError, match="flops: "):
            analysis.load(runs | {"flops": wrong})


def test_a_sweep_is_fitted_to_what_load_returns():
    with pytest.raises(ValueError, match=r"runs: .* got DataFrame; give analysis\.load\(table\)"):
        analysis.fit_sweep(pd.DataFrame(runs()))
