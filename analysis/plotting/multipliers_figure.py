"""Figures of compute multipliers: one panel per cost measure and tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from analysis.plotting.axes import (
    INK,
    OUTSIDE,
    band_caption,
    lacks_bands,
    legend_above,
    log_scale,
    rounded,
)
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.fit_panels import MISFIT_LINE, is_misfit, misfit_words
from analysis.plotting.shaded_panels import (
    FAR,
    amount_axis,
    capital,
    curve_handle,
    draw_curve,
    shade_outside,
)
from analysis.plotting.style import SeriesStyle, series_styles
from analysis.scaling.compute_multiplier import Multipliers

Array = NDArray[np.float64]

MEASURE_WORDS = {
    "flops": "FLOPs",
    "seconds": "Seconds",
    "bytes_moved": "Bytes read",
    "stored_bytes": "Bytes stored",
}

WIDEST = 5.0
"""Factor beyond the curves up to which intervals that rest on runs widen a panel."""

ARROW = "arrow: the band goes on outside the panel"


def multipliers_figure(
    curves: Sequence[Multipliers],
    *,
    size: bool = False,
    styles: Mapping[str, SeriesStyle] | None = None,
) -> Figure:
    """Return one panel per measure and its tokens, one colour per candidate.

    Args:
        curves: All of one reference; several candidates and measures.
        size: Draw the size multiplier in place of the amount multiplier.
        styles: By architecture; None: by the order of their names.

    Raises:
        ValueError: If there is no curve, or references differ.
    """
    references = {c.reference for c in curves}
    if len(references) != 1:
        raise ValueError(
            f"figure: needs curves of one reference, got {sorted(references) or 'none'}"
        )
    styles = styles or series_styles(sorted(references | {c.candidate for c in curves}))
    panels: dict[tuple[str, str], list[Multipliers]] = {}
    for curve in curves:
        panels.setdefault((curve.measure.name, _tokens_words(curve)), []).append(curve)
    with styled():
        n_columns = min(len(panels), 2)
        n_rows = -(-len(panels) // n_columns)
        figure = new_figure(4.9 * n_columns, 3.7 * n_rows + 0.7)
        figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]
        axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        leaves = [
            _draw_panel(axis, members, tokens, styles, size=size)
            for axis, ((_, tokens), members) in zip(axes, panels.items(), strict=False)
        ]
        legend_above(figure, _handles(curves, styles), most_columns=3 * n_columns)
        misfits = sorted({n for c in curves for n, f in c.fits.items() if is_misfit(f)})
        outside = any(c.extrapolated.any() for c in curves)
        words = (
            f"shaded: an amount, or what {curves[0].reference} needs for the same"
            f" {curves[0].outcome}, is outside the runs"
            if outside
            else "",
            ARROW if any(leaves) else "",
            misfit_words(misfits),
        )
        lacking = lacks_bands(_shown(curve, size=size)[:2] for curve in curves)
        band_caption(figure, curves[0].level, " · ".join(filter(None, words)), lacking=lacking)
    return figure


def _draw_panel(
    axes: Axes,
    curves: Sequence[Multipliers],
    tokens: str,
    styles: Mapping[str, SeriesStyle],
    *,
    size: bool,
) -> bool:
    """Draw one panel; return whether a band leaves it."""
    first = curves[0]
    by_tokens = _tokens_vary(first)
    bands = []
    for curve in curves:
        x, style = _x(curve, by_tokens), styles[curve.candidate]
        if curve.verdict.is_misfit:
            style = replace(style, line=MISFIT_LINE)
        shown = _shown(curve, size=size)
        draw_curve(axes, x, shown, extrapolated=curve.extrapolated, style=style)
        bands.append((curve, shown))
        for i in curve.refusals:
            at: Any = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(x[i], 0.97, marker="x", markersize=5, color=style.colour, **at)
    shade_outside(axes, _x(first, by_tokens), [c.extrapolated for c in curves])
    axes.axhline(1.0, color=INK, linewidth=1, zorder=1.5)
    label = first.measure.label
    what = "Size" if size else MEASURE_WORDS.get(first.measure.name, capital(label))
    axes.set_title(f"At equal {label}")
    axes.set_ylabel(f"{what} that {first.reference}\nneeds for the same {first.outcome} (×)")
    amount_axis(axes, (f"Training tokens, {label}" if by_tokens else capital(label)) + tokens)
    low, high = _limits(bands)
    log_scale(axes, "y", low, high, show="{:g}".format, most=7)
    leaves = False
    for i, (curve, (_, lows, highs)) in enumerate(bands):
        x, colour = _x(curve, by_tokens), styles[curve.candidate].colour
        # Of arrows at one place the one behind is longer.
        length = 0.06 + 0.09 * (1 - i / len(bands))
        for ends, edge in ((1 / lows, 0.0), (highs, 1.0)):
            for place in _leaving(x, ends, high if edge else 1 / low):
                leaves = True
                _draw_arrow(axes, place, edge, length=length, colour=colour)
    return leaves


def _shown(curve: Multipliers, *, size: bool) -> tuple[Array, Array, Array]:
    """Return a curve (m,) with the low and high end of its band."""
    if size:
        return curve.size, curve.size_low, curve.size_high
    return curve.multiplier, curve.low, curve.high


def _limits(bands: Sequence[tuple[Multipliers, tuple[Array, Array, Array]]]) -> tuple[float, float]:
    """Return the ends of a panel: of curves, and of bands on runs that are not much wider."""
    values = np.concatenate([shown[0] for _, shown in bands])
    values = values[np.isfinite(values)]
    low, high = min([0.8, *values]), max([1.25, *values])
    ends = np.concatenate([e[~curve.extrapolated] for curve, shown in bands for e in shown[1:]])
    ends = ends[(ends >= low / WIDEST) & (ends <= high * WIDEST)]
    return min([low / 1.5, *(ends / 1.1)]), max([high * 1.5, *(ends * 1.1)])


def _leaving(x: Array, ends: Array, limit: float) -> list[float]:
    """Return where a band's upper end (m,) crosses a limit; the middle where all is beyond it."""
    y = np.log(np.clip(ends, 1 / FAR, FAR))
    beyond = y > np.log(limit)
    places = []
    for start, end in np.flatnonzero(np.diff(beyond, prepend=False, append=False)).reshape(-1, 2):
        sides = ((start - 1, start), (end, end - 1))
        inside = [(i, j) for i, j in sides if 0 <= i < len(x) and np.isfinite(y[i])]
        for i, j in inside:
            share = (np.log(limit) - y[i]) / (y[j] - y[i])
            places.append(float(x[i] * (x[j] / x[i]) ** share))
        if not inside:
            places.append(float(np.sqrt(x[start] * x[end - 1])))
    return places


def _draw_arrow(axes: Axes, x: float, edge: float, *, length: float, colour: str) -> None:
    """Draw an arrow to the lower (0) or upper (1) edge of a panel, as long as a share of it."""
    axes.annotate(
        "",
        xy=(x, edge),
        xytext=(x, abs(edge - length)),
        xycoords=axes.get_xaxis_transform(),
        arrowprops={"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0},
        annotation_clip=False,
    )


def _handles(curves: Sequence[Multipliers], styles: Mapping[str, SeriesStyle]) -> list[Artist]:
    reference = curves[0].reference
    candidates = sorted({c.candidate for c in curves})
    handles: list[Artist] = [curve_handle(styles[name], name) for name in candidates]
    handles.append(Line2D([], [], color=INK, linewidth=1, label=f"{reference}: 1"))
    if any(c.extrapolated.any() for c in curves):
        handles.append(Patch(color=OUTSIDE, label="outside the runs of either"))
    if any(c.refusals for c in curves):
        cross: Any = {"linestyle": "none", "marker": "x", "color": "#444444"}
        handles.append(Line2D([], [], label="never reached: no number", **cross))
    return handles


def _x(curve: Multipliers, by_tokens: bool) -> Array:
    return curve.tokens if by_tokens else curve.amount


def _tokens_vary(curve: Multipliers) -> bool:
    return bool(np.isfinite(curve.tokens).all() and np.ptp(curve.tokens) > 0)


def _tokens_words(curve: Multipliers) -> str:
    if np.isnan(curve.tokens).any():
        return ""
    if _tokens_vary(curve):
        return f" {rounded(float(curve.amount[0]))}"
    return f" (both trained on {rounded(float(curve.tokens[0]))} tokens)"
