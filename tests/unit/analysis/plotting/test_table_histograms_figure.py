"""Histograms of tables: every table has a line, and every read is in it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.loading.table_reads import LayerReads
from analysis.plotting.table_histograms_figure import (
    MOST_BINS,
    histograms,
    table_histograms_figure,
)


def layer(label, *tables):
    reads = np.concatenate([np.array(table) for table in tables])
    return LayerReads(label=label, reads=reads, table_rows=tuple(map(len, tables)))


def test_rows_of_small_tables_are_bins():
    lines = histograms(layer("x", [0, 1, 3], [2, 2, 2]))

    assert lines.tolist() == [[0.0, 0.75, 2.25], [1.0, 1.0, 1.0]]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=4), st.integers(0, 2**31))
def test_bins_weighted_by_their_rows_have_the_mean_of_the_table(sizes, seed):
    draws = np.random.default_rng(seed)
    tables = [draws.integers(1, 50, size) for size in sizes]
    lines = histograms(layer("x", *tables))

    bins = min(MOST_BINS, max(sizes))
    assert lines.shape == (len(sizes), bins)
    for line, table in zip(lines, tables, strict=True):
        rows = np.bincount(np.arange(len(table)) * bins // len(table), minlength=bins)
        assert (np.isnan(line) == (rows == 0)).all()
        assert np.nansum(line * rows) == pytest.approx(len(table))


def test_a_panel_for_each_layer_and_place_and_a_line_for_each_table():
    figure = table_histograms_figure(
        [
            layer("layer_00_first", [1, 2, 4, 1], [0, 4, 2, 2]),
            layer("layer_00_second", [3, 3, 0, 0]),
            layer("layer_01_first", [1, 1, 1, 1], [2, 2, 2, 2]),
        ]
    )

    images = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    assert [image.shape for image in images] == [(2, 4), (1, 4), (2, 4)]
    assert images[0][0].tolist() == [-1.0, 0.0, 1.0, -1.0]
    assert images[1].tolist() == [[1.0, 1.0, -4.0, -4.0]]
    assert [axis.get_title("left") for axis in figure.axes[:2]] == ["first", "second"]


def test_nothing_counted_is_refused():
    with pytest.raises(ValueError, match="no reads"):
        table_histograms_figure([])
