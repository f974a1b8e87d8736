"""Figures of curves of one size: a column per set of curves, residuals below."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from analysis.fitting.result import LawFit
from analysis.plotting.canvas import styled
from analysis.plotting.fit_panels import (
    BEYOND,
    PanelSeries,
    draw_column,
    finish,
    is_misfit,
    outcome_label,
    panel_grid,
    usable_fits,
)
from analysis.plotting.style import SeriesStyle, series_styles


@dataclass(frozen=True, kw_only=True, eq=False)
class CurvePanel:
    """One column: fits by architecture, and the labels of its axes."""

    fits: Mapping[str, LawFit]
    x: str
    """Label, or a name of LABELS."""
    outcome: str
    title: str = ""


def curve_figure(
    fits: LawFit | Mapping[str, LawFit],
    *,
    x: str = "Size",
    outcome: str | None = None,
    beyond: float = BEYOND,
) -> Figure:
    """Return the curves of one size with their residuals.

    Args:
        fits: One fit, or fits by architecture.
        x: Label, or a name of LABELS.
        outcome: Label; the name of what was fitted if None.
        beyond: Factor beyond the largest run to which curves are drawn.

    Raises:
        ValueError: If no fit has numbers.
    """
    given = fits if isinstance(fits, Mapping) else {"fit": fits}
    label = outcome or next((outcome_label(fit.outcome) for fit in given.values()), "Outcome")
    return curves_figure([CurvePanel(fits=given, x=x, outcome=label)], beyond=beyond)


def curves_figure(
    columns: list[CurvePanel],
    *,
    beyond: float = BEYOND,
    styles: Mapping[str, SeriesStyle] | None = None,
) -> Figure:
    """Return a column for each set of fits by architecture.

    Args:
        columns: In their order.
        beyond: Factor beyond the largest run to which curves are drawn.
        styles: By name of a fit; None: by the order of the fits.

    Raises:
        ValueError: If no fit has numbers.
    """
    everything = {
        f"{name}, {column.title}" if column.title else name: fit
        for column in columns
        for name, fit in column.fits.items()
    }
    usable: dict[str, LawFit] = usable_fits(everything)
    styles = styles or series_styles(name for column in columns for name in column.fits)
    with styled():
        figure, axes = panel_grid(len(columns))
        for i, column in enumerate(columns):
            series = [
                curve_series(fit, styles[name], beyond)
                for name, fit in column.fits.items()
                if fit.usable
            ]
            draw_column(
                axes[:, i],
                series,
                size=column.x,
                title=column.title,
                outcome=column.outcome,
                relative=False,
            )
        drawn = {name for column in columns for name, fit in column.fits.items() if fit.usable}
        equations = dict.fromkeys(f.law.equation for f in usable.values())
        finish(
            figure,
            {name: style for name, style in styles.items() if name in drawn},
            everything,
            list(equations),
            level=next(iter(usable.values())).level,
        )
    return figure


def curve_series(
    fit: LawFit, style: SeriesStyle, beyond: float, *, margin: float = 1.2
) -> PanelSeries:
    """Return the runs and the curve of a fit, drawn `margin` below and `beyond` above its runs."""
    at = np.geomspace(fit.x.min() / margin, fit.x.max() * max(beyond, margin), 80)
    return PanelSeries(
        x=fit.x,
        y=fit.y,
        residuals=-fit.residuals,
        at=at,
        band=fit.predict(at),
        style=style,
        misfit=is_misfit(fit),
    )
