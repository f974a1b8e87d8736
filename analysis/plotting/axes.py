"""Axes of all figures: log scales, ticks, grids, bands, legends, captions."""

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from analysis.formatting import count
from analysis.plotting.style import SeriesStyle

Array = NDArray[np.float64]

GREY = "#555555"
"""Of captions and of titles that are none."""

INK = "#222222"
"""Of lines that belong to no series."""

OUTSIDE = "#F0F0F0"
"""Ground on which no curve rests on runs."""


def ticks(low: float, high: float, *, most: int = 8) -> list[float]:
    """Return two to `most` round numbers from `low` to `high` for a logarithmic axis."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for leads in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        found = [v for d in decades for lead in leads if low <= (v := lead * 10.0**d) <= high]
        if len(found) >= 3:
            # Of too many, every second, every third, and so on.
            return found[:: math.ceil(len(found) / most)]
    # Less than a decade: even steps are rounder there.
    even = MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(v) for v in even if low <= v <= high]


def rounded(value: float) -> str:
    """Return a round number as `count` does, without the zeros behind its point."""
    text = count(value)
    return re.sub(r"\.?0+(?= |$)", "", text) if "." in text else text


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float) -> str:
    """Return a number as a power of ten: 10¹², 3·10¹²."""
    exponent = int(np.floor(np.log10(value) + 1e-9))
    lead = f"{value / 10**exponent:.3g}"
    # Raised digits of the font: matplotlib's mathematical text takes a parser and 30 ms a label.
    power = f"10{str(exponent).translate(_RAISED)}"
    return power if lead == "1" else f"{lead}·{power}"


def general(value: float) -> str:
    """Return a tick of any scale: plain below 1,000, with k, M or G up to 1e15, then a power."""
    if not 1e-2 <= value < 1e15:
        return power_of_ten(value)
    return f"{value:g}" if value < 1000 else rounded(value)


def log_scale(
    axes: Axes,
    which: Literal["x", "y"],
    low: float,
    high: float,
    *,
    show: Callable[[float], str] = general,
    most: int = 6,
) -> None:
    """Make one axis logarithmic from `low` to `high`, with round ticks and nothing between them."""
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(ticks(low, high, most=most)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_locator(NullLocator())


def margins(values: Iterable[float], *, least: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis, a factor of at least `least` beyond the values."""
    array = np.asarray(list(values))
    low, high = float(array.min()), float(array.max())
    margin = max((high / low) ** 0.06, least)
    return low / margin, high * margin


def outcome_limits(values: Iterable[float], outcome: str) -> tuple[float, float]:
    """Return the ends of an outcome's axis.

    The runs set the scale: the band of a poor fit may leave the panel, the points may not.
    """
    array = np.asarray(list(values))
    low, high = float(array.min()), float(array.max())
    span = high - low or abs(high) or 1.0
    low, high = low - 0.12 * span, high + 0.12 * span
    return (max(low, -0.02), min(high, 1.02)) if outcome == "factual_recall" else (low, high)


def grid(axes: Axes) -> None:
    """Draw a pale grid behind everything else."""
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)


def points(style: SeriesStyle, size: float, *, edge: float = 1.0, face: str = "white") -> Any:
    """Return matplotlib's options for the hollow markers of a series, without a line."""
    return {
        "linestyle": "none",
        "marker": style.marker,
        "markersize": size,
        "markeredgewidth": edge,
        "markerfacecolor": face,
        "markeredgecolor": style.colour,
    }


def series_handle(style: SeriesStyle, name: str, **options: Any) -> Line2D:
    """Return the legend's entry of a series."""
    look = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
    return Line2D([], [], label=name, markerfacecolor="white", **{**look, **options})


def legend_above(
    figure: Figure, handles: Sequence[Artist], *, most_columns: int, **options: Any
) -> None:
    """Put one legend above all panels, in as many columns as the figure is wide enough for."""
    for columns in range(min(len(handles), most_columns), 0, -1):
        legend = figure.legend(
            handles=list(handles),
            loc="outside upper center",
            ncols=columns,
            frameon=False,
            **options,
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


CAPTION_LETTERS = 104.0
"""Letters of a caption that fit into an inch, times its size in points."""


def caption_lines(text: str, width: float, *, size: float = 8) -> list[str]:
    """Return a caption in lines of about one length for a figure `width` inches wide."""
    most = int(CAPTION_LETTERS / size * width)

    def wrapped(letters: int) -> list[str]:
        return textwrap.wrap(text, letters, break_on_hyphens=False)

    lines = wrapped(most)
    least = max((len(word) for word in text.split()), default=1)
    even = (wrapped(letters) for letters in range(min(least, most), most))
    return next((shorter for shorter in even if len(shorter) <= len(lines)), lines)


def caption(figure: Figure, text: str, *, size: float = 8, **options: Any) -> None:
    """Write below all panels how to read them, in lines as wide as the figure."""
    lines = caption_lines(text, figure.get_figwidth(), size=size)
    figure.supxlabel("\n".join(lines), fontsize=size, color=GREY, **options)


NO_BAND = "too few runs for an interval"
"""Why curves of architecture laws have no band."""


def lacks_bands(curves: Iterable[tuple[Array, Array]]) -> bool:
    """Return whether curves have values (m,), but none a lower end of a band (m,) anywhere.

    An end is NaN where nothing was resampled; an infinite one is an end.
    """
    drawn = list(curves)
    known = any(np.isfinite(values).any() for values, _ in drawn)
    return known and all(np.isnan(low).all() for _, low in drawn)


def band_caption(figure: Figure, level: float, further: str = "", *, lacking: bool = False) -> None:
    """Write below all panels what the bands of architecture laws are, or that there are none."""
    words = f"band: {level:.0%} of resampled runs, seeds together"
    if lacking:
        words = f"no band: {NO_BAND}"
    caption(figure, f"{words} · {further}" if further else words)
