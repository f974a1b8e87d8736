"""benchmarks/results_page.py: every number of the page, from runs whose numbers are written here."""

import importlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.planning.pricing import account
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep.load import load_sweep
from workloads import architectures

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
EXACT = "eval/facts/exact_match"
RECALL = "recall/train_wording/exact_match"


@pytest.fixture(scope="module")
def results_page():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("results_page")
        del sys.modules["results_page"], sys.modules["results_figure"]


@pytest.fixture
def results_figure(results_page):
    return sys.modules["results_figure"]


@pytest.fixture
def write(synthetic, tmp_path):
    """Return a function that writes a finished trial of 100 steps, in the sweep `facts`."""

    def one(
        architecture,
        seed,
        *,
        people=1_000,
        n_keys=None,
        base=None,
        init=None,
        width=32,
        preset="32w",
        rate=None,
        **metrics,
    ):
        trial = synthetic.make_trial(architecture, width, seed, sweep="facts", **metrics)
        more = {"n_keys": n_keys, "base": base, "output_init": init}
        model = trial.spec.model | {name: value for name, value in more.items() if value}
        spec = replace(
            trial.spec,
            preset=preset,
            model=model,
            data={"source": "biographies", "n_people": people},
            train={"tokens": 2_000_000, "batch_tokens": 20_000, "seq_len": 256}
            | ({"lr": rate} if rate else {}),
        )
        return synthetic.write_done(tmp_path / "runs", replace(trial, spec=spec))

    return one


@pytest.fixture
def page(results_page, results_figure, tmp_path, monkeypatch):
    """Give a function that makes the page: its lines, and the figures that were drawn.

    `written`: whether the figures' files are, which takes most of the time.
    """

    def make(*options, written=True):
        figures = []
        if not written:
            monkeypatch.setattr(results_figure.mpl.figure.Figure, "savefig", lambda *a, **k: None)
        monkeypatch.setattr(results_figure.plt, "close", figures.append)
        words = ["results_page.py", "facts", "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
        words += options
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        results_page.main()
        monkeypatch.undo()
        return (tmp_path / "out" / "facts.md").read_text().splitlines(), figures

    yield make
    results_figure.plt.close("all")


def rows(lines):
    """Return the table of what came out, its headings first."""
    start = lines.index("## What came out") + 2
    cells = [line.strip("| ").split(" | ") for line in lines[start : lines.index("", start)]]
    return [cells[0], *cells[2:]]


def points(figures):
    """Return the curves of all panels: heading of the panel and architecture to what is drawn."""
    return {
        (axes.get_ylabel().partition("\n")[0], line.get_label()): line.get_xydata().tolist()
        for figure in figures
        for axes in figure.axes
        for line in axes.lines
    }


def test_one_size_of_each_is_a_line_of_dots_the_best_first(write, page, results_figure):
    for architecture, seed, bits in (
        ("dense", 0, 1.5),
        ("dense", 1, 1.7),
        ("memory_plus", 0, 1.25),
    ):
        write(architecture, seed, people=1_000, **{"valid/bits_per_byte": bits, EXACT: 0.2})

    _, figures = page()
    bits = figures[-1].axes[0]
    results_figure.plt.close("all")

    assert [label.get_text() for label in bits.get_yticklabels()] == ["memory_plus", "dense"]
    drawn = [sorted(map(tuple, dots.get_offsets().tolist())) for dots in bits.collections]
    # Of one seed the dot alone, of two also their mean.
    assert drawn == [[(1.25, 0)], [(1.5, 1), (1.7, 1)], [(1.6, 1)]]
    assert bits.yaxis_inverted()


def test_configurations_of_one_size_are_dots_and_no_curve_over_their_parameters(
    write, page, results_figure
):
    for base, width, bits in ((None, 32, 1.5), ("moe", 64, 1.4)):
        write("engram", 0, base=base, width=width, **{"valid/bits_per_byte": bits, EXACT: 0.2})

    _, figures = page(written=False)
    bits = figures[-1].axes[0]
    results_figure.plt.close("all")

    labels = [label.get_text() for label in bits.get_yticklabels()]
    assert labels == ["engram, base moe, d_ff 256, d_model 64", "engram, d_ff 128, d_model 32"]
    assert [dots.get_offsets().tolist() for dots in bits.collections] == [[[1.4, 0]], [[1.5, 1]]]


def test_numbers_are_those_of_the_runs(write, page, synthetic, tmp_path, results_figure):
    recall = {"valid/bits_per_byte": 1.5, EXACT: 0.2, f"{EXACT}_stderr": 0.125}
    write("dense", 0, people=1_000, **recall, **{"time/train_s": 1_000.0})
    write("dense", 1, people=1_000, **recall | {EXACT: 0.6}, **{"time/train_s": 2_001.0})
    last = write("memory_plus", 0, people=4_000, **recall | {"valid/bits_per_byte": 1.25})
    result = json.loads((last.path / "result.json").read_text())
    (last.path / "result.json").write_text(json.dumps(result | {"finished_at": 301.0}))
    synthetic.start(tmp_path / "runs", synthetic.make_trial("dense", 48, 7, sweep="facts"))

    lines, figures = page()
    headings, dense, memory = rows(lines)
    curves = points(figures)
    results_figure.plt.close("all")

    # 30 · 32² + 200 · 32 parameters, with a table 40 · 32² more; 30 · 32² of them times 6 M are FLOPs.
    assert headings[:7] == [
        "architecture",
        "settings",
        "total parameters",
        "active",
        "of a memory",
        "training FLOPs",
        "bits per byte",
    ]
    cells = ["n_people=1000", "37.1 k", "30.7 k", "0", "2.23e+11", "1.5 ± 0"]
    assert dense[:7] == ["dense 32w", *cells]
    cells = ["n_people=4000", "78.1 k", "30.7 k", "41.0 k", "2.23e+11", "1.25"]
    assert memory[:7] == ["memory_plus 32w", *cells]
    # Two seeds: (0.2 + 0.6) / 2 and their deviation 0.4 / √2. One: the error over its questions.
    where = headings.index("exact match")
    assert [dense[where], memory[where]] == ["0.4 ± 0.28", "0.2 ± 0.12"]
    assert [headings[-1], dense[-1], memory[-1]] == ["training, s", "1,500", "12.5"]
    # 10⁶ tokens in 1,000 s and in 2,001 s: the mean of both.
    assert [headings[-2], dense[-2], memory[-2]] == ["tokens/s", "750", "80,000"]
    assert curves["bits per byte", "dense"] == [[1_000, 1.5]]
    assert curves["exact match", "dense"] == [[1_000, pytest.approx(0.4)]]
    assert curves["bits per byte", "memory_plus"] == [[4_000, 1.25]]
    assert "held-out loss, nats per token" not in {panel for panel, _ in curves}
    assert (tmp_path / "out" / "facts.png").stat().st_size > 1_000
    text = "\n".join(lines)
    assert "| trials | 3 finished, 1 not; seeds 0, 1 |" in text
    assert "| training | 100 steps of 20,000 tokens of 256 |" in text
    # From 1 s to 301 s; 1,000 + 2,001 + 12.5 s of training.
    assert "| time | 5.0 minutes in which trials ran, 50.2 trial-minutes" in text
    assert text.count("\n* dense-") == 1
    # Trials, not means: each number of the page can be found in its trial.
    trials = pd.read_csv(tmp_path / "out" / "facts.csv")
    assert sorted(trials["trial_id"])[-1] == last.path.name
    dense = trials[trials["architecture"] == "dense"]
    assert dict(zip(dense["seed"], dense[EXACT], strict=True)) == {0: 0.2, 1: 0.6}
    assert set(trials["data.n_people"]) == {1_000, 4_000}
    # And where it comes from.
    assert "| code | commit abc123 |" in text
    assert "| finished | 1970-01-01 |" in text
    assert set(trials["git_commit"]) == {"abc123"}
    assert set(trials["torch"]) == {"2.13.0"}
    assert set(trials["finished"]) == {"1970-01-01"}


def test_seeds_are_averaged_and_nothing_else_is(write, page, results_page, monkeypatch):
    monkeypatch.setattr(results_page, "draw_figure", lambda *_: None)
    for n_keys, loss in ((8, 2.0), (16, 3.0)):
        for seed in (0, 1):
            write("memory_plus", seed, n_keys=n_keys, preset=None, **{"valid/loss": loss + seed})

    headings, *found = rows(page(written=False)[0])

    where = headings.index("held-out loss, nats per token")
    assert [(row[1], row[where]) for row in found] == [
        ("n_keys=8", "2.5 ± 0.71"),
        ("n_keys=16", "3.5 ± 0.71"),
    ]


def test_curves_of_different_settings_are_not_averaged(write, page, results_figure):
    for people, n_keys in ((1_000, 8), (1_000, 16), (4_000, 8), (4_000, 16)):
        write("memory_plus", 0, people=people, n_keys=n_keys, preset=None, **{EXACT: n_keys / 100})

    curves = points(page()[1])
    results_figure.plt.close("all")

    assert curves["exact match", "memory_plus, n_keys 8"] == [[1_000, 0.08], [4_000, 0.08]]
    assert curves["exact match", "memory_plus, n_keys 16"] == [[1_000, 0.16], [4_000, 0.16]]


def test_several_sizes_beside_one_preset_are_a_curve_of_their_own(write, page, results_figure):
    for preset, widths in (("10m", (128, 160)), ("3m", (64, 96))):
        for width in widths:
            metrics = {"valid/bits_per_byte": width / 100}
            write("dense", 0, preset=preset, width=width, **metrics)

    curves = points(page()[1])
    results_figure.plt.close("all")

    assert list(dict.fromkeys(name for _, name in curves)) == [
        "dense, beside 3m",
        "dense, beside 10m",
    ]
    assert [y for _, y in curves["bits per byte", "dense, beside 3m"]] == [0.64, 0.96]
    assert [y for _, y in curves["bits per byte", "dense, beside 10m"]] == [1.28, 1.6]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1_048_576.0, "1,048,576"),
        (524_288, "524,288"),
        (8, "8"),
        (6.7e-4, "0.00067"),
        ("moe", "moe"),
    ],
)
def test_whole_numbers_have_all_their_digits(results_figure, value, shown):
    assert results_figure._plainly(value) == shown


@pytest.fixture
def grids(results_figure):
    """Collect the numbers of figures of what was tuned: column, row, number, weight."""
    drawn = []
    grid, text = results_figure._grid, results_figure.mpl.axes.Axes.text

    def add(axes, x, y, words, **options):
        drawn[-1].append((x, y, words, options["weight"]))
        return text(axes, x, y, words, **options)

    def draw(*arguments):
        drawn.append([])
        with pytest.MonkeyPatch.context() as while_drawn:
            while_drawn.setattr(results_figure.mpl.axes.Axes, "text", add)
            grid(*arguments)

    with pytest.MonkeyPatch.context() as patch:  # `page` takes back what its own one changed
        patch.setattr(results_figure, "_grid", draw)
        yield drawn


def test_pauses_are_no_time_and_what_was_tuned_is_a_grid_the_best_row_first(
    write, page, grids, results_figure
):
    ends = {1e-3: 61.0, 3e-3: 181.0, 1e-2: 121.0}
    for rate, end in ends.items():
        for architecture in ("dense", "peer"):
            loss = 1 + 100 * abs(rate - 3e-3) + (architecture == "dense")
            trial = write(architecture, 0, rate=rate, **{"valid/loss": loss})
            result = trial.path / "result.json"
            result.write_text(json.dumps(json.loads(result.read_text()) | {"finished_at": end}))
            if rate == 3e-3:  # alone, an hour later
                launch = next(trial.path.glob("attempts/*/launch.json"))
                launch.write_text(json.dumps({"started_at": 3601.0}))
                result.write_text(
                    json.dumps(json.loads(result.read_text()) | {"finished_at": 3661.0})
                )

    lines, figures = page(written=False)
    (panel,) = figures[-1].axes
    results_figure.plt.close("all")

    assert "| time | 3.0 minutes in which trials ran" in "\n".join(lines)
    assert [row[1] for row in rows(lines)[1:]] == 2 * ["lr=1e-3", "lr=3e-3", "lr=1e-2"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["peer", "dense"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1e-3", "3e-3", "1e-2"]
    best = [(1, 0, "1.000", "bold"), (1, 1, "2.000", "bold")]
    others = [(0, 0, "1.200"), (2, 0, "1.700"), (0, 1, "2.200"), (2, 1, "2.700")]
    assert sorted(grids[0]) == sorted([*best, *((*cell, "normal") for cell in others)])


def test_tables_of_one_size_are_drawn_against_their_rows_and_the_base_as_a_level(
    write, page, results_figure
):
    for seed in (0, 1):
        write("dense", seed, **{"valid/loss": 3.0 + seed})
        for n_keys in (8, 16):
            write("memory_plus", seed, n_keys=n_keys, **{"valid/loss": 2.0 + seed + n_keys / 32})

    _, figures = page(written=False)
    loss = figures[-1].axes[0]
    results_figure.plt.close("all")

    drawn = {line.get_label(): line.get_xydata().tolist() for line in loss.lines}
    assert drawn["memory_plus"] == [[64, 2.75], [256, 3.0]]
    assert {y for _, y in drawn["dense"]} == {3.5}
    assert loss.get_xlabel() == "rows of the memory"


def test_dense_is_dashed_where_it_begins_plainly_and_dotted_where_smaller(
    write, page, results_figure
):
    for init, loss in ((None, 3.0), ("depth_scaled", 2.75)):
        write("dense", 0, init=init, **{"valid/loss": loss})
        for n_keys in (8, 16):
            write("memory_plus", 0, n_keys=n_keys, init=init, **{"valid/loss": loss - n_keys / 32})

    _, figures = page(written=False)
    loss = figures[-1].axes[0]
    results_figure.plt.close("all")

    assert {line.get_label(): line.get_linestyle() for line in loss.lines} == {
        "dense": "--",
        "dense, output_init depth_scaled": ":",
        "memory_plus": "-",
        "memory_plus, output_init depth_scaled": ":",
    }
    assert loss.get_ylabel() == "held-out loss, nats per token\n(axis not from 0)"


def test_every_architecture_has_a_look_of_its_own(results_figure):
    folder = Path(architectures.__file__).parent
    names = {path.stem for path in folder.glob("*.py") if hasattr(_module(path.stem), "Config")}

    assert results_figure.STYLES.keys() >= names
    # Those beyond fifteen have colours again, with other markers.
    looks = {(style.colour, style.marker) for style in results_figure.STYLES.values()}
    assert len(looks) == len(results_figure.STYLES)
    # Nor does a later curve of one look like any curve of another.
    marks = [
        (style.colour, mark["marker"], "markerfacecolor" in mark)
        for name, style in results_figure.STYLES.items()
        for mark in (results_figure._mark(name, later) for later in range(6))
    ]
    assert len(set(marks)) == len(marks)


def test_rows_of_more_architectures_than_colours_differ_in_their_marks(write, page, results_figure):
    for place, name in enumerate(results_figure.STYLES):
        write(name, 0, **{"valid/loss": 3.0 + place / 10})
    write("dense", 0, init="depth_scaled", **{"valid/loss": 2.0})

    _, figures = page(written=False)
    panel = figures[-1].axes[0]
    results_figure.plt.close("all")

    def looks(dots):
        """Return the colour of the edge, whether it is filled, and the mark's outline."""
        shape = dots.get_paths()[0].vertices.round(3).tobytes()
        return (
            *dots.get_edgecolor()[0][:3],
            dots.get_facecolor()[0][:3].tolist() == [1, 1, 1],
            shape,
        )

    drawn = [looks(dots) for dots in panel.collections]
    assert len(set(drawn)) == len(drawn) == len(results_figure.STYLES) + 1
    # Plain dense is filled on all pages, also where it is not the better of the two.
    labels = [label.get_text() for label in panel.get_yticklabels()]
    filled = {labels[place]: not look[3] for place, look in enumerate(drawn)}
    assert [name for name, full in filled.items() if not full] == [
        "dense, output_init depth_scaled"
    ]


def _module(name):
    return importlib.import_module(f"workloads.architectures.{name}")


SWEEP = """\
# Run: memscale submit {file}
name: facts
data: {{source: text, path: words.txt, valid_path: words.txt, vocab_size: 512}}
train: {{tokens: 40_960, batch_tokens: 1_024, seq_len: 64, lr: 2.0e-2}}
model: {{architecture: dense, preset: d8}}
trials:
  - grid: {{train.lr: {rates}}}
  - set: {{model.architecture: memory_plus, model.n_keys: 32}}
    grid: {{train.lr: {rates}}}
    match: {{training_flops: dense, solve: tokens}}
seeds: [0, 1]
"""
RATES = (1e-2, 2e-2, 4e-2)


@pytest.fixture
def trials(tmp_path):
    """Return a function that gives the trials of a sweep file, as read in a folder of its own.

    The header names the file of all rates.
    """

    def read(folder, rates=RATES):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "words.txt").write_text("a few words of text " * 500)
        file = tmp_path / folder / "facts.yaml"
        text = SWEEP.format(file=tmp_path / "whole" / "facts.yaml", rates=list(rates))
        file.write_text(text)
        return file, [spec.with_accounting(account(spec)) for spec in load_sweep(file).trials]

    return read


@pytest.fixture
def run(synthetic, tmp_path):
    """Return a function that submits a sweep file and finishes those of its trials it is given.

    Those of one rate run for 60 s at once.
    """

    def part(file, specs, done, **metrics):
        sweep = SweepDir(tmp_path / "runs" / "facts")
        sweep.add_trials(specs)
        shutil.copy(file, sweep.path / "sweep.yaml")
        for spec in done:
            loss = 3.0 + 10 * spec.train["lr"] + 0.1 * spec.seed
            asked = {RECALL: 1 / loss, EXACT: 0.5 / loss, f"{EXACT}_stderr": 0.01 * loss}
            values = {"valid/loss": loss, **asked, **metrics}
            trial = replace(synthetic.make_trial("dense", 32, 0, **values), spec=spec)
            folder = synthetic.write_done(tmp_path / "runs", trial)
            began = 1e5 * spec.train["lr"]
            _change(next(folder.path.glob("attempts/*/launch.json")), started_at=began)
            _change(folder.path / "result.json", finished_at=began + 60)
            git = {"commit": "abc123", "dirty": True, "diff": "diff --git a/x.py b/x.py"}
            _change(next(folder.path.glob("attempts/*/environment.json")), git=git)

    return part


@pytest.fixture
def page_alone(trials, run, page, tmp_path):
    """Make the page of a whole sweep, whose records are removed; return the sweep's file."""
    file, specs = trials("whole")
    run(file, specs, specs)
    page(written=False)
    shutil.rmtree(tmp_path / "runs")
    return file


def _change(file, **changes):
    """Change parts of a record."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def of_rates(specs, *rates):
    return [spec for spec in specs if spec.train["lr"] in rates]


@pytest.mark.parametrize("submitted", ["whole", "part"])
def test_parts_of_a_sweep_make_the_page_of_the_whole(
    submitted, trials, run, page, grids, tmp_path, results_figure
):
    def made():
        """Return the page, its CSV, and the numbers of the figure."""
        lines, _ = page(written=False)
        results_figure.plt.close("all")
        csv = pd.read_csv(tmp_path / "out" / "facts.csv").set_index("trial_id")
        return lines, csv, grids[-1]

    file, specs = trials("whole")
    run(file, specs, specs)
    at_once, csv, curves = made()
    assert {"steps", f"{EXACT}_stderr"} <= set(csv)
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "out")

    file, first = trials("first", RATES[:2])
    run(file, first, of_rates(first, *RATES[:2]))
    assert len(made()[1]) == 8
    shutil.rmtree(tmp_path / "runs")
    # The text lies in another place there, which makes no other trial of it.
    second = trials("second", RATES if submitted == "whole" else RATES[2:])
    run(*second, of_rates(second[1], RATES[2]))
    for _ in range(2):  # what was recorded just now is found in the runs again
        in_parts, again, drawn = made()

        text = "\n".join(in_parts)
        assert "| trials | 12 finished, 0 not; seeds 0, 1 |" in text
        # 12 trials of 12.5 s
        assert "| time | 3.0 minutes in which trials ran, 2.5 trial-minutes of training;" in text
        assert in_parts == at_once
        assert [row[1] for row in rows(in_parts)[1:]] == 2 * ["lr=1e-2", "lr=2e-2", "lr=4e-2"]
        assert rows(in_parts) == rows(at_once)
        assert drawn == curves
        assert len(drawn) == 6
        pd.testing.assert_frame_equal(again, csv, check_like=True)


@pytest.mark.usefixtures("page_alone")
def test_of_a_record_counts_what_the_sweep_has_and_the_runs_lack(
    trials, run, page, tmp_path, synthetic, capsys
):
    file, specs = trials("whole", RATES[:2])  # the highest rate is taken out
    again, diverged, failed, done = specs[:4]
    run(file, specs, [again, done], **{"valid/loss": 2.5})
    run(file, [], [diverged], **{"valid/loss": float("nan")})
    synthetic.start(tmp_path / "runs", replace(synthetic.make_trial("dense", 8, 0), spec=failed))

    record = (tmp_path / "out" / "facts.csv").read_text()
    with pytest.raises(SystemExit):
        page(written=False)
    assert "holds 4 trials that neither" in (said := capsys.readouterr().err)
    assert "--drop" in said
    assert (tmp_path / "out" / "facts.csv").read_text() == record

    lines, _ = page("--drop", written=False)

    text = "\n".join(lines)
    assert "| trials | 7 finished, 1 not; seeds 0, 1 |" in text
    assert "| recorded before |" not in text
    # Of the lowest rate, whose attempts ran for 60 s, and of the second.
    assert "| time | 2.0 minutes in which trials ran, 1.5 trial-minutes" in text
    assert [line for line in lines if line.startswith("* ")] == [
        f"* {diverged.trial_id}: not finite: loss is nan (diverged)"
    ]
    found = pd.read_csv(tmp_path / "out" / "facts.csv").set_index("trial_id")["valid/loss"]
    assert found[again.trial_id] == found[done.trial_id] == 2.5
    assert found[failed.trial_id] == pytest.approx(3.2)
    assert set(found.index) == {spec.trial_id for spec in specs} - {diverged.trial_id}
    assert "left out of" in (said := capsys.readouterr().err)
    assert "facts.csv: 4 trials that the sweep has no more: " in said


def _compressed_anew(file):
    """Change the hash of a sweep's text, and nothing else that decides a trial."""
    (file.parent / "words.txt").write_text("a few words of text, in other bytes " * 500)
    return [spec.with_accounting(account(spec)) for spec in load_sweep(file).trials]


def test_trials_of_a_text_with_another_hash_are_kept_under_their_ids(
    trials, run, page, tmp_path, capsys
):
    file, specs = trials("whole")
    run(file, specs, of_rates(specs, *RATES[:2]))
    page(written=False)
    before = pd.read_csv(tmp_path / "out" / "facts.csv").set_index("trial_id")
    shutil.rmtree(tmp_path / "runs")
    again = _compressed_anew(file)
    assert not {spec.trial_id for spec in again} & {spec.trial_id for spec in specs}
    run(file, again, of_rates(again, RATES[2]))

    for _ in range(2):
        text = "\n".join(page(written=False)[0])

        assert "| trials | 12 finished, 0 not; seeds 0, 1 |" in text
        assert "| other ids | 8 trials recorded before under ids that the sweep gives" in text
        after = pd.read_csv(tmp_path / "out" / "facts.csv").set_index("trial_id")
        assert after.loc[before.index, "valid/loss"].to_dict() == before["valid/loss"].to_dict()
        assert after["data_sha256"].nunique() == 2
        assert text.count("valid_path") == 2

    # What is run again takes the place of the trial that had another id.
    shutil.rmtree(tmp_path / "runs")
    run(file, again, again)
    capsys.readouterr()
    text = "\n".join(page(written=False)[0])
    assert "| trials | 12 finished, 0 not; seeds 0, 1 |" in text
    assert "| other ids |" not in text
    assert "8 trials that ran again" in capsys.readouterr().err


def test_of_two_rows_with_one_setting_the_last_that_finished_is_kept(
    trials, run, page, tmp_path, capsys
):
    """Two branches may each have run a sweep, and their CSVs been joined."""
    file, specs = trials("whole")
    run(file, specs, specs)
    page(written=False)
    csv = tmp_path / "out" / "facts.csv"
    once = pd.read_csv(csv).assign(finished="2026-01-01")
    other = once.assign(trial_id=once["trial_id"] + "x", finished="2026-01-02")
    pd.concat([once, other]).to_csv(csv, index=False)
    shutil.rmtree(tmp_path / "runs")
    again = _compressed_anew(file)
    run(file, again, of_rates(again, RATES[2]))

    text = "\n".join(page(written=False)[0])

    assert "| trials | 12 finished, 0 not; seeds 0, 1 |" in text
    found = pd.read_csv(csv)
    assert not found["settings_id"].duplicated().any()
    assert found["trial_id"].str.endswith("x").sum() == 8
    assert "16 trials that ran again" in capsys.readouterr().err


def test_rows_of_two_files_with_one_setting_are_not_mixed(trials, run, page, tmp_path, capsys):
    file, _ = trials("whole")
    (file.parent / "others.txt").write_text("other words, and as many of them " * 500)
    head, _ = file.read_text().split("trials:", 1)
    file.write_text(
        f"{head}trials: [grid: {{data.path: [words.txt, others.txt]}}]\nseeds: [0, 1]\n"
    )
    specs = [spec.with_accounting(account(spec)) for spec in load_sweep(file).trials]
    run(file, specs, specs)
    page(written=False)
    before = (tmp_path / "out" / "facts.csv").read_bytes()
    shutil.rmtree(tmp_path / "runs")
    again = _compressed_anew(file)
    run(file, again, [spec for spec in again if "others" in str(spec.data["path"])])

    with pytest.raises(SystemExit):
        page(written=False)

    assert "the page would lose" in capsys.readouterr().err
    assert (tmp_path / "out" / "facts.csv").read_bytes() == before


def beside_a_record(trials, run, page, csv, *, change):
    """Return the page of a last rate, whose CSV holds two earlier ones and was changed since."""
    file, specs = trials("whole")
    run(file, specs, of_rates(specs, *RATES[:2]))
    page(written=False)
    change(pd.read_csv(csv)).to_csv(csv, index=False)
    shutil.rmtree(csv.parents[1] / "runs")
    run(file, specs, of_rates(specs, RATES[2]))
    return "\n".join(page(written=False)[0])


def test_a_record_of_an_older_page_lacks_columns_and_is_kept(
    trials, run, page, tmp_path, results_page
):
    def without_provenance(record):
        return record.drop(columns=list(results_page.PROVENANCE), errors="ignore")

    csv = tmp_path / "out" / "facts.csv"
    text = beside_a_record(trials, run, page, csv, change=without_provenance)

    assert (
        "| code | commit abc123 with uncommitted changes in x.py (4 trials); not recorded (8 trials) |"
        in text
    )
    assert "| device | not recorded |" in text
    assert "| recorded before | 8 trials, from facts.csv as it was; time is of the others |" in text
    assert "| time | 1.0 minutes in which trials ran, 0.8 trial-minutes" in text
    assert pd.read_csv(csv)["git_commit"].notna().sum() == 4


def test_all_of_a_record_are_counted_also_where_some_say_when_they_ran(trials, run, page, tmp_path):
    def partly_timed(record):
        return record.assign(ran=record["ran"].where(record["train.lr"] != RATES[0]))

    csv = tmp_path / "out" / "facts.csv"
    text = beside_a_record(trials, run, page, csv, change=partly_timed)

    assert (
        "| recorded before | 8 trials, from facts.csv as it was; it lacks when 4 of them ran, and "
        "time is of the others |"
    ) in text
    assert "| time | 2.0 minutes in which trials ran" in text


def test_of_a_part_without_a_command_the_study_is_found_by_its_name(
    trials, run, page, tmp_path, results_page, monkeypatch
):
    file, specs = trials("whole")
    run(file, specs, of_rates(specs, *RATES[:2]))
    page(written=False)
    shutil.rmtree(tmp_path / "runs")
    study = tmp_path / "sweeps" / "studies" / "of_facts.yaml"
    study.parent.mkdir(parents=True)
    shutil.move(file, study)
    shutil.copy(file.parent / "words.txt", study.parent)
    file, specs = trials("part", RATES[2:])
    file.write_text(file.read_text().partition("\n")[2])
    run(file, specs, specs)
    monkeypatch.setattr(results_page, "ROOT", tmp_path)

    text = "\n".join(page(written=False)[0])

    assert "| commands | `memscale submit sweeps/studies/of_facts.yaml`, " in text
    assert "| trials | 12 finished, 0 not; seeds 0, 1 |" in text


def test_leaving_out_most_of_a_record_is_not_offered(page_alone, trials, run, page, capsys):
    page_alone.unlink()
    file, specs = trials("part", RATES[2:])
    run(file, specs, specs)

    with pytest.raises(SystemExit):
        page(written=False)

    said = capsys.readouterr().err
    assert "facts.yaml (which is not there) has, and the page would lose" in said
    assert "give --drop" not in said
    assert "--drop would leave out most of that file, 8 of 12 trials" in said


def test_the_figure_is_drawn_again_from_the_csv_alone(page, grids, page_alone, tmp_path):
    page_alone.with_name("words.txt").unlink()
    (tmp_path / "out" / "facts.md").write_text("as it is")
    csv = (tmp_path / "out" / "facts.csv").read_text()

    assert page("--figures")[0] == ["as it is"]

    assert grids[0] == grids[1]
    assert (tmp_path / "out" / "facts.png").stat().st_size > 1_000
    assert (tmp_path / "out" / "facts.csv").read_text() == csv


def test_trials_of_another_page_are_drawn_beside(write, page, results_figure, tmp_path, capsys):
    for width in (32, 64):
        write("dense", 0, width=width, preset=None, **{EXACT: width / 100})
    page(written=False)
    other = pd.read_csv(tmp_path / "out" / "facts.csv").assign(architecture="pythia")
    other[EXACT] /= 2
    other.to_csv(tmp_path / "out" / "others.csv", index=False)

    drawn = points(page("--figures", "--beside", "others", "seed == 0", written=False)[1])
    results_figure.plt.close("all")

    dense, pythia = (drawn["exact match", name] for name in ("dense", "pythia"))
    assert [[x, y / 2] for x, y in dense] == pythia
    for options, said in (
        (("--figures", "--beside", "others", "seed == 7"), "others.csv: no trial has seed == 7"),
        (("--figures", "--beside", "others", "sead == 0"), "cannot ask others.csv for sead == 0"),
        (("--figures", "--beside", "others", "seed =="), "cannot ask others.csv for seed =="),
        (("--figures", "--beside", "away", "seed == 0"), "away.csv: not there"),
        (("--beside", "others", "seed == 0"), "--beside is for --figures"),
    ):
        with pytest.raises(SystemExit):
            page(*options, written=False)
        assert said in capsys.readouterr().err


def test_a_record_is_not_overwritten_where_the_sweep_file_cannot_be_read(
    trials, run, page, tmp_path, capsys
):
    file, specs = trials("whole")
    run(file, specs, of_rates(specs, *RATES[:2]))
    page(written=False)
    record = (tmp_path / "out" / "facts.csv").read_text()
    shutil.rmtree(tmp_path / "runs")
    run(*(second := trials("second", RATES[2:])), second[1])
    (tmp_path / "whole" / "words.txt").unlink()

    with pytest.raises(SystemExit):
        page(written=False)

    said = capsys.readouterr().err
    assert "facts.csv holds 8 trials that" in said
    assert "no such file: words.txt" in said
    assert (tmp_path / "out" / "facts.csv").read_text() == record


@pytest.mark.parametrize(
    ("names", "cut", "said"),
    [
        ("", False, ""),
        ("a.py", False, " in a.py"),
        ("a.py b/c.py", False, " in a.py and b/c.py"),
        ("a b c d e", False, " in a, b, c, d and e"),
        ("a b c d e f g", False, " in a, b, c, d, e and 2 more"),
        ("a b c d e f g", True, " in a, b, c, d, e and at least 2 more"),
        ("a b", True, " in a, b and others"),
    ],
)
def test_the_files_of_uncommitted_changes_are_named_and_from_five_on_counted(
    names, cut, said, write, page, results_page, monkeypatch
):
    parts = [f"diff --git a/{n} b/{n}\n--- a/{n}\n+++ b/{n}\n+diff --git" for n in names.split()]
    diff = "\n".join(parts)
    folder = write("dense", 0, **{"valid/loss": 3.0})
    environment = next(folder.path.glob("attempts/*/environment.json"))
    _change(environment, git={"commit": "abc123", "dirty": True, "diff": diff})
    if cut:
        monkeypatch.setattr(results_page, "MAX_DIFF_CHARACTERS", len(diff))

    text = "\n".join(page(written=False)[0])

    assert f"| code | commit abc123 with uncommitted changes{said} |" in text


@pytest.mark.parametrize("chosen", ["1", None])
def test_the_device_is_what_the_trial_could_use(chosen, write, page):
    gpus = [{"name": f"H{place}00", "uuid": f"GPU-{place}"} for place in range(4)]
    folder = write("dense", 0, **{"valid/loss": 3.0})
    environment = next(folder.path.glob("attempts/*/environment.json"))
    variables = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    _change(environment, hardware={"cpu": "abacus", "gpus": gpus}, variables=variables)

    text = "\n".join(page(written=False)[0])

    assert f"| device | {'H100' if chosen else 'H000, H100, H200, H300'}, torch 2.13.0 |" in text


@pytest.mark.parametrize("there", [False, True])
def test_a_sweep_that_is_not_there_is_one_sentence(
    there, write, results_page, tmp_path, monkeypatch, capsys
):
    if there:
        write("dense", 0)
    monkeypatch.setattr(sys, "argv", ["results_page.py", "fact", "--runs", str(tmp_path / "runs")])

    with pytest.raises(SystemExit) as ended:
        results_page.main()

    assert ended.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("results_page.py: error: ")
    assert ("no sweep 'fact' here; there are facts" in said) if there else ("runs" in said)


def test_budgets_of_tokens_are_joined_from_size_to_size(results_figure):
    budgets = {1.0e6: (26e6, 52e6), 3.0e6: (26e6, 71e6)}
    table = pd.DataFrame(
        [
            {"architecture": "memoryformer", "total_params": size, "train.tokens": tokens}
            for size, several in budgets.items()
            for tokens in several
        ]
    )

    curves = list(results_figure._curves(table, table["total_params"]))

    assert [(name, rows["train.tokens"].tolist()) for _, name, rows in curves] == [
        ("memoryformer, 26 M tokens", [26e6, 26e6]),
        ("memoryformer, 52 M to 71 M tokens", [52e6, 71e6]),
    ]
