"""Figure of the reads of each table: a histogram over rows as a coloured line.

Figure 4 of MemoryFormer (arXiv 2411.12992) shows such histograms of buckets.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.loading.table_reads import LayerReads, by_layer_and_place
from analysis.plotting.axes import caption
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.table_reads_figure import shown_layers

Array = NDArray[np.float64]

MOST_BINS = 256
"""Of a table; of more rows, neighbours are drawn together."""
_OCTAVES = 3.0
"""Colours end at an eighth of the mean row's reads and at eight times as many."""


def table_histograms_figure(layers: Sequence[LayerReads]) -> Figure:
    """Return a panel for every layer and place in it, with a line for each of its tables.

    Args:
        layers: Of `read_table_reads`.

    Raises:
        ValueError: If there are none.
    """
    by_layer = by_layer_and_place(layers)
    names = shown_layers(by_layer)
    places = list(dict.fromkeys(place for name in names for place in by_layer[name]))
    scale = Normalize(-_OCTAVES, _OCTAVES)
    with styled():
        figure = new_figure(2.0 + 2.6 * len(places), 1.3 + 1.2 * len(names))
        axes = figure.subplots(len(names), len(places), squeeze=False)
        image = None
        for row, name in zip(axes, names, strict=True):
            row[0].set_ylabel(f"{name.replace('_', ' ')}\ntable", fontsize=8)
            for axis, place in zip(row, places, strict=True):
                one = by_layer[name].get(place)
                if one is None:
                    axis.set_axis_off()
                    continue
                # What is never read has the lowest colour, where minus infinity would have none.
                lines = np.log2(np.maximum(histograms(one), 2.0 ** -(_OCTAVES + 1)))
                image = axis.imshow(
                    lines, cmap="RdBu_r", norm=scale, aspect="auto", interpolation="nearest"
                )
                axis.tick_params(labelsize=7)
                axis.yaxis.get_major_locator().set_params(integer=True)
        for axis, place in zip(axes[0], places, strict=True):
            axis.set_title(place or "reads", fontsize=9)
        for axis in axes[-1]:
            axis.set_xlabel(_bins_label(layers), fontsize=8)
        assert image is not None
        bar = figure.colorbar(image, ax=axes, extend="both", fraction=0.04)
        bar.set_ticks([-3, -2, -1, 0, 1, 2, 3], labels=["1/8", "1/4", "1/2", "1", "2", "4", "8"])
        bar.set_label("reads over the mean row's", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        shown = "" if len(names) == len(by_layer) else f" · {len(names)} of {len(by_layer)} layers"
        caption(figure, f"a line is a table, its rows from left to right{shown}")
    return figure


def histograms(one: LayerReads) -> Array:
    """Return reads over the mean row's by table and bin of rows (tables, bins).

    Shorter tables have as many bins as the longest; one without a row is NaN.
    """
    bins = min(MOST_BINS, max(one.table_rows))
    lines = np.full((len(one.table_rows), bins), np.nan)
    ends = np.cumsum(one.table_rows)
    for number, (end, n_rows) in enumerate(zip(ends, one.table_rows, strict=True)):
        reads = one.reads[end - n_rows : end]
        bin_of_row = np.arange(n_rows) * bins // n_rows
        rows = np.bincount(bin_of_row, minlength=bins)
        sums = np.bincount(bin_of_row, weights=reads, minlength=bins)
        mean = reads.mean() or 1.0
        lines[number] = np.divide(sums, rows * mean, where=rows > 0, out=lines[number])
    return lines


def _bins_label(layers: Sequence[LayerReads]) -> str:
    most = max(max(one.table_rows) for one in layers)
    return "row" if most <= MOST_BINS else f"rows, in {MOST_BINS} groups of neighbours"
