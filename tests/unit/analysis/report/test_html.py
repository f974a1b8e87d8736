import importlib
import inspect
import itertools
import json
import pkgutil
import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import analysis
import analysis.report
from analysis.fitting.bootstrap import MeanEstimate
from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARED_ERROR, Objective
from analysis.fitting.synthetic import make_inputs, make_runs
from analysis.formatting import Table, count, number
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.power import POWER, PowerLaw
from analysis.laws.vocabulary import VOCABULARY
from analysis.loading.load import Runs
from analysis.plotting.canvas import image, save
from analysis.plotting.sweep_figure import sweep_figure
from analysis.report.cells import estimate
from analysis.report.comparison_table import comparison
from analysis.report.configuration_tables import configurations, parameter_groups, trials
from analysis.report.contents import report_contents
from analysis.report.curve_tables import curves
from analysis.report.figure_files import (
    content_figures,
    draw_beside,
    figure_paths,
    sweep_figures,
)
from analysis.report.fit_tables import laws_table
from analysis.report.html import render
from analysis.report.table_files import csv_text
from analysis.report.tables import excluded, tables
from analysis.report.usage_table import usage
from analysis.scaling.comparison import compare_architectures


class Page(HTMLParser):
    """Ids, headings, links outward and whether every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.headings, self.outward, self.rows = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        self.outward += [
            v for k, v in attrs if k in {"src", "href"} and re.match(r"(https?:)?//", v or "")
        ]
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data.strip())


@pytest.fixture(scope="module")
def page(runs, fits, tmp_path_factory):
    return analysis.write_report(runs, fits, tmp_path_factory.mktemp("report"))


def test_the_page_is_whole_and_fetches_nothing(page):
    text = page.read_text()
    parsed = Page()
    parsed.feed(text)

    assert parsed.open == []
    assert parsed.outward == []
    assert "<script" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert parsed.headings == [
        "Question",
        "Answer: told apart",
        "Differences at equal cost",
        "What to run next",
        "Architectures",
        "At equal training FLOPs, size by size",
        "Fitted curves",
        "Multipliers between architectures",
        "Frontier: what to train for a budget",
        "Next runs",
        "All trials",
        "Excluded",
        "Environment and how to reproduce",
    ]
    assert parsed.rows > 36 + 12 + 24
    assert "data:image/svg+xml;base64," in text


def test_every_figure_lies_beside_the_page_in_three_formats(page):
    figures = figure_paths(page.parent)

    stems = ["accuracy", "fits_answer_nll", "fits_factual_recall", "fits_loss"]
    compared = ["multipliers", "effective_size", "frontier_flops"]
    assert list(dict.fromkeys(f.stem for f in figures)) == [*stems, *compared]
    assert [f.suffix for f in figures] == [".svg", ".png", ".pdf"] * 7
    beginnings = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(f.read_bytes().startswith(beginnings[f.suffix]) for f in figures)


def test_the_first_screen_has_question_answer_and_one_figure(page):
    first = page.read_text().partition('<section id="differences">')[0]

    assert "Question" in first
    assert "At equal training FLOPs memory_plus is better than dense: factual recall +0." in first
    assert first.count("<img") == 1


def test_a_series_looks_the_same_in_all_figures(synthetic, tmp_path):
    """Laws go through the best settings, so an architecture looks as these do."""
    trials = []
    for trial in synthetic.make_sweep(seeds=(0,)):
        for lr, worse in ((3e-3, 0.2), (1e-3, 0.1), (1e-2, 0.0)):
            spec = replace(trial.spec, train={**trial.spec.train, "lr": lr})
            metrics = {**trial.metrics, "valid/loss": trial.metrics["valid/loss"] + worse}
            trials.append(replace(trial, spec=spec, metrics=metrics))
    runs = analysis.load(synthetic.write_runs(tmp_path, trials))
    fits = analysis.fit_sweep(runs, n_draws=5)
    contents = report_contents(runs, fits)

    makers = {**sweep_figures(runs, fits), **content_figures(contents)}
    looks = {}
    for stem in ("accuracy", "fits_loss", "multipliers", "frontier_flops"):
        (legend,) = makers[stem]().legends
        for line in legend.get_lines():
            name, look = line.get_label(), (line.get_color(), line.get_marker())
            looks.setdefault(name, {})[stem] = look
    assert {len(set(by_figure.values())) for by_figure in looks.values()} == {1}
    for name in ("dense", "memory_plus"):
        best = looks[f"{name} (lr=1e-2)"]
        assert looks[name]["frontier_flops"] == best["accuracy"] == best["fits_loss"]
    assert looks["memory_plus"]["multipliers"] == looks["memory_plus"]["frontier_flops"]


def test_tables_lie_beside_the_page_with_numbers(runs, fits, page):
    folder = page.parent / "tables"

    rows = pd.read_csv(folder / "architectures.csv")
    means = runs.table.groupby("configuration")["factual_recall"].mean()
    assert sorted(rows["factual_recall"]) == pytest.approx(sorted(means))
    assert rows["total_params"].dtype.kind in "if"
    read = json.loads((page.parent / "report.json").read_text())["tables"]
    assert [t["name"] for t in read][:2] == ["differences_at_equal_cost", "architectures"]
    alpha = [row.get("alpha") for t in read if t["name"] == "fitted_curves" for row in t["rows"]]
    assert [c.fit.parameters.get("alpha") for c in fits.curves] == alpha
    assert {p.name for p in folder.glob("*.tex")} == {
        "architectures.tex",
        "differences_at_equal_cost.tex",
    }


@pytest.mark.usefixtures("no_pictures")
def test_a_later_report_leaves_no_figure_or_table_of_an_earlier_one(page, runs, tmp_path):
    shutil.copytree(page.parent, tmp_path, dirs_exist_ok=True)
    few = replace(runs, table=runs.table[:1])

    analysis.write_report(few, analysis.fit_sweep(few, n_draws=5), tmp_path)

    assert {f.stem for f in figure_paths(tmp_path)} == {"accuracy"}
    assert not list(tmp_path.glob("fits_*"))
    assert not (tmp_path / "tables" / "multipliers.csv").exists()


@pytest.mark.usefixtures("no_pictures")
def test_laws_stand_on_the_page_with_figure_status_and_health(runs, fits, tmp_path):
    table = make_runs(CHINCHILLA, 12, noise=0.01)
    laws = {
        "dense law": fit_law(CHINCHILLA, table, n_draws=20, hold_out=False),
        "too few": fit_law(CHINCHILLA, {k: v[:3] for k, v in table.items()}),
    }
    few = replace(runs, table=runs.table[:1])

    text = analysis.write_report(
        few, analysis.fit_sweep(few, n_draws=5), tmp_path, laws=laws
    ).read_text()

    parsed = Page()
    parsed.feed(text)
    assert "Laws" in parsed.headings
    assert "chinchilla: A " in text
    assert "3 distinct runs for 5 parameters" in text
    assert "condition number" in text
    assert (tmp_path / "law_1.pdf").exists()
    assert not (tmp_path / "law_2.svg").exists()


def test_the_hold_out_of_negative_outcomes_is_in_their_units():
    inputs = make_inputs(VOCABULARY, 40)
    truth = np.asarray([VOCABULARY.example[name] for name in VOCABULARY.parameter_names])
    runs = inputs | {"loss": VOCABULARY.evaluate(inputs, truth) - 6}
    runs["loss"] += 0.002 * np.random.default_rng(0).standard_normal(40)
    fit = fit_law(VOCABULARY, runs, n_draws=0)

    table = laws_table({"law": fit})

    (row,) = table.rows
    shown = row[table.columns.index("hold-out")]
    assert shown.endswith(" absolute")
    error = np.abs(fit.hold_out.predicted - fit.hold_out.observed).mean()
    assert float(shown.removesuffix(" absolute")) == pytest.approx(error, rel=0.05)


@pytest.mark.usefixtures("no_pictures")
def test_use_of_memories_has_a_section_a_figure_and_a_table(synthetic, tmp_path):
    trials = synthetic.make_sweep(
        sizes=(32, 64), seeds=(0,), architectures=("dense", "memory_plus", "moe")
    )
    runs = analysis.load(synthetic.write_reporting(tmp_path / "runs", trials, moe=("moe",)))
    page = analysis.write_report(runs, analysis.fit_sweep(runs, n_draws=20), tmp_path / "out")

    parsed = Page()
    parsed.feed(page.read_text())
    assert parsed.open == []
    assert "Use of memories and experts" in parsed.headings
    assert page.read_text().count("data:image/") == 2
    assert '<th class="n">ever used (share)</th>' in page.read_text()
    names = [path.name for path in figure_paths(tmp_path / "out")]
    assert names == [f"{n}.{k}" for n in ("accuracy", "usage") for k in ("svg", "png", "pdf")]


def test_what_a_configuration_is_made_of_and_costs_stands_side_by_side(synthetic, tmp_path):
    trial = synthetic.make_trial("memory_plus", 64, 0)
    accounting = {
        **trial.spec.accounting,
        "params_memory_keys": 1000,
        "bytes_read_per_token": 2_500_000,
        "bytes_read_per_token_batch64": 60_000,
        "paper_block_flops": 19.3e9,
    }
    trial = replace(trial, spec=replace(trial.spec, accounting=accounting))
    runs = analysis.load(synthetic.write_runs(tmp_path, [trial]))

    fits = analysis.fit_sweep(runs, n_draws=20)
    row = configurations(fits).to_frame().iloc[0]

    assert row["active params"] == "123 k"
    assert row["memory params"] == "165 k"
    assert row["bytes per token"] == "2.50 M"
    assert row["bytes per token, batch 64"] == "60.0 k"
    assert row["training FLOPs"] == "8.14e+11"
    assert row["block FLOPs, paper"] == "1.93e+10"
    assert row["train s"] == "12"
    assert trials(runs, fits).to_frame()["memory params"].tolist() == ["165 k"]


def test_the_table_of_trials_says_which_is_which_and_can_be_loaded(synthetic, tmp_path):
    made = []
    for architecture in ("dense", "memory_plus"):
        for lr in (1e-3, 3e-3):
            trial = synthetic.make_trial(architecture, 32, 0)
            made.append(
                replace(trial, spec=replace(trial.spec, train={**trial.spec.train, "lr": lr}))
            )
    runs = analysis.load(synthetic.write_runs(tmp_path / "runs", made))
    file = tmp_path / "trials.csv"

    file.write_text(csv_text(trials(runs, analysis.fit_sweep(runs, n_draws=0))))

    loaded = analysis.load(file)
    named = ["trial_id", "architecture", "train.lr", "total_params", "loss"]
    there, read = (
        t[named].sort_values("trial_id").values.tolist() for t in (runs.table, loaded.table)
    )
    assert read == there
    assert not any("no column of architectures" in note for note in loaded.notes)


def test_brackets_are_explained_where_there_are_some(synthetic, tmp_path):
    several = synthetic.make_sweep(sizes=(32, 64), seeds=(0, 1), architectures=("dense",))
    # One size with a seed, one with two.
    kept = {"one": several[::2], "both": several[:3], "two": several}

    notes = {}
    for name, trials_of in kept.items():
        runs = analysis.load(synthetic.write_runs(tmp_path / name, trials_of))
        notes[name] = configurations(analysis.fit_sweep(runs, n_draws=5, specs=())).notes

    assert "one seed: no interval" in notes["one"]
    assert "[…] is 95% Student's t over seeds; one seed: no interval" in notes["both"]
    assert "[…] is 95% Student's t over seeds" in notes["two"]


@pytest.mark.usefixtures("no_pictures")
def test_the_page_says_why_two_fits_of_one_form_differ(two_architectures, tmp_path):
    """By their objectives alone: of the same runs, with one objective, they are equal."""
    table = two_architectures(noise=0.02)
    table = table[table["tokens"] == 20 * table["params"]].drop(columns=["tokens", "memory_params"])
    runs = analysis.load(table)

    page = analysis.write_report(runs, analysis.fit_sweep(runs, n_draws=5), tmp_path).read_text()

    sentence = (
        "fitted to relative errors by a Huber loss that is nearly a median, the fitted curves"
    )
    assert page.count(sentence) == 1
    dense = table[table["architecture"] == "dense"]
    columns = {"x": dense["total_params"], "loss": dense["loss"]}
    curve, law = (fit_law(one, columns, n_draws=0) for one in (PowerLaw(), POWER))
    same = fit_law(POWER, columns, n_draws=0, objective=curve.objective_of)
    assert curve.objective_of == SQUARED_ERROR
    assert law.objective_of == Objective()
    assert law.parameters["alpha"] != pytest.approx(curve.parameters["alpha"], rel=1e-3)
    assert same.parameters["alpha"] == pytest.approx(curve.parameters["alpha"], rel=1e-3)


def test_numbers_that_nobody_recorded_have_no_column(runs, fits):
    assert "bytes per token, batch 64" not in configurations(fits).columns
    assert "block FLOPs, paper" not in configurations(fits).columns
    assert parameter_groups(fits).columns[2:] == (
        "total",
        "embedding",
        "attention",
        "feed forward",
        "memory values",
    )


def test_models_that_are_not_causal_are_named_below_the_tables(synthetic, tmp_path):
    why = "in training: experts choose among all tokens of the batch"
    sweep = synthetic.make_sweep(sizes=(32, 64), seeds=(0,), architectures=("dense", "moe", "peer"))
    sweep = [
        replace(t, spec=replace(t.spec, not_causal=why))
        if t.spec.architecture == "moe" or (t.spec.architecture, t.spec.preset) == ("peer", "32w")
        else t
        for t in sweep
    ]
    runs = analysis.load(synthetic.write_runs(tmp_path, sweep))
    fits = analysis.fit_sweep(runs, n_draws=20)

    note = (
        f"moe, peer (1 of 2 configurations): not causal {why}; compare with causal models with care"
    )
    for table in (configurations(fits), curves(fits), comparison(fits)):
        assert note in table.notes
    assert note in render(report_contents(runs, fits), {})


@pytest.mark.usefixtures("no_pictures")
def test_a_report_compares_architectures_once_and_makes_each_table_once(
    runs, fits, tmp_path, monkeypatch
):
    modules = [
        importlib.import_module(f"analysis.report.{module.name}")
        for module in pkgutil.iter_modules(analysis.report.__path__)
    ]
    made = Counter()

    def counted(function):
        def call(*args, **options):
            made[function.__name__] += 1
            return function(*args, **options)

        return call

    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            is_table = inspect.signature(function).return_annotation is Table
            if function is compare_architectures or is_table:
                made[function.__name__] = 0
                monkeypatch.setattr(module, name, counted(function))

    analysis.write_report(runs, fits, tmp_path)

    assert made == {
        **dict.fromkeys(made, 1),
        # Of the sweep's own curves or architectures, and of further `laws`.
        "laws_table": 2,
        "health_table": 2,
        # No trial is planned that could be chosen.
        "next_runs_table": 0,
    }
    assert {"compare_architectures", "comparison", "configurations", "step_times"} <= set(made)


def test_text_from_runs_is_escaped(runs, fits):
    nasty = Runs(
        table=runs.table,
        excluded=pd.DataFrame(
            [
                {
                    "trial_id": "t",
                    "sweep": "s",
                    "architecture": "a",
                    "seed": 0,
                    "state": "failed",
                    "reason": "<b>&'\"",
                }
            ]
        ),
        source="runs",
        sweep="<script>alert(1)</script>",
        question="is 1 < 2?",
    )

    spent = "Spent so far: $<b>2.50."
    contents = report_contents(nasty, fits, spent=spent)
    text = render(contents, {})

    assert contents.as_json()["spent"] == spent
    assert "Spent so far: $&lt;b&gt;2.50." in text
    assert "<script>" not in text
    assert "<b>" not in text
    assert "is 1 &lt; 2?" in text


def test_a_sweep_without_a_finished_trial_still_has_a_page(tmp_path, synthetic):
    synthetic.start(tmp_path, synthetic.make_trial("dense", 32, 0))
    runs = analysis.load(tmp_path)

    fits = analysis.fit_sweep(runs)
    text = analysis.write_report(runs, fits, tmp_path / "out").read_text()

    assert "Nothing to draw yet" in text
    assert "not finished" in text
    assert figure_paths(tmp_path / "out") == []
    assert [t.title for t in tables(runs, fits)] == [
        "Architectures",
        "Fitted curves",
        "At equal training FLOPs",
        "Excluded",
    ]


def test_one_trial_of_text_is_drawn_without_a_fit(tmp_path, synthetic):
    trial = synthetic.make_trial("dense", 32, 0)
    for name in [n for n in trial.metrics if n.startswith(("recall", "knowledge"))]:
        del trial.metrics[name]
    synthetic.write_runs(tmp_path, [trial])
    runs = analysis.load(tmp_path)

    fits = analysis.fit_sweep(runs)
    figure = sweep_figure(runs, fits)

    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "Loss against parameters",
        "Loss against training compute",
    ]
    assert {str(c.fit.status) for c in fits.curves} == {"underdetermined"}
    assert image(figure, "png").startswith(b"\x89PNG")


def test_the_figure_shows_every_seed_and_both_curves(runs, fits):
    figure = sweep_figure(runs, fits)

    left = figure.axes[0]
    dots = [
        line for line in left.lines if line.get_markersize() < 4 and line.get_linestyle() == "None"
    ]
    assert sum(len(line.get_xdata()) for line in dots) == len(runs.table)
    assert sum(line.get_linestyle() == "-" for line in left.lines) == 2
    assert len(left.collections) == 2, "a band each"
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["dense", "memory_plus"]
    low, high = left.get_ylim()
    assert low <= runs.table["factual_recall"].min()
    assert high >= runs.table["factual_recall"].max()


def test_equal_numbers_give_equal_files(runs, fits, tmp_path):
    first = [p.read_bytes() for p in save(sweep_figure(runs, fits), tmp_path / "a")]
    second = [p.read_bytes() for p in save(sweep_figure(runs, fits), tmp_path / "b")]

    assert first == second


def test_drawing_leaves_pyplot_alone(runs, fits):
    import matplotlib.pyplot as plt

    before = dict(plt.rcParams)
    image(sweep_figure(runs, fits), "svg")

    assert plt.get_fignums() == []
    assert dict(plt.rcParams) == before


def test_tables_are_rectangles_of_text(runs, fits):
    others = (trials(runs, fits), excluded(runs), parameter_groups(fits), usage(runs, fits))
    for table in (*tables(runs, fits), *others):
        assert len(table.numeric) == len(table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
        assert table.to_frame().shape == (len(table.rows), len(table.columns))
    assert len(configurations(fits).rows) == 12
    assert len(curves(fits).rows) == 12
    assert len(comparison(fits).rows) == 24


def test_a_sentence_that_many_rows_would_repeat_is_said_once(synthetic, tmp_path):
    for architecture in ("dense", "memory_plus"):
        for width, seed in itertools.product((32, 48), (0, 1)):
            synthetic.write_done(tmp_path, synthetic.make_trial(architecture, width, seed))
    fits = analysis.fit_sweep(analysis.load(tmp_path))

    pairs, fitted = comparison(fits), curves(fits)

    assert [row[0] for row in fitted.rows] == [f"{len(fits.curves)} curves: dense, memory_plus"]
    shown = pairs.said_once()
    sized = [row for row in shown.rows if row[-1] != "–"]
    assert {row[-1] for row in sized} == {"(1)"}
    assert shown.notes[0].startswith(f"(1), {len(sized)} rows: the dense curve")
    assert shown.notes[1:] == pairs.notes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (812, "812"),
        (999.7, "1.00 k"),
        (12_345, "12.3 k"),
        (1_138_560, "1.14 M"),
        (2.5e9, "2.50 G"),
        (float("inf"), "∞"),
    ],
)
def test_counts(value, text):
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.41236, "0.4124"), (1881.4, "1881"), (4.53e6, "4.530e+06"), (2e-5, "2.000e-05")],
)
def test_numbers(value, text):
    assert number(value) == text


def test_an_estimate_shows_no_more_digits_than_its_interval_bears():
    def show(value, low, high):
        return estimate(MeanEstimate(value=value, low=low, high=high, n=3, method=""))

    assert show(0.41236, 0.40112, 0.42360) == "0.412 [0.401, 0.424]"
    assert show(10.8571, 10.8301, 10.8841) == "10.86 [10.83, 10.88]"
    assert show(0.5, 0.5, 0.5) == "0.500 [0.500, 0.500]"
    assert show(0.41236, None, None) == "0.412"
    assert estimate(None) == "–"


def test_the_page_shows_table_reads_of_trials_whose_reads_were_counted(
    synthetic, tmp_path, no_pictures
):
    trials = synthetic.make_sweep(sizes=(32,), seeds=(0, 1), architectures=("memory_plus",))
    runs_folder = synthetic.write_runs(tmp_path / "runs", trials)
    counted, other = sorted((runs_folder / "synthetic" / "trials").iterdir())
    (counted / "table_reads").mkdir()
    np.savez(counted / "table_reads" / "reads.npz", layer_01=np.array([0, 3, 5, 1]))
    line = "layer,rows\nlayer_01,4\n"
    (counted / "table_reads" / "tables.csv").write_text(line)

    for source in (runs_folder, runs_folder / "synthetic"):
        runs = analysis.load(source, sweep="synthetic")
        fits = analysis.fit_sweep(runs, n_draws=0)
        drawn = draw_beside(sweep_figures(runs, fits), tmp_path / "out")()
        assert [s for s in drawn if "table_reads" in s] == [f"table_reads_{counted.name}"]
    text = render(report_contents(runs, fits), drawn)

    assert f"<h3>{counted.name}</h3>" in text
    assert f"<h3>{other.name}</h3>" not in text
    stem = f"table_reads_{counted.name}.svg"
    assert stem in {path.name for path in figure_paths(tmp_path / "out")}


@pytest.mark.usefixtures("no_pictures")
def test_commands_are_code_and_no_password_is_shown(runs, fits):
    contents = report_contents(runs, fits)
    contents = replace(
        contents,
        runs=replace(runs, source="postgresql://me:secret@host/runs", call=None),
        advice=("`memscale next <s>` writes it, if a < b.",),
    )

    text = render(contents, {})

    assert "<li><code>memscale next &lt;s&gt;</code> writes it, if a &lt; b.</li>" in text
    assert "postgresql://host/runs" in text
    assert "secret" not in text


@pytest.mark.usefixtures("no_pictures")
def test_a_page_of_several_sweeps_is_made_anew_by_one_command(runs, fits):
    contents = report_contents(replace(runs, sweep=("first", "second")), fits)

    text = render(contents, {})

    assert contents.sweep == "first, second"
    assert f"memscale report first second --runs {runs.source}" in text
