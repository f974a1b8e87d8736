import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import analysis
from analysis.plotting.axes import ticks
from analysis.plotting.style import COLOURS, series_styles
from analysis.plotting.sweep_figure import sweep_figure


@given(names=st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=60))
def test_series_differ_and_further_ones_change_nothing(names):
    styles = series_styles(names)

    assert list(styles) == names
    assert len({(style.colour, style.marker) for style in styles.values()}) == len(names)
    assert list(series_styles(names[:5]).values()) == list(styles.values())[:5]


def test_fifteen_series_have_a_colour_each_and_the_later_ones_dashes():
    styles = list(series_styles(map(str, range(15))).values())

    assert len({style.colour for style in styles}) == 15 == len(COLOURS)
    assert [style.line == "-" for style in styles] == [True] * 7 + [False] * 8


@given(low=st.floats(1e-6, 1e24), ratio=st.floats(1.2544, 1e12))
def test_a_logarithmic_axis_has_a_few_ticks_inside(low, ratio):
    found = ticks(low, low * ratio)

    assert 2 <= len(found) <= 8
    assert found == sorted(set(found))
    assert all(low <= tick <= low * ratio for tick in found)
    assert all(math.isclose(float(f"{tick:.3g}"), tick) for tick in found), "round numbers"


def drawn(synthetic, folder, *, n_series, sizes, seeds=(0,)):
    names = [f"architecture_{i:02d}" for i in range(n_series)]
    trials = synthetic.make_sweep(sizes=sizes, seeds=seeds, architectures=names)
    runs = analysis.load(synthetic.write_runs(folder, trials))
    return sweep_figure(runs, analysis.fit_sweep(runs, n_draws=20))


def test_fifteen_series_stand_beside_the_panels(synthetic, tmp_path):
    figure = drawn(synthetic, tmp_path, n_series=15, sizes=(32, 64))
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()

    legend = figure.legends[0]
    assert len(legend.get_texts()) == 15
    box = legend.get_window_extent(renderer)
    assert not any(box.overlaps(axis.get_window_extent(renderer)) for axis in figure.axes)
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert {line.get_linestyle() for line in legend.get_lines()} == {":"}, "nothing was fitted"
    assert "one configuration, one seed" in figure.get_supxlabel()


def test_the_names_of_many_series_stand_as_their_curves_end(synthetic, tmp_path):
    figure = drawn(synthetic, tmp_path, n_series=8, sizes=(32, 64))

    ends = {}
    for line in figure.axes[0].lines:
        if line.get_linestyle() == ":":
            ends[line.get_color()] = line.get_ydata()[-1]
    order = [ends[line.get_color()] for line in figure.legends[0].get_lines()]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("sizes", [(32,), (32, 64), (32, 48, 64)])
def test_few_sizes_are_joined_by_dots(synthetic, tmp_path, sizes):
    figure = drawn(synthetic, tmp_path, n_series=2, sizes=sizes, seeds=(0, 1))

    for axis in figure.axes:
        assert [line.get_linestyle() for line in axis.lines].count(":") == 2
        assert not axis.collections
        assert len(axis.get_xticks()) >= 2
    assert "dotted: no fit" in figure.get_supxlabel()
