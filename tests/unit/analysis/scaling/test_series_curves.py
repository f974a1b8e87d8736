"""Curves of recall: when a ceiling of 1 is known, when it is fitted, and when it is anybody's guess."""

import numpy as np
import pandas as pd
import pytest

from analysis.scaling.series_curves import CurveSpec, fit_series, name_series

X0, K = 1e5, 2.5
SPEC = CurveSpec(outcome="factual_recall", x="total_params", law="saturating")


def fitted(sizes, *, ceiling, noise=0.01, recall=None):
    """Return the curve through three seeds of each size."""
    generator = np.random.default_rng(0)
    rows = []
    for size in sizes:
        mean = ceiling / (1 + (X0 / size) ** K) if recall is None else recall(size)
        rows += [
            {
                "configuration": f"dense {size}",
                "architecture": "dense",
                "total_params": size,
                "factual_recall": float(np.clip(one, 0, 1)),
            }
            for one in mean + noise * generator.standard_normal(3)
        ]
    table = pd.DataFrame(rows)
    series = dict.fromkeys(table["configuration"], "dense")
    (curve,) = fit_series(table, series, [SPEC], n_draws=200, seed=0)
    return curve.fit


def test_a_ceiling_of_one_that_runs_come_near_is_known():
    fit = fitted(X0 * np.geomspace(0.2, 3, 6), ceiling=1.0)

    assert fit.parameters["ceiling"] == 1.0
    assert fit.intervals["ceiling"][0] > 0.8
    assert fit.status == "converged"
    assert fit.verdict.status == "adequate", fit.verdict.sentence
    low, high = fit.intervals["x0"]
    assert low < X0 < high


@pytest.mark.parametrize("ceiling", [0.7, 0.96])
def test_a_lower_ceiling_is_fitted(ceiling):
    fit = fitted(X0 * np.geomspace(0.2, 12, 9), ceiling=ceiling)

    assert fit.parameters["ceiling"] == pytest.approx(ceiling, abs=0.02)


def test_the_start_of_a_curve_does_not_show_its_ceiling():
    fit = fitted(X0 * np.geomspace(0.05, 0.5, 9), ceiling=1.0, noise=0.001)

    assert fit.intervals["ceiling"][1] == 1.0
    assert fit.verdict.status == "underdetermined"


def test_a_ceiling_of_one_far_above_the_runs_is_at_its_bound():
    sizes = X0 * np.geomspace(0.1, 0.8, 9)
    # Steeper than any curve with a ceiling: a power of the size.
    fit = fitted(sizes, ceiling=1.0, noise=0.0, recall=lambda size: 0.8 * (size / sizes[-1]) ** 3)

    assert fit.parameters["ceiling"] == 1.0
    assert fit.status == "hit_bound"
    assert "do not show where accuracy levels off" in fit.sentence


def test_what_is_to_be_done_meanwhile_is_done_once_also_beside_no_curve():
    done = []

    fit_series(pd.DataFrame(), {}, [SPEC], meanwhile=lambda: done.append("once"))

    assert done == ["once"]


def test_what_match_solved_for_names_no_series():
    """Another sweep in the table varies the tokens that a match solved for here."""
    rows = [
        {"architecture": "dense", "total_params": size, "train.tokens": tokens}
        for size in (1e5, 1e6)
        for tokens in (1e6, 2e6)
    ]
    solved = {"match.training_flops": "dense", "match.solve": "tokens"}
    rows += [
        {"architecture": "memory", "total_params": size, "train.tokens": tokens, **solved}
        for size, tokens in ((1e5, 912_384), (1e6, 945_152))
    ]
    rows.append({"architecture": "memory", "total_params": 1e5, "train.tokens": 1e6})
    rows.append({"architecture": "memory", "total_params": 1e5, "train.tokens": 2e6})
    table = pd.DataFrame(rows)
    table = table.assign(configuration=table.index.astype(str), preset=None)

    series = name_series(table)

    assert series["4"] == series["5"] == "memory (training_flops=dense)"
    assert {series["6"], series["7"]} == {"memory (tokens=1e6)", "memory (tokens=2e6)"}
    by_tokens = name_series(table, by=["train.tokens"])
    assert by_tokens["4"] == "memory (tokens=912384)"
