"""Signal and noise of benchmarks, on scores whose truth is known."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from analysis.report.benchmark_table import benchmarks
from analysis.scaling.benchmark_noise import benchmark_noise

NONE = pd.DataFrame({name: [] for name in ("sweep", "trial_id", "metric", "step", "value")})


def sweep(scores, *, stderr=0.02, chance=None, name="eval/piqa/acc"):
    """Return a table with scores (configurations, seeds)."""
    rows = [
        {"sweep": "s", "trial_id": f"{i}-{j}", "configuration": i, name: score}
        for i, seeds in enumerate(scores)
        for j, score in enumerate(seeds)
    ]
    table = pd.DataFrame(rows).assign(**{f"{name}_stderr": stderr})
    return table if chance is None else table.assign(**{"eval/piqa/chance": chance})


def test_seeds_give_the_noise():
    (one,) = benchmark_noise(sweep([[0.5, 0.52, 0.54], [0.6, 0.6, 0.66]]), NONE)

    assert (one.task, one.measure, one.n_configurations, one.n_seeds) == ("piqa", "acc", 2, 3)
    assert (one.noise_from, one.freedom) == ("seeds", 4)
    # Squares 8e-4 and 2.4e-3 of two degrees of freedom each.
    assert one.noise == pytest.approx(math.sqrt(3.2e-3 / 4))
    assert one.signal == pytest.approx(0.1)
    assert one.signal_to_noise == pytest.approx(0.1 / (one.noise / math.sqrt(3)))


def test_last_checkpoints_give_it_where_no_seed_is_repeated():
    steps = [10, 50, 80, 90, 100]
    values = [0.1, 0.3, 0.50, 0.54, 0.52]
    history = pd.DataFrame(
        {"sweep": "s", "trial_id": "0-0", "metric": "eval/piqa/acc", "step": steps, "value": values}
    )
    (one,) = benchmark_noise(sweep([[0.52], [0.6]]), history)

    assert (one.noise_from, one.freedom) == ("checkpoints", 2)
    assert one.noise == pytest.approx(0.02)


def test_rows_give_it_where_nothing_is_repeated():
    (one,) = benchmark_noise(sweep([[0.5], [0.6]], stderr=0.04), NONE)

    assert (one.noise_from, one.noise) == ("rows", pytest.approx(0.04))
    assert one.smallest_difference == pytest.approx((1.959964 + 0.841621) * 0.04 * math.sqrt(2))


@pytest.mark.parametrize("n_seeds", [3, 5])
def test_a_test_finds_the_smallest_difference_in_80_of_100_sweeps(n_seeds, stats):
    generator, n_configurations, found, differences = np.random.default_rng(0), 6, 0, []
    n_sweeps = 2_000
    noise = 0.03 * generator.standard_normal((n_sweeps, n_configurations, n_seeds))
    freedom = n_configurations * (n_seeds - 1)
    sd = np.sqrt(noise.var(axis=2, ddof=1).mean(axis=1))
    # The difference that the approximation gives for the true noise, between two configurations.
    quantiles = stats.t.ppf([0.975, 0.8], freedom).sum()
    difference = quantiles * 0.03 * math.sqrt(2 / n_seeds)
    gap = noise[:, 1].mean(axis=1) - noise[:, 0].mean(axis=1) + difference
    found = np.abs(gap) / (sd * math.sqrt(2 / n_seeds)) > stats.t.ppf(0.975, freedom)
    for scores in noise[:5]:
        (one,) = benchmark_noise(sweep(scores), NONE)
        differences.append(one.smallest_difference / one.noise * 0.03)

    assert differences == pytest.approx([difference] * 5)
    assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_chance():
    scores = [[0.27, 0.25], [0.34, 0.36], [0.2, 0.2]]
    (one,) = benchmark_noise(sweep(scores, chance=0.25, stderr=0.04), NONE)
    assert (one.chance, one.n_above_chance, one.at_chance) == (0.25, 1, False)

    (one,) = benchmark_noise(sweep(scores, chance=0.3, stderr=0.04), NONE)
    assert (one.n_above_chance, one.at_chance) == (0, True)

    (one,) = benchmark_noise(sweep(scores, chance=0.25, name="eval/piqa/nll"), NONE)
    assert (one.chance, one.n_above_chance, one.at_chance) == (None, None, False)


def test_the_table_says_what_cannot_be_told(monkeypatch):
    @dataclasses.dataclass
    class Runs:
        table: pd.DataFrame

    monkeypatch.setattr("analysis.report.benchmark_table.histories", lambda runs, metrics: NONE)
    chance = benchmarks(Runs(sweep([[0.25, 0.26], [0.24, 0.27]], chance=0.25)))
    same = benchmarks(Runs(sweep([[0.45, 0.46], [0.44, 0.47]], chance=0.25)))
    unlike = benchmarks(Runs(sweep([[0.45, 0.46], [0.25, 0.25]], chance=0.25)))

    assert [table.rows[0][-1] for table in (chance, same, unlike)] == [
        "all at chance",
        "no difference seen",
        "1 at chance",
    ]
    assert unlike.records()[0]["highest"] == pytest.approx(0.455)
    assert not benchmarks(Runs(sweep([[1.0]], name="valid/loss"))).rows
