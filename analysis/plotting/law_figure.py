"""Figures of laws of several sizes: a column per size.

The other sizes are held at their middle.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.fitting.result import LawFit
from analysis.laws.shared_coefficients import SharedCoefficients
from analysis.plotting.canvas import styled
from analysis.plotting.fit_panels import (
    BEYOND,
    PanelSeries,
    draw_column,
    finish,
    is_misfit,
    others_title,
    outcome_label,
    panel_grid,
    usable_fits,
)
from analysis.plotting.style import SeriesStyle, series_styles

Array = NDArray[np.float64]


def law_figure(
    fits: LawFit | Mapping[str, LawFit],
    *,
    x: str | None = None,
    outcome: str | None = None,
    beyond: float = BEYOND,
) -> Figure:
    """Return a column for every size of the law: the outcome above, the residuals below.

    The other sizes are held at their geometric mean, and each run is moved there along the law,
    keeping its residual (a component-plus-residual plot; Larsen and McCleary 1972). Crosses below
    are held-out runs, predicted from the rest.

    Args:
        fits: One fit, or fits by architecture; those without numbers are named below the figure.
        x: Label of the size of a law of one, or a name of LABELS; that of the law if None.
        outcome: Label; the name of what was fitted if None.
        beyond: Factor beyond the largest run to which curves are drawn.

    Raises:
        ValueError: If no fit has numbers, they are of laws with different inputs, or there is an
            `x` for several.
    """
    given = fits if isinstance(fits, Mapping) else {law_title(fits): fits}
    usable: dict[str, LawFit] = usable_fits(given)
    first = next(iter(usable.values()))
    if any(fit.law.inputs != first.law.inputs for fit in usable.values()):
        raise ValueError("figure: the fits are of laws with different inputs; draw them apart")
    if x is not None and len(first.law.inputs) > 1:
        raise ValueError(
            f"x: the figure has an axis for each of {', '.join(first.law.inputs)}; leave x out, or "
            "label one with figure.axes[i].set_xlabel(…)"
        )
    groups = [group for name, fit in usable.items() for group in _groups(name, fit)]
    middle = middle_sizes(list(usable.values()))
    styles = series_styles(name for name, *_ in groups)
    with styled():
        figure, axes = panel_grid(len(middle))
        for column, size in enumerate(middle):
            draw_column(
                axes[:, column],
                [
                    law_series(fit, size, middle | fixed, styles[name], beyond, rows=rows)
                    for name, fit, rows, fixed in groups
                ],
                size=size if x is None else x,
                zeros=any((fit.inputs[size] == 0).any() for fit in usable.values()),
                title=others_title(middle, size),
                outcome=(outcome or outcome_label(first.outcome)) if column == 0 else "",
                relative=True,
            )
        equations = dict.fromkeys(f.law.equation for f in usable.values())
        finish(figure, styles, given, [" · ".join(equations)], held=True, level=first.level)
    return figure


def law_title(fit: LawFit) -> str:
    """Return the law's name in words."""
    return fit.law.name.replace("_", " ")


def middle_sizes(fits: Sequence[LawFit]) -> dict[str, float]:
    """Return the geometric mean of each size over the runs of all fits; 0 if no run has it."""
    middle = {}
    for name in fits[0].law.inputs:
        if name != "group":
            values = np.concatenate([f.inputs[name] for f in fits])
            some = values[values > 0]
            middle[name] = float(np.exp(np.log(some).mean())) if len(some) else 0.0
    return middle


def _groups(
    name: str, fit: LawFit
) -> list[tuple[str, LawFit, NDArray[np.bool_] | None, dict[str, float]]]:
    """Return name, fit, rows and fixed inputs of each series: one, or one per group of the law."""
    if not isinstance(fit.law, SharedCoefficients):
        return [(name, fit, None, {})]
    group = fit.inputs["group"]
    return [(g, fit, group == i, {"group": float(i)}) for i, g in enumerate(fit.law.groups)]


def law_series(
    fit: LawFit,
    size: str,
    middle: Mapping[str, float],
    style: SeriesStyle,
    beyond: float,
    *,
    rows: NDArray[np.bool_] | None = None,
) -> PanelSeries:
    """Return the runs and the curve of a fit along one size, the others held at `middle`."""
    chosen = np.ones(len(fit.y), dtype=bool) if rows is None else rows
    x = _positive(fit.inputs[size][chosen])
    high = 1.0 if size == "sparsity" else np.inf
    at = np.geomspace(x.min() / 1.2, min(x.max() * beyond, 0.5 * (x.max() + high)), 120)

    def along(values: Array) -> dict[str, Array]:
        held = {n: np.full(len(values), v) for n, v in middle.items() if n != size}
        return {size: values} | held

    fitted = fit.law.evaluate({n: v[chosen] for n, v in fit.inputs.items()}, fit.best)
    ratio = fit.y[chosen] / fitted
    held = None
    if fit.hold_out is not None:
        mine = np.flatnonzero(chosen)
        inside = np.isin(fit.hold_out.rows, mine)
        errors = (fit.hold_out.observed / fit.hold_out.predicted)[inside] - 1
        held = np.searchsorted(mine, fit.hold_out.rows[inside]), errors
    return PanelSeries(
        x=x,
        y=fit.law.evaluate(along(fit.inputs[size][chosen]), fit.best) * ratio,
        residuals=ratio - 1,
        at=at,
        band=fit.predict(along(at)),
        style=style,
        held=held,
        misfit=is_misfit(fit),
    )


def _positive(x: Array) -> Array:
    """Return sizes for a logarithmic axis: none at all stands a step left of the smallest."""
    some = x[x > 0]
    return np.where(x > 0, x, (some.min() if len(some) else 1.0) / 2)
