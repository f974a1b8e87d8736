"""Figures of an experimental design: candidates among the runs, gain of each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.plotting.axes import (
    GREY,
    INK,
    OUTSIDE,
    caption,
    grid,
    legend_above,
    log_scale,
    margins,
    points,
    rounded,
)
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.fit_panels import outcome_label
from analysis.plotting.style import SeriesStyle, series_styles
from analysis.scaling.design_result import ExperimentalDesign, RankedCandidate
from analysis.scaling.design_targets import LossAt
from analysis.scaling.run_columns import size_of

Point = tuple[float, float]


def design_figure(
    design: ExperimentalDesign, *, styles: Mapping[str, SeriesStyle] | None = None
) -> Figure:
    """Return candidates in the plane of sizes and tokens, and interval width against hours.

    In the plane, larger markers remove more of the target's variance. Without tokens in the law,
    the plane has the outcome in their place, and candidates lie on its axis, at their size.

    Args:
        design: Of `next_runs`.
        styles: By architecture; None: by the order of the laws.
    """
    given = styles or series_styles(design.laws.by_name)
    styles = {name: given[name] for name in design.laws.by_name}
    with styled():
        figure = new_figure(10.4, 4.9)
        plane, price = figure.subplots(1, 2)
        _draw_plane(plane, design, styles)
        _draw_price(price, design, styles)
        numbers = {id(r.candidate): str(i) for i, r in enumerate(design.chosen, 1)}
        for r in design.ranked:
            if id(r.candidate) not in numbers:
                continue
            for axes, at in ((plane, _place(r)), (price, (r.candidate.gpu_hours, r.width))):
                if np.isfinite(at[1]):
                    look: Any = {"size": 11, "weight": "bold", "textcoords": "offset points"}
                    axes.annotate(numbers[id(r.candidate)], at, xytext=(7, 7), zorder=6, **look)
        for axes in (plane, price):
            grid(axes)
        legend_above(figure, _handles(design, styles), most_columns=6, fontsize=9)
        caption(figure, f"target: {design.target_words}", size=9)
    return figure


def _draw_plane(axes: Axes, design: ExperimentalDesign, styles: Mapping[str, SeriesStyle]) -> None:
    """Draw runs, candidates and the target over size and tokens, shaded outside the runs."""
    xs, ys = [], []
    for name, law in design.laws.by_name.items():
        fit = law.fit
        rows = np.ones(len(fit.y), dtype=bool)
        if law.group is not None:
            rows = fit.inputs["group"] == law.group
        x, y = size_of(fit.inputs)[rows], fit.inputs.get("tokens", fit.y)[rows]
        look: Any = {"linestyle": "none", "marker": ".", "markersize": 5, "alpha": 0.6}
        axes.plot(x, y, color=styles[name].colour, zorder=3, **look)
        xs += [x.min(), x.max()]
        ys += [y.min(), y.max()]
    corner, extent = (min(xs), min(ys)), (max(xs) - min(xs), max(ys) - min(ys))
    axes.set_facecolor(OUTSIDE)
    axes.add_patch(Rectangle(corner, *extent, facecolor="white", edgecolor="none", zorder=0.5))
    for r in design.ranked:
        place = _place(r)
        size = 4 + 14 * np.sqrt(1 - r.width**2)
        look = points(styles[r.candidate.architecture], size, edge=1.3, face="none")
        xs.append(place[0])
        if np.isfinite(place[1]):
            axes.plot(*place, **look, zorder=4)
            ys.append(place[1])
        else:  # no outcome is known yet: on the axis, at its size
            on_axis = axes.get_xaxis_transform()
            axes.plot(place[0], 0.0, transform=on_axis, clip_on=False, **look, zorder=4)
    target = _target_place(design)
    if target is not None:
        axes.plot(*target, marker="*", markersize=16, color=INK, linestyle="none", zorder=5)
        xs.append(target[0])
        ys.append(target[1])
    log_scale(axes, "x", *margins(xs, least=1.15), show=_tick)
    log_scale(axes, "y", *margins(ys, least=1.15), show=_tick)
    axes.set(title="Candidates among the runs", xlabel="Parameters N")
    any_tokens = any("tokens" in r.candidate.inputs for r in design.ranked)
    axes.set_ylabel("Training tokens D" if any_tokens else outcome_label(design.laws.outcome))


def _draw_price(axes: Axes, design: ExperimentalDesign, styles: Mapping[str, SeriesStyle]) -> None:
    """Draw each candidate's interval width over its hours, and the steps of those chosen."""
    for r in design.ranked:
        look = points(styles[r.candidate.architecture], 6.5, edge=1.3)
        axes.plot(r.candidate.gpu_hours, r.width, **look, zorder=3)
    shown = [r.candidate.gpu_hours for r in design.ranked]
    if design.chosen:
        hours = np.cumsum([r.candidate.gpu_hours for r in design.chosen])
        shown += hours.tolist()
        widths = [1.0, *(r.width for r in design.chosen)]
        look = {"where": "post", "color": INK, "linewidth": 1.6, "zorder": 2}
        axes.step(np.append(hours[0], hours), widths, **look)
    axes.set(
        title="What a run brings for its price",
        xlabel=f"{design.unit[0].upper()}{design.unit[1:]}",
        ylabel="Width of the interval afterwards / now",
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))  # as many digits as ticks need
    log_scale(axes, "x", *margins(shown, least=1.15), show="{:g}".format)


def _handles(design: ExperimentalDesign, styles: Mapping[str, SeriesStyle]) -> Sequence[Artist]:
    shown = {r.candidate.architecture for r in design.ranked}
    handles: list[Artist] = [
        Line2D([], [], label=f"candidate, {n}", **points(s, 8, edge=1.3, face="none"))
        for n, s in styles.items()
        if n in shown
    ]
    run = Line2D([], [], linestyle="none", marker=".", color=GREY, label="run that is there")
    handles.append(run)
    if _target_place(design) is not None:
        star: Any = {"linestyle": "none", "marker": "*", "markersize": 12}
        handles.append(Line2D([], [], color=INK, label="target", **star))
    if design.chosen:
        handles.append(Line2D([], [], color=INK, linewidth=1.6, label="chosen, in order"))
    handles.append(Patch(facecolor=OUTSIDE, edgecolor="#CCCCCC", label="outside the runs"))
    return handles


def _place(r: RankedCandidate) -> Point:
    """Return size and tokens of a candidate; NaN where its law has no tokens."""
    return size_of(r.candidate.inputs), r.candidate.inputs.get("tokens", np.nan)


def _target_place(design: ExperimentalDesign) -> Point | None:
    """Return size and tokens of a target that is a loss; None for other targets."""
    target = design.target
    if isinstance(target, LossAt) and "tokens" in target.inputs:
        return size_of(target.inputs), target.inputs["tokens"]
    return None


def _tick(value: float) -> str:
    return rounded(value) if value >= 1e3 else f"{value:g}"
