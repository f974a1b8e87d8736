"""Figure of a tuned setting at one size: outcome per value, best of each arm.

No curve over sizes is possible there. The names stand at the rows of the second panel, whose
markers and colours are those of the lines: a legend of many lines tells nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.loading.load import Runs
from analysis.plotting.axes import caption, grid, margins, outcome_limits, points
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.fit_panels import Y_LABELS
from analysis.plotting.style import SeriesStyle, marker_size, series_styles
from analysis.scaling.outcomes import higher_is_better
from analysis.scaling.tuned_setting import TunedSetting
from orchestrator.records.varied_settings import setting_text

WIDE_RANGE = 3.0
"""Largest over smallest value from which the setting's axis is logarithmic."""

MOST_NAMED = 3
"""Arms that the caption names; of more it says how many."""

_CLOSEST = 0.08
"""Least distance between labelled values, as a share of the axis."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arm:
    """One line: an architecture with what else varies beside the setting."""

    name: str
    means: pd.Series
    """Of the outcome over seeds, by value of the setting in ascending order."""
    seeds: pd.DataFrame
    """Setting and outcome of every run whose configuration has several seeds."""
    best: float
    """Mean of the best configuration."""
    best_seeds: Sequence[float]
    best_value: float | None
    """Of the setting; None where the arm lacks it."""

    @property
    def at_edge(self) -> bool:
        """Whether nothing was tried beyond the best."""
        ends = (self.means.index[0], self.means.index[-1]) if len(self.means) > 1 else ()
        return self.best_value in ends


def arm_styles(runs: Runs, tuned: TunedSetting) -> dict[str, SeriesStyle]:
    """Return the look of every arm, by the order of first appearance."""
    return series_styles(tuned.arms[str(c)] for c in runs.table["configuration"])


def setting_figure(runs: Runs, tuned: TunedSetting, outcome: str) -> Figure:
    """Return the outcome against a setting, a line per arm, and the best of each arm beside it."""
    arms = _arms(runs.table, tuned, outcome)
    styles = arm_styles(runs, tuned)
    longest = max(len(arm.name) for arm in arms)
    with styled():
        # The names and values of the second panel take room beside it.
        figure = new_figure(9.6 + 0.075 * longest, max(4.4, 1.3 + 0.235 * len(arms)))
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        for arm in arms:
            _draw_line(left, arm, styles[arm.name])
        _label_left(left, runs.table, tuned.name, outcome)
        _draw_best(right, arms, styles, tuned.name)
        right.set_xlabel(Y_LABELS.get(outcome, outcome))
        caption(figure, _reading(arms))
    return figure


def _arms(table: pd.DataFrame, tuned: TunedSetting, outcome: str) -> list[_Arm]:
    """Return the arms that have the outcome, the best first."""
    rows = table.assign(arm=table["configuration"].map(tuned.arms))
    rows = rows[rows[outcome].notna()]
    sign = -1 if higher_is_better(outcome) else 1
    found = []
    for name, of_arm in rows.groupby("arm", sort=False):
        means = sign * of_arm.groupby("configuration")[outcome].mean()
        of_best = of_arm[of_arm["configuration"] == means.idxmin()]
        value = of_best[tuned.name].iloc[0]
        repeated = of_arm[of_arm["configuration"].duplicated(keep=False)]
        found.append(
            _Arm(
                name=str(name),
                means=of_arm.astype({tuned.name: float}).groupby(tuned.name)[outcome].mean(),
                seeds=repeated[[tuned.name, outcome]].astype(float),
                best=float(of_best[outcome].mean()),
                best_seeds=of_best[outcome].tolist(),
                best_value=None if pd.isna(value) else float(value),
            )
        )
    return sorted(found, key=lambda arm: sign * arm.best)


def _draw_line(axis: Axes, arm: _Arm, style: SeriesStyle) -> None:
    # Dotted: the line is for the eye, nothing was fitted.
    dotted: Any = {"linestyle": ":", "linewidth": 1.4, "alpha": 0.8, "zorder": 2}
    axis.plot(arm.means.index, arm.means, color=style.colour, **dotted)
    size = marker_size(style.marker, 7)
    axis.plot(arm.means.index, arm.means, **points(style, size, edge=1.6), zorder=3)
    x, y = arm.seeds.to_numpy().T
    _draw_seeds(axis, x, y, style)
    if arm.best_value is not None:
        filled = points(style, size, edge=1.6, face=style.colour)
        axis.plot([arm.best_value], [arm.best], **filled, zorder=3.5)


def _draw_seeds(axis: Axes, x: Any, y: Any, style: SeriesStyle) -> None:
    # The white edge parts a dot from the filled marker that it may lie on.
    dot: Any = {"linestyle": "none", "marker": "o", "markersize": 3.8, "markeredgewidth": 0.6}
    axis.plot(x, y, color=style.colour, markeredgecolor="white", zorder=4, **dot)


def _label_left(axis: Axes, table: pd.DataFrame, setting: str, outcome: str) -> None:
    label = Y_LABELS.get(outcome, outcome)
    axis.set_title(f"{label.partition(' (')[0]} against {setting.rpartition('.')[2]}")
    axis.set_xlabel(setting)
    axis.set_ylabel(label)
    values = np.sort(table[setting].dropna().astype(float).unique())
    if values[0] > 0 and values[-1] / values[0] >= WIDE_RANGE:
        axis.set_xscale("log")
        axis.set_xlim(*margins(values, least=1.12))
    axis.xaxis.set_major_locator(FixedLocator(_labelled(axis, values)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: setting_text(value)))
    axis.xaxis.set_minor_locator(NullLocator())
    grid(axis)
    axis.set_ylim(outcome_limits(table[outcome].dropna(), outcome))


def _labelled(axis: Axes, values: Iterable[float]) -> list[float]:
    """Return the values that were tried, without those whose labels would touch."""
    low, high = axis.get_xaxis_transform().transform([(v, 0) for v in axis.get_xlim()])[:, 0]
    kept: list[float] = []
    last = -np.inf
    for value in values:
        at = (axis.get_xaxis_transform().transform((value, 0))[0] - low) / (high - low)
        if at - last >= _CLOSEST:
            kept.append(float(value))
            last = at
    return kept


def _draw_best(
    axis: Axes, arms: Sequence[_Arm], styles: Mapping[str, SeriesStyle], setting: str
) -> None:
    rows = np.arange(len(arms))
    for row, arm in zip(rows, arms, strict=True):
        style = styles[arm.name]
        if len(arm.best_seeds) > 1:
            ends = [min(arm.best_seeds), max(arm.best_seeds)]
            axis.plot(ends, [row, row], color=style.colour, linewidth=1.2, zorder=2)
            _draw_seeds(axis, arm.best_seeds, [row] * len(arm.best_seeds), style)
        mark = points(style, marker_size(style.marker, 7), edge=1.6, face=style.colour)
        axis.plot([arm.best], [row], **mark, zorder=3)
    axis.set_title(f"Best of each, and its {setting.rpartition('.')[2]}")
    grid(axis)
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.set_yticks(rows, [arm.name for arm in arms], fontsize=9)
    values = axis.secondary_yaxis("right")
    values.set_yticks(rows, [_best_text(arm) for arm in arms], fontsize=9)
    values.tick_params(length=0)
    values.spines["right"].set_visible(False)
    for arm, name in zip(arms, axis.get_yticklabels(), strict=True):
        name.set_color(styles[arm.name].colour)


def _best_text(arm: _Arm) -> str:
    """Return `3.541 at 6e-3`."""
    at = "" if arm.best_value is None else f" at {setting_text(arm.best_value)}"
    return f"{f'{arm.best:#.4g}'.rstrip('.')}{at}"


def _reading(arms: Sequence[_Arm]) -> str:
    if any(len(arm.seeds) for arm in arms):
        parts = ["dot: one seed", "marker: mean of a configuration", "bar: range of seeds"]
    else:
        parts = ["marker: one configuration, one seed"]
    parts += ["filled: best of its line", "dotted: no fit"]
    edge = [arm.name for arm in arms if arm.at_edge]
    if edge:
        named = ", ".join(edge) if len(edge) <= MOST_NAMED else f"{len(edge)} of {len(arms)}"
        parts.append(f"best at the edge of what was tried: {named}")
    return " · ".join(parts)
