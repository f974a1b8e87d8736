import dataclasses
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.report.architectures import _shares, _verdict_notes, architecture_sections
from analysis.scaling import architecture_laws, comparison, missing_runs
from analysis.scaling.comparison import compare_architectures
from analysis.scaling.equal_cost import equal_cost
from orchestrator.planning.pricing import recorded
from orchestrator.planning.runtime_prior import Measurement
from orchestrator.records.sweep_dir import SweepDir


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(comparison, "FEWEST_DRAWS", 12)
    monkeypatch.setattr(comparison, "DRAWS", 12)


def compared(table, **options):
    runs = analysis.load(table)
    fits = analysis.fit_sweep(runs, n_draws=5, specs=())  # the laws say it, no curve
    return architecture_sections(compare_architectures(runs, fits, **options))


@pytest.fixture(scope="module")
def alike(two_architectures):
    """Two names for one law, with noise of their own."""
    dense = two_architectures(noise=0.003, seeds=2, seed=1).query("architecture == 'dense'")
    other = two_architectures(noise=0.003, seeds=2, seed=2).query("architecture == 'dense'")
    return analysis.load(_joined(dense, other.assign(architecture="twin")))


def _joined(*frames):
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def sections(alike):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "DRAWS", 60)
        said = []
        fits = analysis.fit_sweep(alike, n_draws=5, specs=())
        found = compare_architectures(alike, fits, progress=said.append)
    return architecture_sections(found), said


def ends(cell):
    low, high = re.search(r"\[([^,]+), ([^\]]+)\]", cell).groups()
    return float(low), np.inf if high == "∞" else float(high)


def test_architectures_that_are_alike_have_bands_that_hold_one(sections):
    """The truth is 1 everywhere: the same law, the same costs."""
    rows = sections[0].multipliers.table.to_frame()
    inside = rows[rows["rests on"] == "within the runs of both"]

    assert set(rows["at equal"]) == {
        "training FLOPs",
        "measured training seconds",
        "bytes read per decoded token",
        "stored bytes",
        "active parameters",
    }
    assert len(inside) >= 8
    for column in ("× that dense needs", "× the size that dense needs"):
        assert all(low <= 1 <= high for low, high in map(ends, inside[column]))


def at_equal_tokens(slowed):
    """Sizes at three lengths; seconds follow FLOPs but at the largest dense size, by that factor."""
    N, D = (v.ravel() for v in np.meshgrid(1e7 * 1.5 ** np.arange(6), [1e9, 4e9, 1.6e10]))
    generator = np.random.default_rng(0)
    frames = []
    for name, worth, seed in ((n, w, s) for n, w in (("dense", 1), ("memory", 2)) for s in (0, 1)):
        noise = np.exp(0.003 * generator.standard_normal(len(N)))
        loss = noise * (1.8 + 400 * (worth * N) ** -0.35 + 2000 * D**-0.37)
        seconds = N * D / 1e13
        if name == "dense":
            seconds = seconds * np.where(np.arange(len(N)) % 6 == 5, slowed, 1.0)
        columns = {"active_params": N, "total_params": N, "training_tokens": D, "loss": loss}
        costs = {"training_flops": 6 * N * D, "train_seconds": seconds}
        frames.append(pd.DataFrame({"architecture": name, "seed": seed, **columns, **costs}))
    return _joined(*frames)


@pytest.mark.parametrize("slowed", [1.0, 0.62])
def test_multipliers_at_equal_seconds_need_seconds_that_rise_as_differences_do(slowed):
    """A cost within 50 % of all runs goes through those that do not: it is smooth enough."""
    runs = analysis.load(at_equal_tokens(slowed))
    fits = analysis.fit_sweep(runs, n_draws=5, specs=())

    found = compare_architectures(runs, fits)

    compared_means = {d.measure.name for d in equal_cost(runs.table, reference="dense").differences}
    of_laws = {c.measure.name for c in found.multipliers}
    budgets = {f.measure.name for f in found.frontiers}
    rises = slowed == 1.0
    assert ["seconds" in names for names in (compared_means, of_laws, budgets)] == [rises] * 3
    told = [m for m in found.unavailable["multipliers"] if "seconds" in m]
    assert ["does not rise with its training FLOPs" in why for why in told] == [True] * (not rises)
    if rises:
        (at_seconds,) = (c for c in found.multipliers if c.measure.name == "seconds")
        firm = ~at_seconds.extrapolated
        assert np.isfinite(at_seconds.low[firm]).all(), "with an interval, as at equal FLOPs"
        assert at_seconds.verdict == found.multipliers[0].verdict


def test_the_frontier_has_a_row_per_budget_and_says_who_wins(sections):
    found, _ = sections
    rows = found.frontier.table.to_frame()

    assert list(found.frontier.figures) == ["frontier_flops"]
    assert rows["budget"].str.endswith(" FLOPs").any()
    assert rows["budget"].str.endswith(" s").any()
    assert set(rows["best"]) <= {"dense", "twin"}
    assert rows["lowest in so many draws"].str.contains("%").all()
    assert rows["rests on"].iloc[2].endswith("times outside its runs")


def test_the_frontier_table_says_in_how_many_draws_none_has_a_best_size():
    won = {name: SimpleNamespace(share=[share]) for name, share in (("dense", 0.2), ("moe", 0.7))}

    assert (
        _shares(SimpleNamespace(allocations=won, best=["moe"]), 0) == "moe 70%, dense 20%, none 10%"
    )


def test_progress_is_said_and_the_laws_are_shown(sections):
    found, said = sections

    assert said[0] == "laws of 2 architectures"
    assert "multipliers at equal training FLOPs" in said
    assert "frontier over measured training seconds" in said
    assert found.laws.to_frame()["fit"].tolist() == ["dense", "twin"]


def test_without_a_sweep_there_is_nothing_to_choose_from(sections):
    (sentence,) = sections[0].next_runs.missing

    assert not sections[0].next_runs.figures
    assert "the trials of the sweep are not known" in sentence
    assert "--candidates more.yaml" in sentence


def test_one_architecture_has_no_multiplier_but_a_frontier(two_architectures):
    found = compared(two_architectures(noise=0.002).query("architecture == 'dense'"))

    assert not found.multipliers.figures
    assert found.multipliers.missing == (
        "Multipliers compare architectures, and only dense has a law here; train another at six sizes or so, and where tokens vary at two lengths each.",
    )
    assert found.frontier.figures
    table = found.frontier.table
    assert set(table.to_frame()["architecture"]) == {"dense"}
    assert not {"best", "lowest in so many draws"} & set(table.columns)
    assert all("best" not in values for values in table.values)


def test_numbers_without_a_band_are_said_to_have_none(two_architectures, monkeypatch, sections):
    """As of sweeps with too few runs to resample."""
    monkeypatch.setattr(comparison, "FEWEST_DRAWS", 0)
    monkeypatch.setattr(comparison, "DRAWS", 0)

    found = compared(two_architectures(noise=0.003))

    for section in (found.multipliers, found.frontier):
        words = " ".join(section.table.notes)
        assert "no band: too few runs for an interval, so nothing is claimed" in words
        assert "[…]" not in words
    assert "lowest in so many draws" not in found.frontier.table.columns
    assert all(len(row) == len(found.frontier.table.columns) for row in found.frontier.table.rows)
    for section in (sections[0].multipliers, sections[0].frontier):
        assert "[…] is the 95% band of resampled runs" in " ".join(section.table.notes)


def test_a_measure_that_the_table_lacks_is_named(two_architectures):
    found = compared(
        two_architectures(noise=0.002).drop(columns=["train_seconds", "bytes_read_per_token"])
    )

    assert list(found.multipliers.missing) == [
        "Not at equal measured training seconds: dense: the table has no column train_seconds.",
        "Not at equal bytes read per decoded token: dense: the table has no column bytes_read_per_token.",
    ]
    assert found.multipliers.figures


def test_along_a_ladder_there_are_multipliers_of_compute_and_no_sizes(two_architectures):
    table = two_architectures(noise=0.002)
    found = compared(table[np.isclose(table.tokens / table.params, 20)])

    assert list(found.multipliers.figures) == ["multipliers"]
    assert "tokens grow in step with size" in found.frontier.missing[0]
    assert "× the size that dense needs" not in found.multipliers.table.columns


@pytest.mark.usefixtures("no_pictures")
def test_too_few_runs_are_one_sentence_with_what_to_add(two_architectures, tmp_path):
    (tmp_path / "next_runs.svg").write_text("of last week")
    table = two_architectures(noise=0.002).groupby("architecture").head(4)
    runs = analysis.load(table)

    page = analysis.write_report(runs, analysis.fit_sweep(runs, n_draws=5, specs=()), tmp_path)

    text = page.read_text()
    assert "Not for these runs: families: no architecture has a usable law" in text
    assert "a fit needs at least" in text
    assert "multipliers.svg" not in {p.name for p in tmp_path.iterdir()}
    assert not (tmp_path / "next_runs.svg").exists(), "an earlier picture does not stay"


@pytest.fixture(scope="module")
def unfinished(synthetic, tmp_path_factory):
    """A sweep of which the largest memory has not run."""
    folder = tmp_path_factory.mktemp("unfinished")
    trials = synthetic.make_sweep(seeds=(0, 1))
    waiting = [
        t for t in trials if t.spec.architecture == "memory_plus" and t.spec.preset == "192w"
    ]
    synthetic.write_runs(folder, [t for t in trials if t not in waiting])
    for trial in waiting:
        SweepDir(folder / "synthetic").trial(trial.spec.trial_id).create(trial.spec)
    return folder, {t.spec.trial_id for t in waiting}


def test_recorded_trials_are_those_on_disk_with_what_is_left_of_them(unfinished):
    folder, waiting = unfinished
    took = Measurement(architecture="dense", device="cpu", flops_per_token=6e5, s_per_token=1e-5)

    trials = recorded(SweepDir(folder / "synthetic"), [took])

    assert len(trials) == 24
    assert {t.spec.trial_id for t in trials if t.to_train} == waiting
    assert {t.remaining for t in trials if not t.to_train} == {0.0}
    sources = {t.spec.architecture: t.runtime.source for t in trials}
    assert sources == {"dense": "measured", "memory_plus": "scaled"}


def test_a_trial_that_cannot_be_read_does_not_stop_the_report(unfinished):
    folder, waiting = unfinished
    sweep = SweepDir(folder / "synthetic")
    spec = sweep.trial(min(waiting)).path / "spec.json"
    before = spec.read_text()
    spec.write_text("{")
    try:
        assert min(waiting) not in {t.spec.trial_id for t in recorded(sweep, [])}
    finally:
        spec.write_text(before)


def test_the_next_runs_are_what_is_left_and_further_seeds(unfinished):
    folder, _ = unfinished
    runs = analysis.load(folder, sweep="synthetic")
    trials = recorded(SweepDir(folder / "synthetic"), [])

    fits = analysis.fit_sweep(runs, n_draws=5, specs=())
    found = architecture_sections(compare_architectures(runs, fits, trials=trials))

    table = found.next_runs.table
    names = table.to_frame()["candidate"].tolist()
    assert list(found.next_runs.figures) == ["next_runs"]
    assert any(name.startswith("memory_plus 192w") and "seed" not in name for name in names)
    assert any(name.endswith(", seed 2") for name in names)
    assert " [" in table.notes[0]


@pytest.mark.usefixtures("no_pictures")
def test_every_fit_of_a_report_is_made_once(synthetic, tmp_path, monkeypatch):
    """The page and the printed tables share laws, multipliers and missing sizes."""
    for trial in synthetic.make_sweep(seeds=(0,)):
        lost = trial.spec.preset == "96w"
        (synthetic.start if lost else synthetic.write_done)(tmp_path, trial)
    runs = analysis.load(tmp_path)
    made = Counter()

    def counted(module, name):
        fit = getattr(module, name)

        def wrapper(*args, **options):
            made[module.__name__, name] += 1
            return fit(*args, **options)

        monkeypatch.setattr(module, name, wrapper)

    counted(missing_runs, "fit_law")
    counted(architecture_laws, "fit_law")
    counted(comparison, "multipliers")
    fits = analysis.fit_sweep(runs, n_draws=20)
    analysis.write_report(runs, fits, tmp_path / "out")
    analysis.tables(runs, fits)

    assert len(fits.missing) == 12
    assert {name.rpartition(".")[2]: n for (name, _), n in made.items()} == {
        "missing_runs": 12,
        "architecture_laws": 2,
        "comparison": 3,
    }


@pytest.mark.parametrize("status", list(VerdictStatus))
def test_numbers_of_laws_that_are_not_credible_are_said_once(status):
    told = status in (VerdictStatus.MISFIT, VerdictStatus.UNDERDETERMINED)
    curves = [SimpleNamespace(verdict=FitVerdict(status=status, sentence="dense: bent"))] * 3

    assert _verdict_notes(curves) == [f"not to be relied on: {status}: dense: bent"] * told


def test_settings_that_are_not_chosen_between_and_that_laws_pool_are_named(synthetic, tmp_path):
    trials = synthetic.make_sweep(seeds=(0, 1))
    memories = [t for t in trials if t.spec.architecture == "memory_plus"]
    for i, name in enumerate(("dense", "moe")):
        for trial in memories:
            model = {**trial.spec.model, "d_ff": trial.spec.model["d_ff"] + i}
            match = {"training_flops": name, "solve": "d_ff"}
            spec = dataclasses.replace(trial.spec, model=model, match=match)
            trials = [t for t in trials if t is not trial] + [dataclasses.replace(trial, spec=spec)]
    runs = analysis.load(synthetic.write_runs(tmp_path, trials))

    found = compare_architectures(runs, analysis.fit_sweep(runs, n_draws=5))

    told = "One law for memory_plus with training_flops=dense and training_flops=moe together; curves have them apart."
    for part in ("multipliers", "frontier"):
        assert [line for line in found.unavailable[part] if "One law" in line] == [told]
