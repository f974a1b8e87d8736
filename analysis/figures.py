"""Figures from numbers: one function per figure, drawn without a display and without pyplot's global state.

Colours are Okabe and Ito's (2008), told apart with any colour vision; every series has a marker of its own as well.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from analysis.curve import CurveFit
from analysis.fit import SweepFits
from analysis.runs import Runs
from analysis.tables import count

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

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

_STYLE: Any = {  # matplotlib types the keys one by one
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
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(4.9 * len(panels), 4.4), layout=ConstrainedLayoutEngine(wspace=0.05)
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        series = list(dict.fromkeys(fits.series[str(c)] for c in runs.table["configuration"]))
        for axis, (outcome, x) in zip(axes, panels, strict=True):
            for i, name in enumerate(series):
                _draw_series(axis, runs, fits, name, i, outcome=outcome, x=x)
            _finish(axis, runs, outcome=outcome, x=x)
        handles = [
            Line2D(
                [],
                [],
                color=_colour(i),
                marker=_marker(i),
                markersize=8,
                markerfacecolor="white",
                markeredgewidth=1.8,
                linewidth=2,
                label=name,
            )
            for i, name in enumerate(series)
        ]
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=min(len(series), 4),
            frameon=False,
            handlelength=2.2,
        )
        figure.supxlabel(_caption(runs, fits, panels), fontsize=8, color="#555555")
    return figure


def _draw_series(
    axis: Axes, runs: Runs, fits: SweepFits, name: str, i: int, *, outcome: str, x: str
) -> None:
    rows = runs.table[runs.table["configuration"].map(fits.series) == name]
    if not {outcome, x} <= set(rows.columns) or rows[outcome].isna().all():
        return
    colour, marker = _colour(i), _marker(i)
    means = rows.groupby("configuration")[[x, outcome]].mean().sort_values(x)
    # The mean is hollow and lies below, so that no seed hides behind it.
    axis.plot(
        means[x],
        means[outcome],
        linestyle="none",
        marker=marker,
        markersize=9,
        markerfacecolor="white",
        markeredgecolor=colour,
        markeredgewidth=1.8,
        zorder=3,
    )
    axis.plot(
        rows[x],
        rows[outcome],
        linestyle="none",
        marker="o",
        markersize=3.2,
        color=colour,
        markeredgewidth=0,
        alpha=0.9,
        zorder=4,
    )
    fit = fits.curve(name, outcome=outcome, x=x)
    if fit is not None and fit.usable:
        _draw_curve(axis, fit, colour)
    else:
        # No curve: a dotted line joins the means for the eye and claims nothing.
        axis.plot(
            means[x],
            means[outcome],
            linestyle=":",
            linewidth=1.2,
            color=colour,
            alpha=0.7,
            zorder=2,
        )


def _draw_curve(axis: Axes, fit: CurveFit, colour: str) -> None:
    prediction = fit.predict(np.geomspace(fit.x.min(), fit.x.max(), 200))
    axis.plot(prediction.x, prediction.y, color=colour, linewidth=2, zorder=2)
    if np.isfinite(prediction.low).all():
        axis.fill_between(
            prediction.x,
            prediction.low,
            prediction.high,
            color=colour,
            alpha=0.16,
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
    decades = np.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 1.7 else (1.0, 3.0) if decades < 3 else (1.0,)
    axis.xaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
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


def _tick(value: float, x: str) -> str:
    if x != "training_flops":
        return count(value).replace(".00 ", " ").replace(".0 ", " ")  # ticks are round numbers
    exponent = int(np.floor(np.log10(value) + 1e-9))
    lead = round(value / 10**exponent)
    return rf"$10^{{{exponent}}}$" if lead == 1 else rf"${lead}\cdot10^{{{exponent}}}$"


def _caption(runs: Runs, fits: SweepFits, panels: Sequence[tuple[str, str]]) -> str:
    shown = [c.fit for c in fits.curves if (c.question.outcome, c.question.x) in set(panels)]
    parts = ["dot: one seed", "open marker: mean of a configuration"]
    if any(f.usable for f in shown):
        parts.append(f"line and band: fit, {fits.level:.0%} of {fits.n_draws:,} resamples")
    if any(not f.usable for f in shown) or not shown:
        parts.append("dotted: no fit")
    return " · ".join(parts)


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
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=200, facecolor="white", metadata=metadata)
    return buffer.getvalue()


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _marker(i: int) -> str:
    # Beyond seven series colours repeat, and the markers then shift so that no pair repeats.
    return MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]
