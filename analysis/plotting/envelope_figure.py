"""Figures of training-curve envelopes: lowest losses, and the sizes with them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.formatting import count
from analysis.plotting.axes import log_scale
from analysis.plotting.canvas import styled
from analysis.plotting.fit_panels import (
    BEYOND,
    finish,
    hatch_outside,
    label_axes,
    outcome_label,
    panel_grid,
)
from analysis.plotting.style import series_styles
from analysis.scaling.envelope import Envelope

AT_EDGE = "#AAAAAA"
"""Of budgets that the smallest or largest size wins."""


def envelope_figure(fit: Envelope, *, outcome: str | None = None) -> Figure:
    """Return the envelope of training curves, and which size wins at which budget.

    Args:
        fit: Of `fit_envelope`.
        outcome: Label; the name of what was fitted if None.
    """
    styles = series_styles(f"{count(s)} wins" for s in np.unique(fit.params))
    compute = float(fit.compute.min()), float(fit.compute.max())
    with styled():
        figure, axes = panel_grid(2)
        upper = axes[0, 0]
        for value, style in zip(np.unique(fit.params), styles.values(), strict=True):
            mine = fit.params == value
            colour = AT_EDGE if fit.at_edge[mine].all() else style.colour
            upper.plot(fit.compute[mine], fit.loss[mine], ".", color=colour, markersize=4)
        axes[1, 0].axis("off")
        label_axes(upper, None, "training_flops", outcome or outcome_label(fit.outcome), "")
        upper.set_title("Envelope; grey: at the edge")
        log_scale(upper, "x", *compute)
        upper, lower = axes[:, 1]
        _draw_sizes(upper, lower, fit)
        hatch_outside((upper, lower), *compute)
        upper.set_yscale("log")
        log_scale(upper, "y", *upper.get_ylim())
        label_axes(upper, lower, "training_flops", "Parameters", "Residual (relative)")
        log_scale(upper, "x", compute[0], compute[1] * BEYOND)
        upper.set_title("Size that wins")
        finish(
            figure,
            styles if len(styles) <= 10 else {},
            {},
            [fit.sentence],
            level=0.95,
            band="band: line over resampled runs",
        )
    return figure


def _draw_sizes(upper: Axes, lower: Axes, fit: Envelope) -> None:
    """Draw the size that wins at each budget, and the line with its band where there is one."""
    colour = next(iter(series_styles(["envelope"]).values())).colour
    good = ~fit.at_edge
    for rows, shown in ((good, colour), (~good, AT_EDGE)):
        upper.plot(fit.compute[rows], fit.params[rows], ".", color=shown, markersize=3)
    if fit.exponent is None or fit.coefficient is None:
        return
    at = np.geomspace(float(fit.compute.min()), float(fit.compute.max()) * BEYOND, 100)
    upper.plot(at, fit.coefficient * at**fit.exponent, color=colour, linewidth=2)
    lines = fit.lines[np.isfinite(fit.lines).all(axis=1)]
    if len(lines):
        curves = np.exp(lines[:, :1] + lines[:, 1:] * np.log(at))
        ends = np.quantile(curves, [0.025, 0.975], axis=0)
        upper.fill_between(at, *ends, color=colour, alpha=0.18, linewidth=0)
    residuals = fit.params[good] / (fit.coefficient * fit.compute[good] ** fit.exponent) - 1
    lower.plot(fit.compute[good], residuals, ".", color=colour, markersize=3)
