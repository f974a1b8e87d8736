"""Figures from numbers: one function per figure, drawn without a display and without pyplot's global state.

Colours, markers and dashes of a series: analysis/plotting/style.py.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from analysis.fitting.result import LawFit
from analysis.formatting import count
from analysis.loading.load import Runs
from analysis.plotting.style import SeriesStyle, series_styles
from analysis.scaling.sweep_summary import SweepFits

Y_LABELS = {
    "factual_recall": "Factual recall (share of facts)",
    "answer_nll": "Answer NLL (nats per fact, lower is better)",
    "bits_per_param": "Stored knowledge (bits per parameter)",
    "loss": "Loss (nats per token, lower is better)",
}
TITLES = {
    "factual_recall": "Factual recall",
    "answer_nll": "Answer NLL",
    "bits_per_param": "Stored knowledge",
    "loss": "Loss",
}
X_LABELS = {
    "total_params": "Total parameters",
    "training_flops": "Training compute (FLOPs)",
    "active_params": "Active parameters",
}
X_WORDS = {
    "total_params": "parameters",
    "training_flops": "training compute",
    "active_params": "active parameters",
}

MOST_ABOVE = 6
"""Series whose names fit above the panels; those of more stand at the right, and markers and bands are lighter."""

STYLE: Any = {  # matplotlib types the keys one by one
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "svg.hashsalt": "memscale",  # the same numbers give the same file
}


def sweep_figure(runs: Runs, fits: SweepFits) -> Figure:
    """Return the figure of a sweep: accuracy against parameters, and against training FLOPs.

    Both at once, because a memory table adds parameters and hardly any FLOPs: to the right on the left, above on the
    right. Without factual recall (a text corpus) both panels show the loss.

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
    panels = [(shown[0], "total_params")]
    if "training_flops" in table:
        panels.append((shown[0], "training_flops"))
    return curves_figure(runs, fits, panels=panels)


def curves_figure(runs: Runs, fits: SweepFits, *, panels: Sequence[tuple[str, str]]) -> Figure:
    """Return one panel per (outcome, size): every seed, the mean, the fitted curve and its band, for each series."""
    styles = sweep_styles(runs, fits)
    crowded = len(styles) > MOST_ABOVE
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(4.9 * len(panels) + 2.0 * crowded, 6.2 if crowded else 4.4),
            layout=ConstrainedLayoutEngine(wspace=0.05),
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (outcome, x) in zip(axes, panels, strict=True):
            for name, style in styles.items():
                _draw_series(axis, runs, fits, name, style, outcome=outcome, x=x, crowded=crowded)
            _finish(axis, runs, outcome=outcome, x=x)
        fitted = {
            name
            for name in styles
            for outcome, x in panels
            if (fit := fits.curve(name, outcome=outcome, x=x)) is not None and fit.usable
        }
        handles = [
            Line2D(
                [],
                [],
                color=style.colour,
                marker=style.marker,
                markersize=_size(style.marker, 7 if crowded else 8),
                markerfacecolor="white",
                markeredgewidth=1.8,
                linewidth=2 if name in fitted else 1.2,
                linestyle=style.line if name in fitted else ":",
                label=name,
            )
            for name, style in _legend_order(runs, fits, styles, panels[0], crowded=crowded)
        ]
        figure.legend(
            handles=handles,
            loc="outside right upper" if crowded else "outside upper center",
            ncols=1 if crowded else min(len(styles), 4),
            frameon=False,
            handlelength=3.4 if crowded else 2.2,
            fontsize=9 if crowded else 10,
        )
        figure.supxlabel(_caption(runs, fits, panels), fontsize=8, color="#555555")
    return figure


def sweep_styles(runs: Runs, fits: SweepFits) -> dict[str, SeriesStyle]:
    """Return the look of every series of a sweep, the same in all its figures."""
    return series_styles(fits.series[str(c)] for c in runs.table["configuration"])


def _legend_order(
    runs: Runs,
    fits: SweepFits,
    styles: Mapping[str, SeriesStyle],
    panel: tuple[str, str],
    *,
    crowded: bool,
) -> list[tuple[str, SeriesStyle]]:
    """Return the series as drawn; of many, in the order in which they end at the right of the first panel."""
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
    means = rows.groupby("configuration")[[x, outcome]].mean().sort_values(x)
    repeated = rows[rows["configuration"].duplicated(keep=False)]
    # The mean is hollow and lies below, so that no seed hides behind it.
    axis.plot(
        means[x],
        means[outcome],
        linestyle="none",
        marker=style.marker,
        markersize=_size(style.marker, 7 if crowded else 9),
        markerfacecolor="white",
        markeredgecolor=style.colour,
        markeredgewidth=1.6 if crowded else 1.8,
        zorder=3,
    )
    axis.plot(
        repeated[x],
        repeated[outcome],
        linestyle="none",
        marker="o",
        markersize=2.8 if crowded else 3.2,
        color=style.colour,
        markeredgewidth=0,
        alpha=0.9,
        zorder=4,
    )
    fit = fits.curve(name, outcome=outcome, x=x)
    if fit is not None and fit.usable:
        _draw_curve(axis, fit, style, band=0.05 if crowded else 0.16)
    else:
        # No curve: a dotted line joins the means for the eye and claims nothing.
        axis.plot(
            means[x],
            means[outcome],
            linestyle=":",
            linewidth=1.2,
            color=style.colour,
            alpha=0.7,
            zorder=2,
        )


def _draw_curve(axis: Axes, fit: LawFit, style: SeriesStyle, *, band: float) -> None:
    x = np.geomspace(fit.x.min(), fit.x.max(), 200)
    prediction = fit.predict(x)
    axis.plot(
        x,
        prediction.y,
        color=style.colour,
        linestyle=style.line,
        linewidth=2,
        zorder=2,
    )
    if np.isfinite(prediction.low).all():
        axis.fill_between(
            x,
            prediction.low,
            prediction.high,
            color=style.colour,
            alpha=band,
            linewidth=0,
            zorder=1,
        )


def _finish(axis: Axes, runs: Runs, *, outcome: str, x: str) -> None:
    axis.set_title(f"{TITLES.get(outcome, outcome)} against {X_WORDS.get(x, x)}")
    axis.set_xlabel(X_LABELS.get(x, x))
    axis.set_ylabel(Y_LABELS.get(outcome, outcome))
    axis.set_xscale("log")
    sizes = runs.table[x].dropna()
    low, high = float(sizes.min()), float(sizes.max())
    margin = max((high / low) ** 0.06, 1.12)
    axis.set_xlim(low / margin, high * margin)
    axis.xaxis.set_major_locator(FixedLocator(ticks(low / margin, high * margin)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, x)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(visible=True, axis="both", color="#E5E5E5", linewidth=0.8)
    axis.set_axisbelow(True)
    values = runs.table[outcome].dropna()
    span = float(values.max() - values.min()) or abs(float(values.max())) or 1.0
    # The runs set the scale: the band of a poor fit may leave the panel, the points may not.
    bottom, top = float(values.min()) - 0.12 * span, float(values.max()) + 0.12 * span
    if outcome == "factual_recall":
        bottom, top = max(bottom, -0.02), min(top, 1.02)
    axis.set_ylim(bottom, top)


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


def _tick(value: float, x: str) -> str:
    if x != "training_flops":
        return rounded(value)
    exponent = int(np.floor(np.log10(value) + 1e-9))
    lead = f"{value / 10**exponent:.3g}"
    return rf"$10^{{{exponent}}}$" if lead == "1" else rf"${lead}\cdot10^{{{exponent}}}$"


def rounded(value: float) -> str:
    """Return a round number as `count` does, without the zeros behind its point."""
    text = count(value)
    return re.sub(r"\.?0+(?= |$)", "", text) if "." in text else text


def _caption(runs: Runs, fits: SweepFits, panels: Sequence[tuple[str, str]]) -> str:
    shown = [c.fit for c in fits.curves if (c.spec.outcome, c.spec.x) in set(panels)]
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
    if len(set(fits.series.values())) > MOST_ABOVE:
        parts.append("names: from top to bottom as at the largest sizes")
    return " · ".join(parts)


def _size(marker: str, size: float) -> float:
    # Its points make a star look smaller.
    return size * 1.3 if marker == "*" else size


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `<stem>.svg` and `<stem>.png` (200 dpi) and return them."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")]
    paths[0].write_bytes(image(figure, "svg"))
    paths[1].write_bytes(image(figure, "png"))
    return paths


def image(figure: Figure, kind: str) -> bytes:
    """Return the figure as `svg` or `png`, without a creation date: equal numbers give equal bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=200, facecolor="white", metadata=metadata)
    return buffer.getvalue()
