"""Figures of two-stage fits: sizes to loss, loss to outcome, and sizes to outcome."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from analysis.fitting.two_stage import TwoStageFit
from analysis.plotting.canvas import styled
from analysis.plotting.curve_figure import curve_series
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
from analysis.plotting.law_figure import law_series, law_title, middle_sizes
from analysis.plotting.style import SeriesStyle, series_styles


def chain_figure(
    chains: TwoStageFit | Mapping[str, TwoStageFit],
    *,
    outcome: str | None = None,
    size: str | None = None,
    beyond: float = BEYOND,
) -> Figure:
    """Return three columns: loss over a size, outcome over loss, outcome over the size by both.

    Args:
        chains: One chain, or chains by architecture.
        outcome: Label; the name of what was fitted if None.
        size: Input of the law on the horizontal axis; its first if None.
        beyond: Factor beyond the largest run to which curves are drawn.

    Raises:
        ValueError: If no chain has numbers.
    """
    given = chains if isinstance(chains, Mapping) else {law_title(chains.to_loss): chains}
    usable: dict[str, TwoStageFit] = usable_fits(given)
    styles = series_styles(usable)
    looks = [(chain, styles[name]) for name, chain in usable.items()]
    first = next(iter(usable.values()))
    size = size or first.to_loss.law.inputs[0]
    loss, outcome = outcome_label(first.to_loss.outcome), outcome or outcome_label(first.outcome)
    middle = middle_sizes([c.to_loss for c in usable.values()])
    title = others_title(middle, size)
    with styled():
        figure, axes = panel_grid(3)
        losses = [law_series(c.to_loss, size, middle, style, beyond) for c, style in looks]
        draw_column(axes[:, 0], losses, size=size, title=f"1. {title}", outcome=loss, relative=True)
        links = [curve_series(c.to_outcome, style, 1.0, margin=1.15) for c, style in looks]
        draw_column(
            axes[:, 1], links, size=loss, title="2. the link", outcome=outcome, relative=False
        )
        through = [_chain_series(c, size, middle, style, beyond) for c, style in looks]
        draw_column(
            axes[:, 2],
            through,
            size=size,
            title=f"3. through both, {title}",
            outcome=outcome,
            relative=False,
        )
        equations = [first.to_loss.law.equation, first.to_outcome.law.equation]
        finish(figure, styles, given, equations, held=True, level=first.level)
    return figure


def _chain_series(
    chain: TwoStageFit, size: str, middle: Mapping[str, float], style: SeriesStyle, beyond: float
) -> PanelSeries:
    """Return predictions through both steps, each run where its loss puts it along the size."""
    law = law_series(chain.to_loss, size, middle, style, beyond)
    at = {size: law.at} | {n: np.full(len(law.at), v) for n, v in middle.items() if n != size}
    link = chain.to_outcome
    # Runs of the link that the law knows, too: matched by their loss.
    row_of = {round(float(v), 12): i for i, v in enumerate(chain.to_loss.y)}
    pairs = [(row_of[k], j) for j, v in enumerate(link.x) if (k := round(float(v), 12)) in row_of]
    first, second = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    (name,) = link.law.inputs
    inputs = {n: v[first] for n, v in chain.to_loss.inputs.items()}
    predicted = chain.predict(inputs).y if pairs else np.empty(0)
    on_slice = link.law.evaluate({name: law.y[first]}, link.best)
    return PanelSeries(
        x=law.x[first],
        y=on_slice + link.y[second] - link.law.evaluate({name: link.x[second]}, link.best),
        residuals=link.y[second] - predicted,
        at=law.at,
        band=chain.predict(at),
        style=style,
        misfit=is_misfit(chain),
    )
