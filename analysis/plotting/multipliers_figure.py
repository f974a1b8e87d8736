"""Figures of multipliers between architectures: one panel per cost measure and tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from analysis.plotting.axes import INK, OUTSIDE, band_caption, legend_above, log_scale, rounded
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.fit_panels import MISFIT_LINE, is_misfit, misfit_words
from analysis.plotting.shaded_panels import (
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


def multipliers_figure(curves: Sequence[Multipliers], *, size: bool = False) -> Figure:
    """Return one panel per measure and its tokens, one colour per candidate.

    Args:
        curves: All of one reference; several candidates and measures.
        size: Draw the size multiplier in place of the amount multiplier.

    Raises:
        ValueError: If there is no curve, or references differ.
    """
    references = {c.reference for c in curves}
    if len(references) != 1:
        raise ValueError(
            f"figure: needs curves of one reference, got {sorted(references) or 'none'}"
        )
    styles = series_styles(sorted(references | {c.candidate for c in curves}))
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
        for axis, ((_, tokens), members) in zip(axes, panels.items(), strict=False):
            _draw_panel(axis, members, tokens, styles, size=size)
        legend_above(figure, _handles(curves, styles), most_columns=3 * n_columns)
        misfits = sorted({n for c in curves for n, f in c.fits.items() if is_misfit(f)})
        band_caption(figure, curves[0].level, misfit_words(misfits))
    return figure


def _draw_panel(
    axes: Axes,
    curves: Sequence[Multipliers],
    tokens: str,
    styles: dict[str, SeriesStyle],
    *,
    size: bool,
) -> None:
    first = curves[0]
    by_tokens = _tokens_vary(first)
    ends: list[float] = []
    for curve in curves:
        x, style = _x(curve, by_tokens), styles[curve.candidate]
        if curve.verdict.is_misfit:
            style = replace(style, line=MISFIT_LINE)
        shown = (curve.multiplier, curve.low, curve.high)
        if size:
            shown = (curve.size, curve.size_low, curve.size_high)
        draw_curve(axes, x, shown, extrapolated=curve.extrapolated, style=style)
        ends += shown[0][np.isfinite(shown[0])].tolist()
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
    # The curves set the scale, not how far an uncertain band reaches.
    low, high = min([0.8, *ends]) / 1.5, max([1.25, *ends]) * 1.5
    log_scale(axes, "y", low, high, show="{:g}".format, most=7)


def _handles(curves: Sequence[Multipliers], styles: dict[str, SeriesStyle]) -> list[Artist]:
    reference = curves[0].reference
    handles: list[Artist] = [curve_handle(s, n) for n, s in styles.items() if n != reference]
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
