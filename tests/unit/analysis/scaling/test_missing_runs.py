"""A sweep with sizes that failed: the curves of the others say what they expect of them, and how they would move."""

import numpy as np
import pytest

import analysis
from analysis.fitting.fit_law import fit_law
from analysis.report.curve_tables import missing
from analysis.scaling.series_curves import CURVE_SPECS


@pytest.fixture(scope="module")
def partial(synthetic, tmp_path_factory):
    """Ten of twelve dense trials: one seed of a size is gone, and one size whole."""
    folder = tmp_path_factory.mktemp("partial")
    trials = synthetic.make_sweep(architectures=("dense",), seeds=(0, 1))
    for trial in trials:
        d_model, seed = trial.spec.model["d_model"], trial.spec.seed
        if d_model == 192 or (d_model == 64 and seed == 1):
            synthetic.start(folder, trial)
        else:
            synthetic.write_done(folder, trial)
    runs = analysis.load(folder)
    return runs, analysis.fit_sweep(runs, n_draws=60, specs=CURVE_SPECS[2:3]), trials


def test_excluded_trials_keep_their_sizes(partial):
    runs, _, trials = partial
    sizes = {t.spec.trial_id: t.spec.accounting["total_params"] for t in trials}

    assert len(runs.excluded) == 3
    assert [sizes[t] for t in runs.excluded["trial_id"]] == runs.excluded["total_params"].tolist()


def test_a_size_with_a_seed_left_is_there_and_one_without_is_missing(partial):
    _, fits, trials = partial

    (found,) = fits.missing

    assert found.x == max(t.spec.accounting["total_params"] for t in trials)
    assert found.at == found.x
    assert found.reason.startswith("not finished")
    true = 1 + 6 * (found.x / 1e5) ** -0.5
    assert found.expected[1] < true < found.expected[2]
    assert found.could_be[0] < found.answer < found.could_be[1]


def test_the_scenario_is_the_fit_with_that_run(partial):
    _, fits, _ = partial
    (found,) = fits.missing
    fit = fits.curves[0].fit

    ends = [
        fit_law(
            fit.law,
            {"x": np.append(fit.x, found.x), "loss": np.append(fit.y, value)},
            objective=fit.objective_of,
            n_draws=0,
            hold_out=False,
        )
        .predict(found.at)
        .y[0]
        for value in found.expected[1:]
    ]

    assert found.could_be == pytest.approx(sorted(ends), rel=1e-4)


def test_the_table_names_the_trial(partial):
    runs, fits, _ = partial

    (row,) = missing(fits).rows

    assert row[0] == "dense"
    assert row[1] in set(runs.excluded["trial_id"])


def test_a_whole_sweep_misses_nothing(fits):
    assert fits.missing == []
