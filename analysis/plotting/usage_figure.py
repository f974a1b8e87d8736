"""Figures of the use of memories and experts over training: a row per series.

Curves are not overlaid: a dozen series with a line per layer each would hide one another. The
panels of a column share their scales, so rows can be compared. Where settings were tuned, a row is
an architecture with its best settings.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from analysis.formatting import count
from analysis.loading.load import Runs
from analysis.loading.usage import UsageCurve, UsageCurves, by_parts, usage_curves
from analysis.plotting.axes import GREY, caption, caption_lines, grid, log_scale, margins, rounded
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.style import SeriesStyle
from analysis.plotting.sweep_figure import sweep_styles
from analysis.scaling.best_settings import LENGTH
from analysis.scaling.configuration_summary import ConfigurationSummary
from analysis.scaling.outcomes import higher_is_better, main_outcome
from analysis.scaling.series_curves import name_series
from analysis.scaling.sweep_summary import SweepFits, best_runs


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One column: the statistics that can fill it, the first that was reported."""

    titles: tuple[str, str, str]
    """In a figure of memories, of experts, and of both."""
    stats: tuple[str, ...]
    exponential: bool = False
    """Whether experts' values are entropies, drawn as the number of even choices: exp of them."""
    logarithmic: bool = False
    only_above: float = -math.inf
    """The column is left out if no value is larger."""


_PANELS = (
    _Panel(
        titles=(
            "Rows read so far (share)",
            "Experts used (share)",
            "Rows read so far,\nexperts used (share)",
        ),
        stats=("usage_ever", "usage"),
    ),
    _Panel(titles=("KL to uniform (nats)",) * 3, stats=("kl",)),
    _Panel(
        titles=(
            "Effective rows per token",
            "Effective experts per token\n(exp of the router's entropy)",
            "Effective rows per token,\nexp of router entropy",
        ),
        # The first is of memories, the second of experts.
        stats=("effective_rows", "router_entropy"),
        exponential=True,
        logarithmic=True,
    ),
    _Panel(
        titles=("Most read row over mean", *("Largest load over mean",) * 2),
        stats=("max_over_mean",),
        logarithmic=True,
    ),
    _Panel(titles=("Output over residual (std)",) * 3, stats=("output_ratio",), logarithmic=True),
    _Panel(titles=("Dropped tokens (share)",) * 3, stats=("dropped_share",), only_above=0.0),
)

MOST_ROWS = 20
"""Rows of a figure; of more, those with the best outcomes are drawn."""

_FEW_REPORTS = 8
_GREY = "#8A8A8A"
_WIDE_RANGE = 8.0
"""Largest over smallest value from which a logarithmic scale shows more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cell:
    """What one panel of a row shows."""

    stat: str
    mean: UsageCurve
    layers: Sequence[UsageCurve]
    """From the first layer to the last."""
    smaller: Sequence[UsageCurve]
    """Means of the series' smaller configurations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    """One series and kind."""

    series: str
    largest: ConfigurationSummary
    """The configuration that it shows, the largest that reported."""
    kind: str
    notes: Sequence[str]
    """Below its name."""
    cells: Sequence[_Cell | None]
    """One per panel of `_PANELS`."""


def usage_figure(runs: Runs, fits: SweepFits, histories: pd.DataFrame) -> Figure | None:
    """Return the figure of the use of memories and experts over training.

    None if no run reported it.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`; names the series.
        histories: Of `analysis.histories(runs)`.
    """
    reports = by_parts(histories)
    x = "tokens" if len(reports) and reports["tokens"].notna().all() else "step"
    shown = best_runs(runs)
    every = _rows(shown, fits, usage_curves(reports, x=x))
    rows = _best_rows(every, main_outcome(shown.table))
    kept = [
        (i, panel)
        for i, panel in enumerate(_PANELS)
        if any(_highest(row.cells[i]) > panel.only_above for row in rows)
    ]
    if not kept:
        return None
    kinds = {row.kind for row in rows}
    title = 2 if len(kinds) > 1 else int(kinds == {"moe"})
    styles = sweep_styles(runs, fits)
    with styled():
        reading = _reading(rows, tuned=bool(fits.best), n_left_out=len(every) - len(rows))
        figure, grid = _grid(len(rows), len(kept), reading)
        for axes, row in zip(grid, rows, strict=True):
            style = styles[row.largest.series]
            for axis, (i, _) in zip(axes, kept, strict=True):
                _draw(axis, row.cells[i], style)
            _name(axes[0], row, style, both=len(kinds) > 1)
        for column, (i, panel) in enumerate(kept):
            grid[0, column].set_title(panel.titles[title], fontsize=9)
            _scale_y(grid[0, column], panel, [row.cells[i] for row in rows])
        _scale_x(grid[0, 0], rows)
        for axis in grid[-1]:
            axis.set_xlabel("Training tokens" if x == "tokens" else "Step", fontsize=9)
        caption(figure, reading, y=0.08 / figure.get_figheight())
    return figure


def _grid(n_rows: int, n_columns: int, reading: str) -> tuple[Figure, NDArray[Any]]:
    """Return a figure with panels at fixed places, and room for the caption below.

    Laying out sixty panels by their contents takes seconds.
    """
    height = {1: 2.4, 2: 1.7}.get(n_rows, 1.15)
    left, wide, column_gap, right = 1.95, 1.95, 0.5, 0.15
    width = left + n_columns * wide + (n_columns - 1) * column_gap + right
    bottom, row_gap, top = 0.66 + 0.14 * len(caption_lines(reading, width)), 0.2, 0.5
    size = (
        width,
        bottom + n_rows * height + (n_rows - 1) * row_gap + top,
    )
    figure = new_figure(*size, layout=None)
    figure.subplots_adjust(
        left=left / size[0],
        right=1 - right / size[0],
        bottom=bottom / size[1],
        top=1 - top / size[1],
        wspace=column_gap / wide,
        hspace=row_gap / height,
    )
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey="col")


def _rows(
    shown: Runs, fits: SweepFits, curves: Mapping[tuple[str, str, str], UsageCurves]
) -> list[_Row]:
    """Return a row per series; where settings were tuned, a series holds the best of each size."""
    reporting = {(configuration, kind) for configuration, kind, _ in curves}
    apart = [name for name in fits.varied if name in (*fits.apart, LENGTH)]
    series = name_series(shown.table, by=apart) if fits.best else fits.series
    settings = {best.configuration: best.label for best in fits.best}
    kept = set(shown.table["configuration"])
    summaries = [s for s in fits.summaries if s.configuration in kept]
    rows = []
    for name in dict.fromkeys(series[s.configuration] for s in summaries):
        sizes = sorted(
            (s for s in summaries if series[s.configuration] == name), key=lambda s: s.total_params
        )
        for kind in ("memory", "moe"):
            reported = [s for s in sizes if (s.configuration, kind) in reporting]
            if not reported:
                continue
            *smaller, largest = reported
            others = [s.configuration for s in smaller]
            cells = [_cell(curves, panel, kind, largest.configuration, others) for panel in _PANELS]
            notes = _notes(largest, n_sizes=1 + len(others), share=cells[0], kind=kind)
            if largest.configuration in settings:
                notes += _wrapped(settings[largest.configuration])
            rows.append(_Row(series=name, largest=largest, kind=kind, notes=notes, cells=cells))
    return [row for row in rows if any(row.cells)]


def _best_rows(rows: Sequence[_Row], outcome: str | None) -> Sequence[_Row]:
    """Return the rows, of too many those with the best outcomes, in their order."""
    if len(rows) <= MOST_ROWS:
        return rows
    sign = -1 if outcome and higher_is_better(outcome) else 1

    def rank(row: _Row) -> float:
        found = row.largest.outcomes.get(outcome or "")
        return math.inf if found is None else sign * found.value

    kept = sorted(rows, key=rank)[:MOST_ROWS]
    return [row for row in rows if row in kept]


def _notes(
    largest: ConfigurationSummary, *, n_sizes: int, share: _Cell | None, kind: str
) -> list[str]:
    size = largest.preset or f"{count(largest.total_params)} params"
    notes = [f"{size}, largest of {n_sizes}" if n_sizes > 1 else size]
    if len(largest.seeds) > 1:
        notes.append(f"{len(largest.seeds)} seeds")
    if kind == "memory" and share is not None and share.stat == "usage":
        notes.append("rows: since last report")
    return notes


def _cell(
    curves: Mapping[tuple[str, str, str], UsageCurves],
    panel: _Panel,
    kind: str,
    largest: str,
    smaller: Sequence[str],
) -> _Cell | None:
    def shown(curve: UsageCurve) -> UsageCurve:
        return curve._replace(y=np.exp(curve.y)) if panel.exponential and kind == "moe" else curve

    for stat in panel.stats:
        if (largest, kind, stat) in curves:
            found = curves[largest, kind, stat]
            others = [curves[key] for name in smaller if (key := (name, kind, stat)) in curves]
            return _Cell(
                stat=stat,
                mean=shown(found.mean),
                # A single layer is its own mean.
                layers=[shown(c) for c in found.layers.values()] if len(found.layers) > 1 else [],
                smaller=[shown(other.mean) for other in others],
            )
    return None


def _curves(cells: Iterable[_Cell | None]) -> list[UsageCurve]:
    """Return every curve in the cells, those without a report left out."""
    return [c for cell in cells if cell for c in (cell.mean, *cell.layers, *cell.smaller)]


def _highest(cell: _Cell | None) -> float:
    return max((float(curve.y.max()) for curve in _curves([cell])), default=-math.inf)


def _draw(axis: Axes, cell: _Cell | None, style: SeriesStyle) -> None:
    axis.tick_params(labelsize=8)
    if cell is None:
        centred: Any = {"transform": axis.transAxes, "ha": "center", "va": "center"}
        axis.text(0.5, 0.5, "not reported", fontsize=8, color=_GREY, **centred)
        return
    grid(axis)
    # Few reports are shown as such; the line between them is for the eye.
    marker = "o" if len(cell.mean.x) <= _FEW_REPORTS else None
    for curve in cell.smaller:
        axis.plot(curve.x, curve.y, color=_GREY, linewidth=1.0, linestyle=(0, (4.0, 2.0)), zorder=2)
    for i, curve in enumerate(cell.layers):
        depth = i / (len(cell.layers) - 1)
        colour = _tint(style.colour, 0.7 - 0.5 * depth)
        axis.plot(curve.x, curve.y, color=colour, linewidth=0.9, zorder=3)
    look: Any = {"color": style.colour, "linewidth": 2.4, "markersize": 4, "zorder": 4}
    axis.plot(cell.mean.x, cell.mean.y, marker=marker, **look)


def _tint(colour: str, white: float) -> str:
    red, green, blue = ((1 - white) * part + white for part in to_rgb(colour))
    return to_hex((red, green, blue))


def _name(axis: Axes, row: _Row, style: SeriesStyle, *, both: bool) -> None:
    """Write what the row shows to the left of its first panel."""
    kind = [{"memory": "memory", "moe": "experts"}[row.kind]] if both else []
    at: Any = {"xy": (0, 0.5), "xycoords": "axes fraction", "textcoords": "offset points"}
    bold: Any = {"size": 10, "weight": "bold", "color": style.colour, "va": "bottom"}
    plain: Any = {"size": 8, "color": GREY, "va": "top"}
    for text, shift, look in (
        (_wrapped(row.series), 1, bold),
        ([*kind, *row.notes], -1, plain),
    ):
        axis.annotate("\n".join(text), xytext=(-36, shift), ha="right", **at, **look)


def _wrapped(name: str) -> list[str]:
    """Return a name in lines of about fifteen characters, broken after `_`, spaces and commas."""
    lines = [""]
    for part in re.findall(r"[^_ ,]*[_ ,]*", name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > 15:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _scale_y(axis: Axes, panel: _Panel, cells: Sequence[_Cell | None]) -> None:
    """Set the scale of a column: logarithmic where values span much, else from zero."""
    values = np.concatenate([curve.y for curve in _curves(cells)])
    low, high = float(values.min()), float(values.max())
    if panel.logarithmic and low > 0 and high / low > _WIDE_RANGE:
        log_scale(axis, "y", *margins([low, high], least=1.0), show="{:,g}".format, most=5)
        return
    top = high * 1.06 if high > 0 else 1.0
    axis.set_ylim(min(0.0, low * 1.06), top)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))


def _scale_x(axis: Axes, rows: Sequence[_Row]) -> None:
    end = max(float(curve.x.max()) for row in rows for curve in _curves(row.cells))
    axis.set_xlim(0, 1.03 * end or 1.0)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rounded(value)))


def _reading(rows: Sequence[_Row], *, tuned: bool, n_left_out: int) -> str:
    cells = [cell for row in rows for cell in row.cells if cell is not None]
    parts = ["thick: mean over layers and seeds"]
    if any(cell.layers for cell in cells):
        parts.append("thin: each layer, the deeper the darker")
    if any(cell.smaller for cell in cells):
        parts.append("dashed grey: mean of the smaller configurations")
    if tuned:
        parts.append("settings: the best of those tried")
    if n_left_out:
        parts.append(f"rows: the {len(rows)} of best outcome, {n_left_out} left out")
    return " · ".join(parts)
