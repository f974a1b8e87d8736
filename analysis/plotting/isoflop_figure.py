"""Figures of isoFLOP profiles: curves of the budgets, line through the optima."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.fitting.verdict import VerdictStatus
from analysis.plotting.axes import GREY, log_scale
from analysis.plotting.canvas import styled
from analysis.plotting.fit_panels import (
    BEYOND,
    LABELS,
    finish,
    hatch_outside,
    label_axes,
    outcome_label,
    panel_grid,
    side_title,
)
from analysis.plotting.style import SeriesStyle, series_styles
from analysis.scaling.isoflop import IsoflopFit
from analysis.scaling.isoflop_budget import Budget

Array = NDArray[np.float64]


def isoflop_figure(fit: IsoflopFit, *, size: str = "params", outcome: str | None = None) -> Figure:
    """Return the budgets with their curves, and the line through the optima beside the law's.

    Args:
        fit: Of `fit_isoflop`.
        size: params or tokens.
        outcome: Label; the name of what was fitted if None.
    """
    line = fit.lines[size]
    budgets = list(line.budgets)
    styles = series_styles(f"{b.compute:.3g} FLOPs" for b in budgets)
    with styled():
        figure, axes = panel_grid(2)
        upper, lower = axes[:, 0]
        for budget, style in zip(budgets, styles.values(), strict=True):
            _draw_budget(upper, lower, budget, style)
        label_axes(upper, lower, size, outcome or outcome_label(fit.outcome), "Residual")
        if line.method == "akima":
            lower.yaxis.set_visible(False)
            words = "the curve goes through the mean losses"
            at: Any = {"transform": lower.transAxes, "ha": "center", "va": "center"}
            lower.text(0.5, 0.5, words, color=GREY, **at)
        sizes = np.concatenate([b.x for b in budgets])
        log_scale(upper, "x", float(sizes.min()) / 1.2, float(sizes.max()) * 1.2)
        upper.set_title("Budgets; ring: optimum, bar: its interval")
        _draw_line(axes[:, 1], fit, size, list(styles.values()))
        # A legend of all budgets would be higher than the panels.
        shown = dict(list(styles.items())[:: max(1, len(styles) // 8)])
        doubts = fit.verdict.status is not VerdictStatus.ADEQUATE
        verdict = str(fit.verdict) if doubts else ""
        # A verdict of no line names the budgets itself.
        unusable = [b.sentence for b in budgets if not b.usable and b.sentence not in verdict]
        about_budgets = "; ".join(unusable[:3]) if unusable else line.sentence
        said = [] if about_budgets in verdict else [about_budgets]
        said += [verdict] if doubts else []
        finish(figure, shown, {}, said, level=line.level, band="band: line over resamples")
    return figure


def _draw_budget(upper: Axes, lower: Axes, budget: Budget, style: SeriesStyle) -> None:
    shown: Any = {
        "linestyle": "none",
        "marker": style.marker,
        "markersize": 4.5,
        "markeredgecolor": style.colour,
    }
    face = style.colour if budget.usable else "white"
    upper.plot(budget.x, budget.y, markerfacecolor=face, **shown)
    if budget.optimum is None or budget.loss is None:
        upper.plot(budget.x, budget.y, linestyle=":", color=style.colour, linewidth=1)
        return
    if budget.coefficients is not None:
        loss = np.polynomial.Polynomial(budget.coefficients)
        at = np.linspace(np.log(budget.x.min()), np.log(budget.x.max()), 80)
        upper.plot(np.exp(at), loss(at), color=style.colour, linestyle=style.line, linewidth=1.4)
        residuals = budget.y - loss(np.log(budget.x))
        lower.plot(budget.x, residuals, markerfacecolor="white", **shown)
    else:
        sizes, member = np.unique(budget.x, return_inverse=True)
        rows = member.reshape(-1)
        means = np.bincount(rows, weights=budget.y) / np.bincount(rows)
        upper.plot(sizes, means, color=style.colour, linewidth=1, alpha=0.6)
    if budget.interval is not None:
        bar: Any = {"color": "black", "linewidth": 2.4, "solid_capstyle": "butt"}
        upper.plot(budget.interval, [budget.loss] * 2, zorder=4, **bar)
    ring: Any = {"marker": "o", "markersize": 8, "markerfacecolor": "none"}
    upper.plot([budget.optimum], [budget.loss], markeredgecolor="black", zorder=5, **ring)


def _draw_line(
    axes: Sequence[Axes], fit: IsoflopFit, size: str, styles: Sequence[SeriesStyle]
) -> None:
    upper, lower = axes
    line = fit.lines[size]
    compute = np.asarray([b.compute for b in line.budgets])
    at = np.geomspace(compute.min() / 1.5, compute.max() * BEYOND**2, 80)
    said = []
    if line.usable:
        values, low, high = np.asarray([line.at(c) for c in at]).T
        upper.plot(at, values, color="#000000", linewidth=1.8)
        if np.isfinite([low, high]).all():
            upper.fill_between(at, low, high, color="#000000", alpha=0.15, linewidth=0)
        said.append(f"line: exponent {line.exponent:.3f}")
    if fit.parametric.usable:
        which = 0 if size == "params" else 1
        optima = [fit.parametric_optimum(c)[which] for c in at]
        upper.plot(at, optima, color="#D55E00", linestyle=(0, (5, 2)), linewidth=1.6)
        said.append(f"dashed: parametric law {fit.exponents[size][0]:.3f}")
    for budget, style in zip(line.budgets, styles, strict=True):
        if budget.optimum is None:
            continue
        if budget.interval is not None:
            upper.plot([budget.compute] * 2, budget.interval, color=style.colour, linewidth=2)
        point: Any = {"linestyle": "none", "marker": style.marker, "color": style.colour}
        upper.plot([budget.compute], [budget.optimum], **point)
        if line.usable:
            residual = budget.optimum / line.at(budget.compute)[0] - 1
            lower.plot([budget.compute], [residual], **point)
    hatch_outside(axes, float(compute.min()), float(compute.max()))
    upper.set_yscale("log")
    label_axes(
        upper, lower, "training_flops", f"Optimal {LABELS[size].lower()}", "Residual (relative)"
    )
    log_scale(upper, "x", at[0], at[-1])
    log_scale(upper, "y", *upper.get_ylim())
    side_title(upper, "; ".join(said))
