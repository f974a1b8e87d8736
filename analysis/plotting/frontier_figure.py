"""Figures of the compute-optimal frontier: best loss, size and tokens per budget.

They show the best architecture of each budget, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.plotting.axes import (
    OUTSIDE,
    band_caption,
    lacks_bands,
    legend_above,
    log_scale,
    rounded,
)
from analysis.plotting.canvas import new_figure, styled
from analysis.plotting.fit_panels import MISFIT_LINE, is_misfit, misfit_words, outcome_label
from analysis.plotting.shaded_panels import (
    amount_axis,
    capital,
    curve_handle,
    draw_curve,
    shade_outside,
)
from analysis.plotting.style import SeriesStyle, series_styles
from analysis.scaling.frontier import LEAST_SHARE, Frontier


def frontier_figure(
    frontier: Frontier, *, styles: Mapping[str, SeriesStyle] | None = None
) -> Figure:
    """Return best loss, size, tokens, and the share of draws each architecture wins, by budget.

    Tokens are left out where all were trained on the same, shares where nothing was drawn or one
    architecture is alone. Titles name a verdict with which nothing is claimed.

    Args:
        frontier: Of one budget.
        styles: By architecture; None: by the order of their names.
    """
    names = sorted(frontier.allocations)
    given = styles or series_styles(names)
    styles = {name: given[name] for name in names}
    x, label = frontier.budgets, capital(frontier.measure.label)
    outside = {name: best.beyond > 1 + 1e-9 for name, best in frontier.allocations.items()}
    with styled():
        allocations = list(frontier.allocations.values())
        varied = any(np.isfinite(best.tokens).any() for best in allocations)
        drawn = all(np.isfinite(best.share).all() for best in allocations)
        below = [name for name, there in (("tokens", varied), ("share", drawn)) if there]
        rows: list[Any] = [["loss", "params"], *([[below[0], below[-1]]] if below else [])]
        figure = new_figure(9.8, 0.4 + 3.5 * len(rows))
        figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]
        place = figure.subplot_mosaic(rows)
        titles = {
            "loss": (f"Best {frontier.outcome}", outcome_label(frontier.outcome)),
            "params": ("Best size", "Parameters N"),
            "tokens": ("Best training length", "Tokens"),
        }
        verdict = frontier.verdict
        unclaimed = "" if verdict.is_credible else f" ({verdict.status})"
        misfits = {name for name, fit in frontier.fits.items() if is_misfit(fit)}
        lines = {
            name: replace(style, line=MISFIT_LINE) if name in misfits else style
            for name, style in styles.items()
        }
        for quantity, (title, y_label) in titles.items():
            if quantity not in place:
                continue
            axes = place[quantity]
            for name, best in frontier.allocations.items():
                curve = (getattr(best, quantity), *getattr(best, f"{quantity}_band"))
                draw_curve(axes, x, curve, extrapolated=outside[name], style=lines[name])
            shade_outside(axes, x, list(outside.values()))
            axes.set_title(title + unclaimed)
            axes.set_ylabel(y_label)
            amount_axis(axes, label, x)
            low, high = _drawn_span(axes)
            if quantity == "loss":
                axes.set_ylim(low, high)
            else:
                log_scale(axes, "y", low, high, show=rounded)
        if drawn:
            _draw_shares(place["share"], frontier, styles)
            place["share"].set_title("Which architecture is best" + unclaimed)
            amount_axis(place["share"], label, x)
        handles: list[Artist] = [curve_handle(style, name) for name, style in styles.items()]
        handles.append(Patch(color=OUTSIDE, label="outside the runs"))
        legend_above(figure, handles, most_columns=5)
        lacking = lacks_bands((best.loss, best.loss_band[0]) for best in allocations)
        further = " · ".join(filter(None, (misfit_words(sorted(misfits)), frontier.without)))
        band_caption(figure, frontier.level, further, lacking=lacking)
    return figure


def _draw_shares(axes: Axes, frontier: Frontier, styles: Mapping[str, SeriesStyle]) -> None:
    """Stack the share of draws that each architecture wins; its name marks its largest share.

    What is left are draws in which none has a best size.
    """
    x = frontier.budgets
    shares = {name: best.share for name, best in frontier.allocations.items()}
    nobody = 1 - np.sum(list(shares.values()), axis=0)
    if nobody.max() >= LEAST_SHARE:
        shares["no best size"] = nobody
    axes.set_ylim(0, 1)
    axes.set_ylabel("Share of draws that it wins")
    bottom = np.zeros(len(x))
    for name, part in shares.items():
        colour = styles[name].colour if name in styles else "white"
        look: Any = {"color": colour, "alpha": 0.75, "edgecolor": "white"}
        axes.fill_between(x, bottom, bottom + part, linewidth=0.8, **look)
        at = int(part.argmax())
        if part[at] > 0.1:
            # Towards the middle, so that the name stays inside.
            side, shift = {0: ("left", 6), 3: ("right", -6)}.get(4 * at // len(x), ("center", 0))
            box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none"}
            place: Any = {"xytext": (shift, 0), "textcoords": "offset points", "ha": side}
            middle = (x[at], bottom[at] + part[at] / 2)
            axes.annotate(name, middle, va="center", size=9, bbox=box | {"alpha": 0.85}, **place)
        bottom = bottom + part


def _drawn_span(axes: Axes) -> tuple[float, float]:
    """Return the ends of the vertical axis by the lines drawn, bands aside."""
    ys = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    ys = ys[np.isfinite(ys) & (ys > 0)]
    if not len(ys):
        return 1.0, 10.0
    margin = max((ys.max() / ys.min()) ** 0.06, 1.02)
    return float(ys.min() / margin), float(ys.max() * margin)
