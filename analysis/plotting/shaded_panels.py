"""Panels of curves over an amount or a budget, shaded outside the runs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.plotting.axes import OUTSIDE, general, grid, log_scale, power_of_ten, series_handle
from analysis.plotting.style import SeriesStyle

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

FAR = 1e30
"""Where the upper end of a band without one is drawn: beyond every panel."""

WIDTH, MARKER_SIZE, MARKER_EDGE = 2.4, 6, 1.4


def draw_curve(
    axes: Axes,
    x: Array,
    curve: tuple[Array, Array, Array],
    *,
    extrapolated: Flags,
    style: SeriesStyle,
) -> None:
    """Draw a curve (m,) with the low and high end of its band."""
    y, low, high = curve
    top = np.where(np.isinf(high), FAR, high)
    firm = ~extrapolated
    joined = firm | np.append(firm[1:], False) | np.append(False, firm[:-1])
    colour, line = style.colour, style.line
    for where, alpha in ((None, 0.09), (firm.tolist(), 0.13)):
        axes.fill_between(
            x, low, top, where=where, color=colour, alpha=alpha, linewidth=0, zorder=1
        )
    axes.plot(x, y, color=colour, linewidth=1.0, linestyle=line, alpha=0.75, zorder=2)
    # Markers tell the curves apart where colours cannot be seen.
    axes.plot(
        x,
        np.where(joined & firm, y, np.nan),
        color=colour,
        linewidth=WIDTH,
        linestyle=line,
        marker=style.marker,
        markevery=max(1, len(x) // 10),
        markersize=MARKER_SIZE,
        markerfacecolor="white",
        markeredgewidth=MARKER_EDGE,
        zorder=3,
    )


def curve_handle(style: SeriesStyle, name: str) -> Line2D:
    """Return the legend's entry of a curve."""
    size = {"markersize": MARKER_SIZE, "markeredgewidth": MARKER_EDGE}
    return series_handle(style, name, linewidth=WIDTH, **size)


def shade_outside(axes: Axes, x: Array, extrapolated: Sequence[Flags]) -> None:
    """Shade where no curve rests on runs."""
    nobody = np.logical_and.reduce([flags for flags in extrapolated if len(flags) == len(x)])
    edges = np.concatenate([[x[0]], np.sqrt(x[1:] * x[:-1]), [x[-1]]])
    ends = np.flatnonzero(np.diff(nobody, prepend=False, append=False))
    for start, end in ends.reshape(-1, 2):
        axes.axvspan(edges[start], edges[end], color=OUTSIDE, linewidth=0, zorder=0)


MOST_IN_LETTERS = 1e10
"""End of an axis up to which ticks are 30 k, 100 k, 1 M; beyond they are powers of ten."""


def amount_axis(axes: Axes, label: str, x: Array | None = None) -> None:
    """Set a logarithmic axis of amounts over `x`; None: over what was drawn."""
    axes.set_xlabel(label)
    low, high = (float(v) for v in (axes.dataLim.intervalx if x is None else x[[0, -1]]))
    # FLOPs are read as powers of ten.
    log_scale(axes, "x", low, high, show=power_of_ten if high > MOST_IN_LETTERS else general)
    grid(axes)


def capital(text: str) -> str:
    """Return the text with a capital first letter, the rest as it is."""
    return text[0].upper() + text[1:]
