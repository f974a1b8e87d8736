from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.laws.power import PowerLaw
from analysis.loading.load import load
from analysis.report.comparison_table import comparison
from analysis.scaling.configuration_summary import summarise
from analysis.scaling.equal_compute import effective_size, equal_flops
from analysis.scaling.series_curves import name_series
from analysis.scaling.sweep_summary import fit_sweep


def table_of(rows):
    """Rows (architecture, total_params, training_flops, loss, seed)."""
    columns = ["architecture", "total_params", "training_flops", "loss", "seed"]
    return pd.DataFrame(rows, columns=columns)


def curve(n):
    return 1.5 + 300 * n**-0.4


def two_families(seeds=(0, 1, 2), memory_as_good_as=2.0, flops_off=1.0, noise=1e-4):
    """Memory models do what a dense model of `memory_as_good_as` times the FLOP-matched dense size does."""
    rows = []
    generator = np.random.default_rng(0)
    for n in np.geomspace(1e5, 3e6, 6):
        for seed in seeds:
            jitter = noise * generator.standard_normal(2)
            rows.append(("dense", n, 6e6 * n, curve(n) + jitter[0], seed))
            rows.append(
                (
                    "memory_plus",
                    3 * n,
                    6e6 * n * flops_off,
                    curve(memory_as_good_as * n) + jitter[1],
                    seed,
                )
            )
    return load(table_of(rows))


def test_the_multiplier_is_the_one_that_was_put_in():
    fits = fit_sweep(two_families(), n_draws=200)

    assert len(fits.pairs) == 6
    for pair in fits.pairs:
        m = pair.effective_size
        assert m.over_baseline_params == pytest.approx(2.0, rel=0.01)
        assert m.equivalent_params / pair.summary.total_params == pytest.approx(2 / 3, rel=0.01)
        assert m.low <= m.equivalent_params * 1.001
        assert m.high >= m.equivalent_params * 0.999
        assert pair.verdict == "better"
        assert pair.difference.value < 0


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("sizes", [6, 10])
def test_of_a_known_curve_the_interval_holds_the_true_size_as_often_as_it_says(seeds, sizes):
    """With six sizes the curve's own percentiles are the smallest and the largest resample."""
    generator = np.random.default_rng(1)
    x = np.geomspace(1e5, 3e6, sizes)
    losses = curve(x) + 1e-6 * generator.standard_normal(sizes)
    fit = fit_law(PowerLaw(), {"x": x, "loss": losses}, n_draws=200, hold_out=False)
    size, n_tables = 5e5, 1000
    partner = SimpleNamespace(series="dense", total_params=size)
    values = curve(size) + 0.01 * generator.standard_normal((n_tables, seeds))

    found = [effective_size(partner, v, fit) for v in values]

    # Where the mean lies below the floor of the curve, the interval has no upper end.
    high = [np.inf if e.high is None else e.high for e in found]
    held = sum(e.low <= size <= end for e, end in zip(found, high, strict=True))
    assert 0.93 < held / n_tables < 0.97


def test_one_seed_gives_a_size_without_an_interval():
    fits = fit_sweep(two_families(seeds=(0,), noise=1e-5), n_draws=50)

    size = fits.pairs[0].effective_size
    assert size.over_baseline_params == pytest.approx(2.0, rel=0.01)
    assert (size.low, size.high) == (None, None)
    table = comparison(fits)
    assert "[" not in str(table.records()[0]["size_needed"])
    assert any("one seed of the model gives no interval" in note for note in table.notes)


def test_configurations_without_a_partner_are_told_apart(synthetic, tmp_path):
    """Two tables on one preset, neither of which took the FLOPs of dense."""
    trials = [synthetic.make_trial("dense", 64, 0)]
    for n_keys in (16, 32):
        trial = synthetic.make_trial("memory_plus", 64, 0)
        counts = {**trial.spec.accounting, "training_flops": 1e12 * n_keys}
        model = {**trial.spec.model, "n_keys": n_keys}
        trials.append(replace(trial, spec=replace(trial.spec, model=model, accounting=counts)))

    fits = fit_sweep(load(synthetic.write_runs(tmp_path, trials)), n_draws=0)

    assert [note.partition(":")[0] for note in fits.unpaired] == [
        "memory_plus (n_keys=16) 64w",
        "memory_plus (n_keys=32) 64w",
    ]


def test_a_size_outside_the_dense_runs_is_flagged():
    fits = fit_sweep(two_families(), n_draws=50)

    flags = [pair.effective_size.extrapolated for pair in fits.pairs]

    assert flags == [False] * 4 + [True] * 2, (
        "twice the last but one size is just above the largest"
    )
    assert "extrapolation" in fits.pairs[-1].effective_size.sentence


def test_a_value_below_the_dense_floor_has_no_equivalent_size():
    runs = two_families()
    runs.table.loc[runs.table["architecture"] == "memory_plus", "loss"] -= 1.4

    pair = fit_sweep(runs, n_draws=50).pairs[-1]

    assert pair.effective_size.equivalent_params is None
    assert "no size on the dense curve reaches" in pair.effective_size.sentence
    assert (pair.effective_size.low, pair.effective_size.high) == (None, None)


def test_without_draws_a_size_has_no_interval():
    x = np.geomspace(1e5, 3e6, 6)
    fit = fit_law(PowerLaw(), {"x": x, "loss": curve(x)}, n_draws=0)
    partner = SimpleNamespace(series="dense", total_params=5e5)

    found = effective_size(partner, curve(5e5) + np.asarray([-0.01, 0.0, 0.01]), fit)

    assert found.equivalent_params == pytest.approx(5e5, rel=0.01)
    assert (found.low, found.high) == (None, None)


def test_without_a_dense_curve_the_difference_stays_and_the_multiplier_says_why():
    runs = two_families()
    few = runs.table[
        runs.table["total_params"].isin(sorted(runs.table["total_params"].unique())[:3])
    ]

    fits = fit_sweep(load(few), n_draws=50)

    assert fits.pairs[0].difference.low is not None
    assert fits.pairs[0].effective_size.equivalent_params is None
    assert "underdetermined" in fits.pairs[0].effective_size.sentence


def test_a_dense_curve_that_is_a_misfit_gives_no_size():
    runs = two_families(noise=1e-3)
    dense = runs.table["architecture"] == "dense"
    step = np.where(runs.table["total_params"] > 1e6, 0.3, 0.0)
    runs.table.loc[dense, "loss"] += step[dense]

    fits = fit_sweep(runs, n_draws=50)

    assert {pair.effective_size.equivalent_params for pair in fits.pairs} == {None}
    assert "the dense curve is a misfit" in fits.pairs[0].effective_size.sentence


def test_unequal_flops_are_not_compared():
    fits = fit_sweep(two_families(flops_off=1.3), n_draws=0)

    assert not fits.pairs
    assert len(fits.unpaired) == 6
    assert "differs by" in fits.unpaired[0]


@pytest.mark.parametrize(
    ("counterpart", "advice"),
    [
        (None, "use match: {training_flops: …}"),
        ("dense", "its match is not trained yet, or excluded"),
        ("pythia", "its match is pythia"),
    ],
)
def test_the_advice_fits_what_the_sweep_file_matched(counterpart, advice):
    table = two_families(flops_off=1.3).table.drop(columns="configuration")
    mine = table["architecture"] == "memory_plus"
    table["match.training_flops"] = pd.Series(counterpart, index=table.index, dtype=object).where(
        mine, None
    )

    unpaired = fit_sweep(load(table), n_draws=0).unpaired

    assert len(unpaired) == 6
    assert all(note.endswith(f"in training FLOPs; {advice}") for note in unpaired)


@pytest.mark.parametrize("who", ["dense", "memory_plus"])
def test_a_match_of_something_else_is_no_reason_for_another_match(who):
    table = two_families(flops_off=1.3).table.drop(columns="configuration")
    other = {"dense": "memory_plus", "memory_plus": "dense"}[who]
    table["match.step_time"] = pd.Series(other, index=table.index, dtype=object).where(
        table["architecture"] == who, None
    )
    table["match.solve"] = pd.Series("d_ff", index=table.index, dtype=object).where(
        table["architecture"] == who, None
    )

    unpaired = fit_sweep(load(table), n_draws=0).unpaired

    assert len(unpaired) == 6
    assert all(
        note.endswith("; match held step_time equal, not training_flops") for note in unpaired
    )


def test_a_partner_within_two_per_cent_counts():
    fits = fit_sweep(two_families(flops_off=1.015), n_draws=0)

    assert len(fits.pairs) == 6
    assert fits.pairs[0].flops_ratio == pytest.approx(1.015)


def test_one_seed_gives_a_difference_without_an_interval():
    pair = fit_sweep(two_families(seeds=(0,)), n_draws=50).pairs[0]

    assert pair.difference.low is None
    assert pair.verdict == "no interval"


def test_different_data_are_neither_one_curve_nor_compared():
    table = two_families().table.copy()
    table["data.n_people"] = np.where(table["architecture"] == "dense", 1000, 2000)

    fits = fit_sweep(load(table.drop(columns="configuration")), n_draws=0)

    assert set(fits.series.values()) == {"dense (n_people=1000)", "memory_plus (n_people=2000)"}
    assert not fits.pairs
    assert "on the same data" in fits.unpaired[0]


def test_only_one_architecture_has_nothing_to_compare():
    table = two_families().table
    for name, sentence in (("dense", "only dense runs"), ("memory_plus", "only memory_plus runs")):
        runs = load(table[table["architecture"] == name])
        fits = fit_sweep(runs, n_draws=0)
        assert not fits.pairs
        assert fits.unpaired[0].startswith(sentence)


def test_summaries_have_params_by_group_and_intervals(runs):
    summaries = summarise(runs.table, series=name_series(runs.table))

    assert len(summaries) == 12
    first = summaries[0]
    assert first.seeds == (0, 1, 2)
    assert set(first.params) == {"embedding", "attention", "feed_forward", "memory_values"}
    assert sum(first.params.values()) == first.total_params
    assert set(first.outcomes) == {"factual_recall", "answer_nll", "bits_per_param", "loss"}
    assert all(e.low is not None and e.n == 3 for e in first.outcomes.values())


def test_ties_in_flops_prefer_the_same_settings(runs):
    table = runs.table.copy()
    other = table[table["architecture"] == "dense"].assign(
        **{"train.lr": 0.03, "factual_recall": 0.0}
    )
    other["configuration"] = other["configuration"] + "x"
    both = pd.concat([other, table], ignore_index=True)
    series = name_series(both)

    pairs, _ = equal_flops(both, summarise(both, series=series), {})

    assert len(pairs) == 24
    assert not any(pair.baseline.configuration.endswith("x") for pair in pairs)
