"""Sweeps over sizes and learning rates: named, told apart, the best said and marked at edges."""

import math
from dataclasses import replace

import pandas as pd
import pytest

import analysis
from analysis.report.configuration_tables import best, configurations
from analysis.report.curve_tables import curves
from analysis.scaling.series_curves import varied_in
from orchestrator.records.json_files import write_json

RATES = (1e-3, 3e-3, 1e-2)


@pytest.fixture(scope="module")
def tuned(synthetic, tmp_path_factory):
    """Dense models of six sizes at three learning rates: 3e-3 is best, 1e-2 at the largest."""
    trials = []
    for d_model in (32, 48, 64, 96, 128, 192):
        for lr in RATES:
            trial = synthetic.make_trial("dense", d_model, 0, noise=0.0)
            wanted = 1e-2 if d_model == 192 else 3e-3
            loss = trial.metrics["valid/loss"] + (0.0 if lr == wanted else 0.2)
            spec = replace(trial.spec, train={**trial.spec.train, "lr": lr})
            trials.append(replace(trial, spec=spec, metrics={**trial.metrics, "valid/loss": loss}))
    return analysis.load(synthetic.write_runs(tmp_path_factory.mktemp("tuned"), trials))


def test_learning_rates_are_never_pooled_in_silence(tuned):
    fits = analysis.fit_sweep(tuned, n_draws=0)

    assert fits.varied == ("train.lr",)
    assert {c.series for c in fits.curves} == {"dense (lr=1e-2)", "dense (lr=1e-3)", "dense (lr=3e-3)"}  # fmt: skip
    rows = [row[:3] for row in configurations(fits).rows]
    assert len(set(rows)) == len(rows) == 18
    assert "dense (lr=1e-3)" in {row[0] for row in curves(fits).rows}


def test_best_of_every_size_is_said_and_marked_at_the_edge(tuned):
    fits = analysis.fit_sweep(tuned, n_draws=0)

    assert [b.label for b in fits.best] == ["lr=3e-3"] * 5 + ["lr=1e-2"]
    assert [b.at_edge for b in fits.best] == [()] * 5 + [("lr=1e-2 is the largest of 3",)]
    assert all(b.n_tried == 3 for b in fits.best)
    shown = best(fits)
    assert shown.rows[-1][-1] == "lr=1e-2 is the largest of 3"
    assert any("edge" in note for note in shown.notes)


def test_lengths_are_never_chosen_between_though_each_has_its_own_rates(synthetic, tmp_path):
    """Rates 5e-3 and 2e-2 for 1e5 tokens, 1e-2 for 4e5, which is better since it is longer."""
    trials = []
    for lr, tokens, gain in ((5e-3, 100_000, 0.0), (2e-2, 100_000, 0.1), (1e-2, 400_000, 1.0)):
        trial = synthetic.make_trial("dense", 32, 0, noise=0.0)
        spec = replace(trial.spec, train={**trial.spec.train, "lr": lr, "tokens": tokens})
        loss = trial.metrics["valid/loss"] - gain
        trials.append(replace(trial, spec=spec, metrics={**trial.metrics, "valid/loss": loss}))
    runs = analysis.load(synthetic.write_runs(tmp_path, trials))

    fits = analysis.fit_sweep(runs, n_draws=0)

    (found,) = fits.best
    assert (found.size, found.label, found.n_tried) == ("32w tokens=1e5", "lr=2e-2", 2)
    assert found.at_edge == ("lr=2e-2 is the largest of 2",)
    assert fits.tuned == {"dense": {"train.lr": 2}}
    assert "dense (lr=1e-2 · tokens=4e5)" in fits.series.values()


def test_a_rate_that_diverged_was_tried_and_bounds_the_optimum(synthetic, tmp_path):
    for lr, loss in ((1e-3, 2.5), (3e-3, 2.0), (1e-2, None)):
        for seed in (0, 1):
            trial = synthetic.make_trial("dense", 32, seed, **{"valid/loss": loss or 2.5})
            spec = replace(trial.spec, train={**trial.spec.train, "lr": lr})
            if loss is not None:
                synthetic.write_done(tmp_path, replace(trial, spec=spec))
                continue
            _, attempt = synthetic.start(tmp_path, replace(trial, spec=spec))
            end = {"outcome": "diverged", "reason": "loss is nan", "final": True}
            write_json(attempt.path / "end.json", end)
    runs = analysis.load(tmp_path)

    fits = analysis.fit_sweep(runs, n_draws=0)

    (found,) = fits.best
    assert (found.label, found.n_tried, found.diverged) == ("lr=3e-3", 3, ("lr=1e-2",))
    assert found.at_edge == ()
    assert fits.tuned == {"dense": {"train.lr": 3}}
    assert dict(zip(best(fits).columns, best(fits).rows[0], strict=True))["diverged"] == "lr=1e-2"
    contents = analysis.report_contents(runs, fits)
    assert "; diverged: lr=1e-2." in contents.answer.sentences[0]
    assert not any("further out" in text for text in contents.advice)


def test_a_seed_that_diverged_is_no_further_setting(synthetic, tmp_path):
    for lr in (1e-3, 3e-3):
        for seed in (0, 1):
            lost = (lr, seed) == (3e-3, 1)
            trial = synthetic.make_trial(
                "dense", 32, seed, **({"valid/loss": math.nan} if lost else {})
            )
            spec = replace(trial.spec, train={**trial.spec.train, "lr": lr})
            synthetic.write_done(tmp_path, replace(trial, spec=spec))
    runs = analysis.load(tmp_path)

    (found,) = analysis.fit_sweep(runs, n_draws=0).best

    assert len(runs.diverged) == 1
    assert (found.n_tried, found.diverged) == (2, ())


def test_a_curve_by_less_goes_through_the_best_and_says_so(tuned):
    fits = analysis.fit_sweep(tuned, n_draws=0, by=())

    assert {c.series for c in fits.curves} == {"dense"}
    loss = fits.curve("dense", outcome="loss", x="total_params")
    assert len(loss.x) == 6
    lowest = tuned.table.groupby("total_params")["loss"].min()
    assert sorted(loss.y) == pytest.approx(sorted(lowest))
    assert any("best train.lr of every size" in note for note in curves(fits).notes)


def test_memory_size_at_a_fixed_base_is_a_curve(synthetic, tmp_path):
    trials = []
    for d_model in (32, 64):
        for n_keys in (8, 16, 32, 64):
            trial = synthetic.make_trial("memory_plus", d_model, 0)
            accounting = dict(trial.spec.accounting)
            accounting["total_params"] += n_keys**2 * d_model
            spec = replace(
                trial.spec, model={**trial.spec.model, "n_keys": n_keys}, accounting=accounting
            )
            trials.append(replace(trial, spec=spec))
    runs = analysis.load(synthetic.write_runs(tmp_path, trials))

    by_base = analysis.fit_sweep(runs, n_draws=0)
    by_table = analysis.fit_sweep(runs, n_draws=0, by=("model.n_keys",))

    assert varied_in(runs.table) == ("model.n_keys",)
    assert {c.series for c in by_base.curves} == {"memory_plus (preset=32w)", "memory_plus (preset=64w)"}  # fmt: skip
    assert {len(c.fit.x) for c in by_base.curves} == {4}
    assert not by_base.pooled
    assert not by_base.best, "a larger table is no better setting, it is a larger model"
    assert {len(c.fit.x) for c in by_table.curves} == {2}


def test_what_match_solved_for_is_no_setting(synthetic, tmp_path):
    """Tokens that make FLOPs equal differ with every size, and belong to one curve."""
    trials = []
    for d_model in (32, 64, 128):
        for match in (None, {"training_flops": "dense", "solve": "tokens"}):
            trial = synthetic.make_trial("memoryformer", d_model, 0)
            tokens = 1_000_000 if match is None else 3_000_000 + d_model
            spec = replace(trial.spec, train={**trial.spec.train, "tokens": tokens}, match=match)
            trials.append(replace(trial, spec=spec))
    trials += [synthetic.make_trial("dense", d_model, 0) for d_model in (32, 64, 128)]
    runs = analysis.load(synthetic.write_runs(tmp_path, trials))

    fits = analysis.fit_sweep(runs, n_draws=0)

    assert fits.varied == ("match.training_flops",)
    series = {"dense", "memoryformer", "memoryformer (training_flops=dense)"}
    assert {c.series for c in fits.curves} == series
    assert {len(c.fit.x) for c in fits.curves} == {3}
    assert not fits.best


def test_a_table_may_lack_a_length_for_some_and_hold_lists(tuned):
    rows = [
        {
            "architecture": name,
            "params": params,
            "tokens": tokens,
            "train.lr": lr,
            "loss": 3 - 0.1 * (params > 2e6) + lr,
            "layers": [1, 2],
            **({"train.tokens": tokens} if name == "dense" else {}),
        }
        for name in ("dense", "moe")
        for params in (1e6, 3e6)
        for lr in (1e-3, 3e-3)
        for tokens in (1e8, 2e8)
    ]

    summary = analysis.fit_sweep(analysis.load(pd.DataFrame(rows)))

    assert summary.tuned == {"dense": {"train.lr": 2}, "moe": {"train.lr": 2}}


def test_a_setting_that_no_run_has_is_refused_by_name(tuned):
    with pytest.raises(ValueError, match=r"by: no setting 'model.n_keyz' .* varies train.lr"):
        analysis.fit_sweep(tuned, n_draws=0, by=("model.n_keyz",))
