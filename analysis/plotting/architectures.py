"""Figures that compare architectures: multipliers along a measure, and the frontier of a budget.

Where a curve rests on runs it is drawn full; where it extrapolates, thin and pale on shaded ground.
"""

from collections.abc import Sequence
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from analysis.plotting.style import SeriesStyle, series_styles
from analysis.plotting.sweep import STYLE, rounded, ticks
from analysis.scaling.compute_multiplier import Multipliers
from analysis.scaling.cost_measures import CostMeasure
from analysis.scaling.frontier import Frontier

Array = NDArray[np.float64]

SHADE = "#F0F0F0"
GRID = "#E0E0E0"


def multipliers_figure(curves: Sequence[Multipliers], *, size: bool = False) -> Figure:
    """Return one panel per measure and its tokens, one colour per candidate.

    Args:
        curves: All of one reference; several candidates and measures.
        size: Draw the size multiplier in place of the amount multiplier.

    Raises:
        ValueError: If there is no curve, or references differ.
    """
    references = {c.reference for c in curves}
    if len(references) != 1:
        raise ValueError(f"figure: needs curves of one reference, got {sorted(references) or 'none'}")  # fmt: skip
    styles = series_styles(sorted(references | {c.candidate for c in curves}))
    panels: dict[tuple[str, str], list[Multipliers]] = {}
    for curve in curves:
        panels.setdefault((curve.measure.name, _tokens(curve)), []).append(curve)
    with matplotlib.rc_context(STYLE):
        n_columns = min(len(panels), 2)
        n_rows = -(-len(panels) // n_columns)
        figure = Figure(figsize=(4.9 * n_columns, 3.7 * n_rows + 0.7), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]
        FigureCanvasAgg(figure)
        axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        for axis, ((_, tokens), members) in zip(axes, panels.items(), strict=False):
            by_tokens = _varies(members[0])
            ends: list[float] = []
            for curve in members:
                x = curve.tokens if by_tokens else curve.amount
                values = (curve.size, curve.size_low, curve.size_high) if size else (curve.multiplier, curve.low, curve.high)  # fmt: skip
                _curve(axis, x, *values, pale=curve.extrapolated, style=styles[curve.candidate])
                ends += values[0][np.isfinite(values[0])].tolist()
                for i in curve.refusals:
                    axis.plot(x[i], 0.97, marker="x", color=styles[curve.candidate].colour, transform=axis.get_xaxis_transform(), clip_on=False, markersize=5)  # fmt: skip
            _shade(axis, [(c.tokens if by_tokens else c.amount) for c in members], [c.extrapolated for c in members])  # fmt: skip
            axis.axhline(1.0, color="#222222", linewidth=1, zorder=1.5)
            measure = members[0].measure
            what = "Size" if size else _what(measure)
            axis.set_title(f"At equal {measure.label}")
            axis.set_ylabel(f"{what} that {members[0].reference}\nneeds for the same {members[0].outcome} (×)")  # fmt: skip
            _log_x(
                axis,
                (f"Training tokens, {measure.label}" if by_tokens else _capital(measure.label))
                + tokens,
            )
            _multiples(axis, ends)
        names = [n for n in styles if n not in references]
        handles: list[Line2D | Patch] = [_handle(styles[n], n) for n in names]
        handles.append(Line2D([], [], color="#222222", linewidth=1, label=f"{next(iter(references))}: 1"))  # fmt: skip
        if any(c.extrapolated.any() for c in curves):
            handles.append(Patch(color=SHADE, label="outside the runs of either"))
        if any(c.refusals for c in curves):
            handles.append(Line2D([], [], linestyle="none", marker="x", color="#444444", label="never reached: no number"))  # fmt: skip
        figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 3 * n_columns), frameon=False)  # fmt: skip
        figure.supxlabel(f"band: {curves[0].level:.0%} of resampled runs, seeds together", fontsize=8, color="#555555")  # fmt: skip
    return figure


def frontier_figure(frontier: Frontier) -> Figure:
    """Return loss, best size, best tokens and the share of draws each architecture wins, against the budget."""
    styles = series_styles(sorted(frontier.allocations))
    x = frontier.budgets
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.8, 7.4), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]
        FigureCanvasAgg(figure)
        (loss, size), (tokens, share) = figure.subplots(2, 2)
        for name, allocation in frontier.allocations.items():
            pale, style = allocation.beyond > 1 + 1e-9, styles[name]
            _curve(loss, x, allocation.loss, *allocation.loss_band, pale=pale, style=style)
            _curve(size, x, allocation.params, *allocation.params_band, pale=pale, style=style)
            _curve(tokens, x, allocation.tokens, *allocation.tokens_band, pale=pale, style=style)
        for axis, title, y in (
            (loss, f"Best {frontier.outcome}", frontier.outcome.capitalize()),
            (size, "Best size", "Parameters N"),
            (tokens, "Best training length", "Tokens"),
        ):
            _shade(axis, [x] * len(frontier.allocations), [c.beyond > 1 + 1e-9 for c in frontier.allocations.values()])  # fmt: skip
            axis.set_title(title)
            axis.set_ylabel(y)
            _log_x(axis, _capital(frontier.measure.label), x)
            if axis is loss:
                axis.set_ylim(*_seen(axis))
                continue
            axis.set_yscale("log")
            low, high = _seen(axis)
            axis.set_ylim(low, high)
            axis.yaxis.set_major_locator(FixedLocator(ticks(low, high, most=6)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: rounded(v)))  # fmt: skip
            axis.yaxis.set_minor_locator(NullLocator())
        shares = np.asarray([c.share for c in frontier.allocations.values()])
        if np.isfinite(shares).all():
            bottom = np.zeros(len(x))
            for name, part in zip(frontier.allocations, shares, strict=True):
                share.fill_between(x, bottom, bottom + part, color=styles[name].colour, alpha=0.75, linewidth=0.8, edgecolor="white")  # fmt: skip
                at = int(part.argmax())
                if part[at] > 0.1:
                    side: Literal["left", "center", "right"] = "left" if at < len(x) / 4 else "right" if at > 3 * len(x) / 4 else "center"  # fmt: skip
                    share.annotate(name, (x[at], bottom[at] + part[at] / 2), xytext=({"left": 6, "center": 0, "right": -6}[side], 0), textcoords="offset points", ha=side, va="center", fontsize=9, bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none", "alpha": 0.85})  # fmt: skip
                bottom = bottom + part
        else:
            share.text(0.5, 0.5, "not told: a law without draws", ha="center", transform=share.transAxes)  # fmt: skip
        share.set_ylim(0, 1)
        share.set_title("Which architecture is best")
        share.set_ylabel("Share of draws that it wins")
        _log_x(share, _capital(frontier.measure.label), x)
        handles: list[Line2D | Patch] = [_handle(style, name) for name, style in styles.items()]
        handles.append(Patch(color=SHADE, label="outside the runs"))
        figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False)  # fmt: skip
        if not any(np.isfinite(c.tokens).any() for c in frontier.allocations.values()):
            tokens.set_visible(False)  # all were trained on the same
        figure.supxlabel(f"band: {frontier.level:.0%} of resampled runs, seeds together", fontsize=8, color="#555555")  # fmt: skip
    return figure


def _curve(
    axis: Axes, x: Array, y: Array, low: Array, high: Array, *,
    pale: NDArray[np.bool_], style: SeriesStyle,
) -> None:  # fmt: skip
    # A band without an upper end is drawn to the edge of the panel.
    top = np.where(np.isinf(high), 1e30, high)
    firm = ~pale
    joined = firm | np.append(firm[1:], False) | np.append(False, firm[:-1])
    axis.fill_between(x, low, top, color=style.colour, alpha=0.09, linewidth=0, zorder=1)
    axis.fill_between(x, low, top, where=firm.tolist(), color=style.colour, alpha=0.13, linewidth=0, zorder=1)  # fmt: skip
    axis.plot(x, y, color=style.colour, linewidth=1.0, linestyle=style.line, alpha=0.75, zorder=2)
    # Markers tell the curves apart where colours cannot be seen.
    axis.plot(x, np.where(joined & firm, y, np.nan), color=style.colour, linewidth=2.4, linestyle=style.line, marker=style.marker, markevery=max(1, len(x) // 10), markersize=6, markerfacecolor="white", markeredgewidth=1.4, zorder=3)  # fmt: skip


def _shade(axis: Axes, xs: Sequence[Array], pale: Sequence[NDArray[np.bool_]]) -> None:
    """Shade where no curve rests on runs."""
    x, all_pale = xs[0], np.logical_and.reduce([p for p in pale if len(p) == len(xs[0])])
    edges = np.concatenate([[x[0]], np.sqrt(x[1:] * x[:-1]), [x[-1]]])
    for i in np.flatnonzero(all_pale):
        axis.axvspan(edges[i], edges[i + 1], color=SHADE, linewidth=0, zorder=0)


def _log_x(axis: Axes, label: str, x: Array | None = None) -> None:
    """Set a logarithmic axis of sizes from the first to the last of `x`; None: of what was drawn."""
    axis.set_xscale("log")
    axis.set_xlabel(label)
    low, high = (float(v) for v in (axis.dataLim.intervalx if x is None else x[[0, -1]]))
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(FixedLocator(ticks(low, high, most=6)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _power(v)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(visible=True, color=GRID, linewidth=0.7)
    axis.set_axisbelow(True)


def _multiples(axis: Axes, values: Sequence[float]) -> None:
    """Scale the axis by the curves, not by how far an uncertain band reaches."""
    axis.set_yscale("log")
    low, high = min([0.8, *values]), max([1.25, *values])
    low, high = low / 1.5, high * 1.5
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(FixedLocator(ticks(low, high, most=7)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.yaxis.set_minor_locator(NullLocator())


def _seen(axis: Axes) -> tuple[float, float]:
    ys = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axis.lines])
    ys = ys[np.isfinite(ys) & (ys > 0)]
    if not len(ys):
        return 1.0, 10.0
    margin = max((ys.max() / ys.min()) ** 0.06, 1.02)
    return float(ys.min() / margin), float(ys.max() * margin)


def _power(value: float) -> str:
    if value < 1e5:
        return f"{value:g}"
    exponent = int(np.floor(np.log10(value) + 1e-9))
    lead = f"{value / 10**exponent:.3g}"
    return rf"$10^{{{exponent}}}$" if lead == "1" else rf"${lead}\cdot10^{{{exponent}}}$"


def _handle(style: SeriesStyle, name: str) -> Line2D:
    return Line2D([], [], color=style.colour, linewidth=2.4, linestyle=style.line, marker=style.marker, markersize=6, markerfacecolor="white", markeredgewidth=1.4, label=name)  # fmt: skip


def _varies(curve: Multipliers) -> bool:
    return bool(np.isfinite(curve.tokens).all() and np.ptp(curve.tokens) > 0)


def _tokens(curve: Multipliers) -> str:
    if np.isnan(curve.tokens).any():
        return ""
    if _varies(curve):
        return f" {rounded(float(curve.amount[0]))}"
    return f" (both trained on {rounded(float(curve.tokens[0]))} tokens)"


def _what(measure: CostMeasure) -> str:
    words = {"flops": "FLOPs", "seconds": "Seconds", "bytes_moved": "Bytes read", "stored_bytes": "Bytes stored"}  # fmt: skip
    return words.get(measure.name, _capital(measure.label))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
