import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import same_color

import analysis
from analysis.loading.usage import UsageName, by_parts, usage_columns, usage_curves, usage_name
from analysis.plotting.sweep_figure import sweep_figure
from analysis.plotting.usage_figure import usage_figure
from analysis.report.usage_table import usage

WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)


@given(
    kind=st.sampled_from(["memory", "moe"]),
    layer=st.none() | WORDS.map(lambda word: f"layer_03_{word}"),
    stat=WORDS,
)
def test_a_name_is_its_parts(kind, layer, stat):
    metric = "/".join(part for part in (kind, layer, stat) if part is not None)

    assert usage_name(metric) == UsageName(kind, layer, stat)


@pytest.mark.parametrize(
    "metric", ["train/loss", "memory", "system/gpu_memory_bytes", "memories/x"]
)
def test_other_names_tell_nothing_of_use(metric):
    assert usage_name(metric) is None


def test_columns_of_a_table_by_statistic():
    columns = ["seed", "moe/kl", "memory/layer_03/kl", "memory/kl", "memory/layer_01/kl"]

    assert [(kind, stat, c.mean, c.layers) for kind, stat, c in usage_columns(columns)] == [
        ("memory", "kl", "memory/kl", ("memory/layer_01/kl", "memory/layer_03/kl")),
        ("moe", "kl", "moe/kl", ()),
    ]
    assert usage_columns(["seed", "train/loss"]) == []


def histories_of(values):
    """(metric, seed, step) -> value, of one configuration."""
    return pd.DataFrame(
        [
            {"configuration": "a-1", "metric": m, "seed": seed, "step": step, "value": value}
            for (m, seed, step), value in values.items()
        ]
    )


values = st.dictionaries(
    st.tuples(
        st.sampled_from(["memory/layer_00/kl", "memory/layer_01/kl", "train/loss"]),
        st.integers(0, 2),
        st.integers(1, 5),
    ),
    st.floats(-1e6, 1e6) | st.just(np.nan),
    min_size=1,
)


@given(values=values)
def test_the_mean_lies_between_the_layers_and_no_gap_is_a_number(values):
    curves = usage_curves(by_parts(histories_of(values)), x="step")

    there = {m for (m, _, _), v in values.items() if m.startswith("memory") and np.isfinite(v)}
    if not there:
        assert curves == {}
        return
    found = curves["a-1", "memory", "kl"]
    assert {f"memory/{layer}/kl" for layer in found.layers} == there
    assert (np.diff(found.mean.x) > 0).all()
    for x, y in zip(found.mean.x, found.mean.y, strict=True):
        at = [c.y[c.x == x][0] for c in found.layers.values() if x in c.x]
        assert min(at) - 1e-6 <= y <= max(at) + 1e-6


def test_a_mean_that_was_reported_stays_as_reported():
    values = {("memory/kl", 0, 1): 7.0, ("memory/kl", 1, 1): 9.0, ("memory/layer_00/kl", 0, 1): 1.0}

    found = usage_curves(by_parts(histories_of(values)), x="step")["a-1", "memory", "kl"]

    assert found.mean.y.tolist() == [8.0]
    assert list(found.layers) == ["layer_00"]


def loaded(folder):
    runs = analysis.load(folder)
    return runs, analysis.fit_sweep(runs, n_draws=20)


@pytest.fixture(scope="module")
def several(synthetic, tmp_path_factory):
    """Dense, two kinds of memory and experts, at two sizes."""
    names = ("dense", "memory_plus", "moe", "per_layer_embedding")
    trials = synthetic.make_sweep(sizes=(32, 64), seeds=(0, 1), architectures=names)
    return loaded(
        synthetic.write_reporting(tmp_path_factory.mktemp("several"), trials, moe=("moe",))
    )


@pytest.fixture(scope="module")
def figure(several):
    runs, fits = several
    return usage_figure(runs, fits, analysis.histories(runs))


def grid_of(figure):
    shape = figure.axes[0].get_subplotspec().get_gridspec().get_geometry()
    return np.array(figure.axes, dtype=object).reshape(shape)


def lines(axis, width):
    return [line for line in axis.lines if line.get_linewidth() == width]


def test_a_row_per_sparse_series_and_a_column_per_statistic(figure):
    grid = grid_of(figure)

    assert grid.shape == (3, 5), "dropped tokens have no column: there are none"
    names = [row[0].texts[0].get_text() for row in grid]
    assert names == ["memory_plus", "moe", "per_layer_\nembedding"]
    assert [row[0].texts[1].get_text() for row in grid] == [
        "memory\n64w, largest of 2\n2 seeds",
        "experts\n64w, largest of 2\n2 seeds",
        "memory\n64w, largest of 2\n2 seeds",
    ]
    assert grid[0, 0].get_title(loc="left") == "Rows read so far,\nexperts used (share)"
    assert {axis.get_xlabel() for axis in grid[-1]} == {"Training tokens"}


def test_thick_is_the_mean_and_thin_are_the_layers(figure):
    memory = grid_of(figure)[0]

    for axis in memory:
        assert len(lines(axis, 2.4)) == 1
        assert len(lines(axis, 0.9)) == 2, "layers"
        assert len(lines(axis, 1.0)) == 1, "the smaller size"
    np.testing.assert_allclose(lines(memory[0], 2.4)[0].get_ydata()[-1], 0.8 * 1.05)
    np.testing.assert_allclose(lines(memory[0], 2.4)[0].get_xdata()[-1], 1_000_000)


def test_experts_are_drawn_as_a_number_of_even_choices(figure):
    experts = grid_of(figure)[1]

    np.testing.assert_allclose(lines(experts[2], 2.4)[0].get_ydata(), np.exp(2.0 * 1.05))
    assert [text.get_text() for text in experts[4].texts] == ["not reported"]


def test_rows_compare_and_have_the_colours_of_the_sweep_figure(figure, several):
    grid = grid_of(figure)
    handles = sweep_figure(*several).legends[0]
    colours = {
        text.get_text(): line.get_color()
        for text, line in zip(handles.get_texts(), handles.get_lines(), strict=True)
    }

    for column in grid.T:
        assert len({axis.get_ylim() for axis in column}) == 1
        assert len({axis.get_yscale() for axis in column}) == 1
    assert same_color(lines(grid[0, 0], 2.4)[0].get_color(), colours["memory_plus"])
    assert same_color(lines(grid[1, 0], 2.4)[0].get_color(), colours["moe"])
    assert same_color(lines(grid[2, 0], 2.4)[0].get_color(), colours["per_layer_embedding"])


def test_nothing_lies_over_anything_else(figure):
    renderer = figure.canvas.get_renderer()
    panels = [axis.get_window_extent(renderer) for axis in figure.axes]
    texts = [text for axis in figure.axes for text in axis.texts[:2] if text.get_text()]
    names = [t.get_window_extent(renderer) for t in texts if t.get_text() != "not reported"]
    titles = [axis._left_title for axis in grid_of(figure)[0]]  # Axes.title is the centred one
    boxes = [*names, *(title.get_window_extent(renderer) for title in titles)]

    assert len(names) == 6
    assert not any(box.overlaps(panel) for box in boxes for panel in panels)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x0 >= 0 for box in boxes)


def test_experts_alone_are_called_experts(synthetic, tmp_path):
    trials = synthetic.make_sweep(sizes=(32,), seeds=(0,), architectures=("dense", "moe"))
    runs, fits = loaded(synthetic.write_reporting(tmp_path, trials, moe=("moe",)))

    figure = usage_figure(runs, fits, analysis.histories(runs))

    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "Experts used (share)",
        "KL to uniform (nats)",
        "Effective experts per token\n(exp of the router's entropy)",
        "Largest load over mean",
    ]


def test_a_share_since_the_last_report_is_not_passed_off_as_one_since_the_start(
    synthetic, tmp_path
):
    trial = synthetic.make_trial("memory_plus", 32, 0, **{"memory/usage": 0.5, "memory/kl": 1.0})
    runs, fits = loaded(synthetic.write_runs(tmp_path, [trial]))

    figure = usage_figure(runs, fits, analysis.histories(runs))

    assert figure.axes[0].texts[1].get_text() == "32w\nrows: since last report"
    assert len(figure.axes) == 2
    assert lines(figure.axes[0], 2.4)[0].get_marker() == "o", "a single report is still seen"


def test_without_sparse_architectures_there_is_no_figure_and_no_table(runs, fits):
    assert usage_figure(runs, fits, analysis.histories(runs)) is None
    assert usage(runs, fits).rows == ()


def test_the_table_has_every_statistic_of_every_configuration(several):
    table = usage(*several).to_frame().set_index(["architecture", "preset"])

    assert len(table) == 6
    assert table.loc[("memory_plus", "64w"), "ever used (share)"] == "0.8400 [0.8000, 0.8800]"
    assert table.loc[("memory_plus", "64w"), "distinct rows per batch"] == "525.0 [500.0, 550.0]"
    assert table.loc[("moe", "32w"), "router entropy (nats)"] == "2.100 [2.000, 2.200]"
    assert table.loc[("moe", "32w"), "ever used (share)"] == "–"
    assert table.loc[("moe", "32w"), "of"] == "experts"


def test_a_statistic_that_nobody_foresaw_has_a_column_too(synthetic, tmp_path):
    trial = synthetic.make_trial("moe", 32, 0, **{"moe/layer_01/z_loss": 0.25})
    runs, fits = loaded(synthetic.write_runs(tmp_path, [trial]))

    assert usage(runs, fits).to_frame()["z loss"].tolist() == ["0.2500"]
