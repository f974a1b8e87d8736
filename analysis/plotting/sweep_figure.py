"""Figures of a sweep: outcome against size per series, with fitted curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from analysis.fitting.result import LawFit
from analysis.loading.load import Runs
from analysis.plotting.axes import (
    caption,
    grid,
    log_scale,
    margins,
    outcome_limits,
    points,
    power_of_ten,
    rounded,
    series_handle,
)
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.fit_panels import LABELS, MISFIT_LINE, Y_LABELS, is_misfit, misfit_words
from analysis.plotting.setting_figure import arm_styles, setting_figure
from analysis.plotting.style import SeriesStyle, marker_size, series_styles
from analysis.scaling.series_curves import over_tables
from analysis.scaling.sweep_summary import SweepFits
from analysis.scaling.tuned_setting import tuned_setting

X_WORDS = {
    "total_params": "parameters",
    "training_flops": "training compute",
    "active_params": "active parameters",
    "memory_params": "memory parameters",
}

MOST_ABOVE = 6
"""Most series whose names fit above the panels.

With more, the names are at the right, and markers and bands are lighter."""


def sweep_figure(runs: Runs, fits: SweepFits) -> Figure:
    """Return the figure of a sweep: accuracy against parameters, and against training FLOPs.

    Both panels are needed because a memory table adds parameters and hardly any FLOPs: it moves a
    point to the right in the left panel, and upward in the right panel. Where curves run over the
    tables of one preset, the panels are against memory parameters, and against all parameters.
    Without factual recall (a text corpus) both panels show the loss. Where one setting was tuned at
    one size, no curve over sizes is possible: outcomes are then drawn against that setting.

    Raises:
        ValueError: If the table has no outcome to draw.
    """
    table = runs.table
    shown = [
        name
        for name in ("factual_recall", "answer_nll", "loss")
        if name in table and table[name].notna().any()
    ]
    if not len(table) or not shown:
        raise ValueError(
            "figure: no run with factual recall, answer NLL or loss; finish a trial first"
        )
    tuned = tuned_setting(table, fits)
    if tuned is not None:
        return setting_figure(runs, tuned, shown[0])
    sizes = ["total_params", *(["training_flops"] if "training_flops" in table else [])]
    if any(over_tables(rows) for _, rows in table.groupby(table["configuration"].map(fits.series))):
        sizes = ["memory_params", "total_params"]
    panels = [(shown[0], size) for size in sizes]
    styles = sweep_styles(runs, fits)
    crowded = len(styles) > MOST_ABOVE
    with styled():
        figure = new_figure(
            4.9 * len(panels) + 2.0 * crowded,
            6.2 if crowded else 4.4,
            layout=ConstrainedLayoutEngine(wspace=0.05),
        )
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (outcome, x) in zip(axes, panels, strict=True):
            for name, style in styles.items():
                _draw_series(axis, runs, fits, name, style, outcome=outcome, x=x, crowded=crowded)
            _label(axis, runs, outcome=outcome, x=x)
        fitted = {name for name in styles for panel in panels if _curve(fits, name, panel)}
        ordered = _legend_order(runs, fits, styles, panels[0], crowded=crowded)
        figure.legend(
            handles=[
                _handle(style, name, fitted=name in fitted, crowded=crowded)
                for name, style in ordered
            ],
            loc="outside right upper" if crowded else "outside upper center",
            ncols=1 if crowded else min(len(styles), 4),
            frameon=False,
            handlelength=3.4 if crowded else 2.2,
            fontsize=9 if crowded else 10,
        )
        caption(figure, _reading(runs, fits, panels))
    return figure


def _curve(fits: SweepFits, series: str, panel: tuple[str, str]) -> LawFit | None:
    """Return the curve of a series in a panel, None without a usable one."""
    fit = fits.curve(series, outcome=panel[0], x=panel[1])
    return fit if fit is not None and fit.usable else None


def _handle(style: SeriesStyle, name: str, *, fitted: bool, crowded: bool) -> Line2D:
    size = marker_size(style.marker, 7 if crowded else 8)
    line: Any = {"linewidth": 2} if fitted else {"linewidth": 1.2, "linestyle": ":"}
    return series_handle(style, name, markersize=size, markeredgewidth=1.8, **line)


def sweep_styles(runs: Runs, fits: SweepFits) -> dict[str, SeriesStyle]:
    """Return the look of every series of a sweep, the same in all its figures."""
    tuned = tuned_setting(runs.table, fits)
    if tuned is not None:
        of_arm = arm_styles(runs, tuned)
        return {fits.series[c]: of_arm[arm] for c, arm in tuned.arms.items()}
    return series_styles(fits.series[str(c)] for c in runs.table["configuration"])


def architecture_styles(runs: Runs, fits: SweepFits) -> dict[str, SeriesStyle]:
    """Return the look of every architecture in figures of laws, that of one of its own series.

    Of several it is that of the best settings of the largest size, since laws go through the best.
    """
    styles = sweep_styles(runs, fits)
    found: dict[str, SeriesStyle] = {}
    for row in runs.table.drop_duplicates("configuration").itertuples():
        found.setdefault(str(row.architecture), styles[fits.series[str(row.configuration)]])
    found |= {best.architecture: styles[fits.series[best.configuration]] for best in fits.best}
    return found | {name: styles[name] for name in found if name in styles}


def _legend_order(
    runs: Runs,
    fits: SweepFits,
    styles: Mapping[str, SeriesStyle],
    panel: tuple[str, str],
    *,
    crowded: bool,
) -> list[tuple[str, SeriesStyle]]:
    """Return the series in the order of their names.

    If there are many, that is the order of their last points at the right of the first panel.
    """
    if not crowded:
        return list(styles.items())
    outcome, x = panel
    rows = runs.table.assign(series=runs.table["configuration"].map(fits.series))
    means = rows.groupby(["series", "configuration"])[[x, outcome]].mean().reset_index("series")
    last = means.sort_values(x).groupby("series")[outcome].last().to_dict()
    return sorted(styles.items(), key=lambda item: -last.get(item[0], -np.inf))


def _draw_series(
    axis: Axes,
    runs: Runs,
    fits: SweepFits,
    name: str,
    style: SeriesStyle,
    *,
    outcome: str,
    x: str,
    crowded: bool,
) -> None:
    rows = runs.table[runs.table["configuration"].map(fits.series) == name]
    if not {outcome, x} <= set(rows.columns) or rows[outcome].isna().all():
        return
    if x == "memory_params":
        _draw_without_memory(axis, rows[~(rows[x] > 0)], style, outcome)
        rows = rows[rows[x] > 0]
    means = rows.groupby("configuration")[[x, outcome]].mean().sort_values(x)
    repeated = rows[rows["configuration"].duplicated(keep=False)]
    # The mean is hollow and lies below, so that no seed hides behind it.
    hollow = points(
        style, marker_size(style.marker, 7 if crowded else 9), edge=1.6 if crowded else 1.8
    )
    axis.plot(means[x], means[outcome], **hollow, zorder=3)
    dot: Any = {"linestyle": "none", "marker": "o", "markersize": 2.8 if crowded else 3.2}
    dot |= {"color": style.colour, "markeredgewidth": 0, "alpha": 0.9, "zorder": 4}
    axis.plot(repeated[x], repeated[outcome], **dot)
    fit = _curve(fits, name, (outcome, x))
    if fit is not None:
        _draw_curve(axis, fit, style, band=0.05 if crowded else 0.16)
    else:
        # No curve: a dotted line joins the means for the eye and claims nothing.
        dotted: Any = {"linestyle": ":", "linewidth": 1.2, "alpha": 0.7, "zorder": 2}
        axis.plot(means[x], means[outcome], color=style.colour, **dotted)


def _draw_without_memory(axis: Axes, rows: Any, style: SeriesStyle, outcome: str) -> None:
    """Draw models without a memory as levels: they have no place on a logarithmic axis of it."""
    level: Any = {"color": style.colour, "linestyle": "--", "linewidth": 1.4, "zorder": 2}
    for value in rows.groupby("configuration")[outcome].mean():
        axis.axhline(value, **level)


def _draw_curve(axis: Axes, fit: LawFit, style: SeriesStyle, *, band: float) -> None:
    x = np.geomspace(fit.x.min(), fit.x.max(), 80)
    y, low, high = fit.curve(x)
    line = MISFIT_LINE if is_misfit(fit) else style.line
    axis.plot(x, y, color=style.colour, linestyle=line, linewidth=2, zorder=2)
    if np.isfinite(low).all():
        shade: Any = {"color": style.colour, "alpha": band, "linewidth": 0, "zorder": 1}
        axis.fill_between(x, low, high, **shade)


def _label(axes: Axes, runs: Runs, *, outcome: str, x: str) -> None:
    label = Y_LABELS.get(outcome, outcome)
    axes.set_title(f"{label.partition(' (')[0]} against {X_WORDS.get(x, x)}")
    axes.set_xlabel(LABELS.get(x, x))
    axes.set_ylabel(label)
    show = power_of_ten if x == "training_flops" else rounded
    positive = runs.table[x][runs.table[x] > 0]
    log_scale(axes, "x", *margins(positive, least=1.12), show=show, most=8)
    grid(axes)
    axes.set_ylim(outcome_limits(runs.table[outcome].dropna(), outcome))


def _reading(runs: Runs, fits: SweepFits, panels: Sequence[tuple[str, str]]) -> str:
    drawn = [c for c in fits.curves if (c.spec.outcome, c.spec.x) in set(panels)]
    shown = [c.fit for c in drawn]
    repeated = runs.table["configuration"].duplicated(keep=False)
    if not repeated.any():
        parts = ["marker: one configuration, one seed"]
    else:
        only = "" if repeated.all() else " (or its only seed)"
        parts = ["dot: one seed", f"open marker: mean of a configuration{only}"]
    if any(f.usable for f in shown):
        parts.append(f"line and band: fit, {fits.level:.0%} of {fits.n_draws:,} resamples")
    if any(not f.usable for f in shown) or not shown:
        parts.append("dotted: no fit")
    if any(x == "memory_params" for _, x in panels):
        parts.append("dashed level: without a memory")
    misfits = dict.fromkeys(c.series for c in drawn if is_misfit(c.fit))
    parts += filter(None, [misfit_words(list(misfits))])
    if len(set(fits.series.values())) > MOST_ABOVE:
        parts.append("names: from top to bottom as at the largest sizes")
    return " · ".join(parts)
