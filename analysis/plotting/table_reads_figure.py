"""Figure of how evenly table rows are read: a row of panels per layer.

Left the distribution of reads per row beside that of uniform reading, right the share of all reads
that the most read rows have.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray
from scipy.special import pdtr

from analysis.formatting import count
from analysis.loading.table_reads import LayerReads, by_layer_and_place
from analysis.plotting.axes import GREY, caption, general, grid, legend_above, log_scale
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.style import COLOURS

Array = NDArray[np.float64]

MOST_LAYERS = 12
"""Layers drawn; of more, these many from the first to the last."""

_MOST_POINTS = 300
"""Of one curve."""
_UNIFORM: Any = {"linewidth": 0.9, "linestyle": (0, (3.0, 2.0))}
"""Look of what uniform reading gives."""


def table_reads_figure(layers: Sequence[LayerReads]) -> Figure:
    """Return the distribution of reads over rows, and the share curve, of every layer.

    Tables of one place in a layer (chunks, hash heads) are drawn together.

    Args:
        layers: Of `read_table_reads`.

    Raises:
        ValueError: If there are none.
    """
    by_layer = by_layer_and_place(layers)
    shown = shown_layers(by_layer)
    places = list(dict.fromkeys(place for name in shown for place in by_layer[name]))
    drawn = [one for name in shown for one in by_layer[name].values()]
    edges = octaves(drawn)
    colours = {place: COLOURS[i % len(COLOURS)] for i, place in enumerate(places)}
    with styled():
        figure = new_figure(8.0, 1.1 + 1.5 * len(shown))
        axes = figure.subplots(len(shown), 2, squeeze=False, sharex="col")
        for (left, right), name in zip(axes, shown, strict=True):
            for place, one in by_layer[name].items():
                _histogram(left, one, edges, colours[place])
                _share_curve(right, one, colours[place])
            left.set_ylabel(name.replace("_", " "), fontsize=9)
            for axis in (left, right):
                axis.tick_params(labelsize=8)
                grid(axis)
        axes[0, 0].set_title("Share of rows by their reads", fontsize=9)
        axes[0, 1].set_title("Share of reads, most read rows first", fontsize=9)
        _scales(axes, drawn, edges)
        if len(places) > 1:
            handles = [axes[0, 0].plot([], [], color=c, label=p)[0] for p, c in colours.items()]
            legend_above(figure, handles, most_columns=5, fontsize=8)
        caption(figure, _reading(layers, n_shown=len(shown), n_layers=len(by_layer)))
    return figure


def shown_layers(names: Collection[str]) -> list[str]:
    """Return the layers that are drawn: of many, MOST_LAYERS from the first to the last."""
    all_names = list(names)
    last = len(all_names) - 1
    chosen = np.unique(np.linspace(0, last, min(len(all_names), MOST_LAYERS)).round())
    return [all_names[int(i)] for i in chosen]


def octaves(layers: Sequence[LayerReads]) -> Array:
    """Return the edges of bins of reads over the mean row's, each twice as wide as the one before.

    They hold every row that was read. A bin of a factor of two that is within reach of one read
    holds a whole number of them, so none stays empty for want of one.
    """
    means = np.array([one.reads.mean() for one in layers])
    most = np.array([one.reads.max() for one in layers])
    ends = np.log2([(1 / means).min() * (1 - 1e-9), (most / means).max()])
    first, last = np.floor(ends + 0.5)
    edges: Array = 2.0 ** (np.arange(first, last + 2) - 0.5)
    return edges


def shares_of_rows(reads: NDArray[np.int64], edges: Array) -> tuple[Array, Array]:
    """Return the shares of rows never read, and in each bin: as counted, and if reads were uniform.

    Reads of one of many rows are Poisson if rows are read at random.
    """
    mean = reads.mean()
    counted = np.histogram(reads[reads > 0] / mean, bins=edges)[0] / len(reads)
    # scipy.stats takes half a second to import.
    below = pdtr(np.ceil(edges * mean) - 1, mean)
    never = np.exp(-mean)
    return (
        np.array([(reads == 0).mean(), *counted]),
        np.array([never, *np.diff(np.maximum(below, never))]),
    )


def _histogram(axis: Axes, one: LayerReads, edges: Array, colour: str) -> None:
    """Draw rows by their reads over the mean row's, never read rows apart, uniform ones dashed."""
    looks: tuple[Any, Any] = ({"linewidth": 1.5}, _UNIFORM)
    for shares, look in zip(shares_of_rows(one.reads, edges), looks, strict=True):
        axis.stairs(shares[:1], _never_bin(edges), color=colour, **look)
        axis.stairs(shares[1:], edges, color=colour, **look)


def _never_bin(edges: Array) -> Array:
    ends: Array = edges[0] * np.array([0.2, 0.4])
    return ends


def share_curve(reads: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return shares of rows, most read first, and the share of all reads that they have.

    Thinned out to a few hundred points, of which the first is one row and the last all.
    """
    n_rows = len(reads)
    taken = np.unique(np.geomspace(1, n_rows, _MOST_POINTS).round().astype(np.int64))
    cumulative = np.cumsum(np.sort(reads)[::-1])
    return taken / n_rows, cumulative[taken - 1] / max(1, int(cumulative[-1]))


def _share_curve(axis: Axes, one: LayerReads, colour: str) -> None:
    x, y = share_curve(one.reads)
    axis.plot(x, y, color=colour, linewidth=1.5)


def _scales(axes: NDArray[Any], layers: Sequence[LayerReads], edges: Array) -> None:
    """Give the panels of a column one logarithmic scale; rows never read stand left of it."""
    smallest = min(1 / len(one.reads) for one in layers)
    never = float(np.sqrt(_never_bin(edges).prod()))
    for left, right in axes:
        log_scale(left, "x", edges[0], edges[-1])
        marks = [never, *left.get_xticks()]
        left.set_xlim(_never_bin(edges)[0] / 1.3, 1.3 * edges[-1])
        left.xaxis.set_major_locator(FixedLocator(marks))
        left.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: "0" if value <= 1.01 * never else general(value))
        )
        left.set_ylim(bottom=0)
        log_scale(right, "x", min(smallest, 0.5), 1.0)
        right.set_ylim(0, 1.02)
        even = np.geomspace(min(smallest, 0.5), 1.0, _MOST_POINTS)
        right.plot(even, even, color=GREY, zorder=1, **_UNIFORM)
    axes[-1, 0].set_xlabel("Reads of a row over the mean row's", fontsize=9)
    axes[-1, 1].set_xlabel("Share of rows", fontsize=9)


def _reading(layers: Sequence[LayerReads], *, n_shown: int, n_layers: int) -> str:
    total = sum(int(one.reads.sum()) for one in layers)
    parts = [
        f"{count(total)} reads of held-out text",
        "dashed: uniform reading",
        "a bin is a factor of 2, apart from 0: never read",
    ]
    if n_shown < n_layers:
        parts.append(f"{n_shown} of {n_layers} layers")
    return " · ".join(parts)
