"""Panels of fitted curves: runs, curve and two bands above, residuals below."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.fitting.result import Band
from analysis.fitting.verdict import FitVerdict
from analysis.formatting import count
from analysis.plotting.axes import (
    GREY,
    caption,
    grid,
    legend_above,
    log_scale,
    points,
    series_handle,
)
from analysis.plotting.canvas import new_figure
from analysis.plotting.style import SeriesStyle

Array = NDArray[np.float64]

BEYOND = 4.0
"""Factor beyond the largest run to which curves are drawn."""

HATCHED: Any = {"facecolor": "#F3F3F3", "edgecolor": "#D5D5D5", "hatch": "////"}
"""Look of the ground outside the runs; hatched, so that it shows in grey print, too."""

LABELS = {
    "params": "Parameters",
    "total_params": "Total parameters",
    "active_params": "Active parameters",
    "memory_params": "Memory parameters",
    "tokens": "Training tokens",
    "n_active": "Active parameters",
    "n_memory": "Memory parameters",
    "experts": "Experts",
    "granularity": "Granularity",
    "sparsity": "Sparsity",
    "training_flops": "Training compute (FLOPs)",
    "data_bits": "Bits in the data",
    "x": "Size",
}
Y_LABELS = {
    "factual_recall": "Factual recall (share of facts)",
    "answer_nll": "Answer NLL (nats per fact, lower is better)",
    "bits_per_param": "Stored knowledge (bits per parameter)",
    "loss": "Loss (nats per token, lower is better)",
}
OUTCOMES = {
    **{name: label.replace(", lower is better", "") for name, label in Y_LABELS.items()},
    "accuracy": "Accuracy",
    "error": "Error",
}
"""Of columns of these names: the shorter labels of figures with several panels."""

MISFIT_LINE = (0, (4, 3))
"""Dashes of a curve that is not to be relied on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PanelSeries:
    """The runs and the curve of one architecture in one column of panels."""

    x: Array
    y: Array
    residuals: Array
    """Relative, observed over fitted less one, or in the units of the outcome."""
    at: Array
    """Sizes (m,) at which the band is known."""
    band: Band
    style: SeriesStyle
    held: tuple[NDArray[np.int64], Array] | None = None
    """Rows that a hold-out predicted, and the errors of its predictions."""
    misfit: bool = False
    """Whether the law is wrong for these runs (`LawFit.verdict`): its curve is drawn dashed."""


def outcome_label(outcome: str) -> str:
    """Return the label of an outcome column: of a path its end, where it is nobody's known name."""
    return OUTCOMES.get(outcome, outcome.rpartition("/")[2] or outcome)


def others_title(middle: Mapping[str, float], size: str) -> str:
    """Return `at tokens 2.0 G`: where the sizes lie that are not on the axis; empty for none."""
    others = ", ".join(f"{n} {count(value)}" for n, value in middle.items() if n != size)
    return f"at {others}" if others else ""


def panel_grid(n_columns: int) -> tuple[Figure, Any]:
    """Return a figure and its axes (2, n): tall panels above, low ones for residuals below."""
    layout = ConstrainedLayoutEngine(wspace=0.04)
    figure = new_figure(1.0 + 3.9 * n_columns, 5.4, layout=layout)
    heights: Any = {"sharex": "col", "height_ratios": [3, 1.15]}
    return figure, figure.subplots(2, n_columns, squeeze=False, **heights)


def draw_column(
    axes: Sequence[Axes],
    series: Sequence[PanelSeries],
    *,
    size: str,
    title: str,
    outcome: str,
    relative: bool,
    zeros: bool = False,
) -> None:
    """Draw the series of one size into an upper and a lower panel.

    Args:
        axes: The upper and the lower panel.
        series: One per architecture.
        size: Name of LABELS, or a label.
        title: Above the upper panel.
        outcome: Label of the vertical axis; empty in columns that share it.
        relative: Whether residuals are relative.
        zeros: Whether some runs have none of this size: they are drawn at the left edge.
    """
    upper, lower = axes
    for one in series:
        _draw_series(upper, lower, one, many=len(series) > 3)
    label_axes(upper, lower, size, outcome, "Residual (relative)" if relative else "Residual")
    if zeros:
        lower.set_xlabel(f"{LABELS.get(size, size)} (leftmost: none)")
    if not series:
        return
    hatch_outside(axes, min(s.x.min() for s in series), max(s.x.max() for s in series))
    values = np.concatenate([np.concatenate([s.y, s.band.y]) for s in series])
    span = float(np.ptp(values)) or 1.0
    upper.set_ylim(float(values.min()) - 0.08 * span, float(values.max()) + 0.08 * span)
    log_scale(upper, "x", min(s.at[0] for s in series), max(s.at[-1] for s in series))
    side_title(upper, title)


def _draw_series(upper: Axes, lower: Axes, one: PanelSeries, *, many: bool) -> None:
    colour, band = one.style.colour, one.band
    line = MISFIT_LINE if one.misfit else one.style.line
    for low, high, alpha in (
        (band.new_low, band.new_high, 0.03 if many else 0.08),
        (band.low, band.high, 0.1 if many else 0.22),
    ):
        upper.fill_between(one.at, low, high, color=colour, alpha=alpha, linewidth=0)
    upper.plot(one.at, band.y, color=colour, linestyle=line, linewidth=1.0)
    # Thick where this one has runs: another may reach further.
    own = (one.at >= one.x.min()) & (one.at <= one.x.max())
    upper.plot(one.at[own], band.y[own], color=colour, linestyle=line, linewidth=2.2)
    small = 3.2 if len(one.x) > 60 else 5
    upper.plot(one.x, one.y, **points(one.style, small))
    lower.plot(one.x, one.residuals, **points(one.style, small))
    if one.held is not None and len(one.held[0]):
        rows, errors = one.held
        cross: Any = {"linestyle": "none", "marker": "x", "markersize": small + 1}
        lower.plot(one.x[rows], errors, color=colour, **cross)


def side_title(axes: Axes, text: str) -> None:
    """Write a title that only says where the panel lies."""
    axes.set_title(text, fontsize=9, fontweight="normal", color=GREY)


def hatch_outside(axes: Sequence[Axes], low: float, high: float) -> None:
    """Hatch what lies outside the runs."""
    for axis in axes:
        for start, end in ((low / 1e6, low), (high, high * 1e6)):
            axis.axvspan(start, end, **HATCHED, linewidth=0, zorder=0)


def label_axes(upper: Axes, lower: Axes | None, size: str, outcome: str, residual: str) -> None:
    """Label a column of panels; None: there are no residuals."""
    label = LABELS.get(size, size)
    upper.set_ylabel(outcome)
    grid(upper)
    if lower is None:
        upper.set_xlabel(label)
        upper.tick_params(labelbottom=True)
        return
    grid(lower)
    lower.axhline(0, color=GREY, linewidth=1)
    lower.set_ylabel(residual if outcome else "")
    lower.set_xlabel(label)


def finish(
    figure: Figure,
    styles: Mapping[str, SeriesStyle],
    fits: Mapping[str, Any],
    lines: Sequence[str],
    *,
    level: float,
    held: bool = False,
    band: str | None = None,
) -> None:
    """Add the legend, and a caption: how to read the figure, and which fits have no curve."""
    for axis in figure.axes:
        if axis.get_yscale() == "linear":
            axis.yaxis.set_major_locator(MaxNLocator(nbins=5))
    handles: list[Any] = [series_handle(style, name) for name, style in styles.items()]
    handles.append(Patch(**HATCHED, label="extrapolation"))
    legend_above(figure, handles, most_columns=5, fontsize=9)
    words = [
        band
        or f"dark band: the curve, light: one new run, both {level:.0%} · "
        "thin line: beyond the runs of its kind"
    ]
    if held:
        words.append("cross: held-out run, predicted from the rest")
    words += lines
    words += [f"{name}: no curve, {fit.sentence}" for name, fit in fits.items() if not fit.usable]
    misfits = [name for name, fit in fits.items() if is_misfit(fit)]
    words += filter(None, [misfit_words(misfits)])
    caption(figure, " · ".join(words))


def misfit_words(names: Sequence[str]) -> str:
    """Return what dashes mean in a caption, empty without misfits."""
    return f"dashed: the law is wrong for the runs of {', '.join(names)}" if names else ""


def is_misfit(fit: Any) -> bool:
    """Return whether the verdict on a fit, where it has one, is that its law is wrong."""
    verdict = getattr(fit, "verdict", None) if fit.usable else None
    return isinstance(verdict, FitVerdict) and verdict.is_misfit


def usable_fits(fits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fits that have numbers.

    Raises:
        ValueError: If none has; the message says why.
    """
    usable = {name: fit for name, fit in fits.items() if fit.usable}
    if not usable:
        why = "; ".join(f"{name}: {fit.sentence}" for name, fit in fits.items()) or "no fit given"
        raise ValueError(f"figure: no fit has numbers to draw ({why})")
    return usable
