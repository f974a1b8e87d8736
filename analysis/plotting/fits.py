"""A figure for every fit: runs, curve, two bands, residuals, and where it extrapolates.

    law_figure(fit)                         a law of several sizes: a column for each, the others held at their middle
    law_figure({"dense": a, "moe": b})      several architectures, one colour each
    curve_figure({"dense": curve})          a curve of one size (`memscale fit`), or a link
    chain_figure(chain)                     sizes to loss, loss to outcome, and sizes to outcome
    isoflop_figure(fit)                     the budgets, and the line through their optima
    envelope_figure(fit)                    the envelope of training curves, and its line

Each returns a matplotlib figure; `analysis.plotting.sweep.save` writes it, `analysis.plotting.sweep.image` gives its bytes. Colours,
markers and dashes: analysis/plotting/style.py; extrapolation is hatched, so that it shows in grey print, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from analysis.fitting.result import Band, LawFit
from analysis.fitting.two_stage import TwoStageFit
from analysis.formatting import count
from analysis.laws.shared_coefficients import SharedCoefficients
from analysis.plotting.style import SeriesStyle, series_styles
from analysis.plotting.sweep import STYLE, ticks
from analysis.scaling.envelope import Envelope
from analysis.scaling.isoflop import Budget, IsoflopFit

Array = NDArray[np.float64]

BEYOND = 4.0
"""Factor beyond the largest run to which curves are drawn."""

LABELS = {
    "params": "Parameters",
    "total_params": "Total parameters",
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
GREY = "#555555"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Series:
    """What one architecture puts into one column."""

    x: Array
    y: Array
    residuals: Array
    """Relative, observed over fitted less one, or in the units of the outcome."""
    at: Array
    band: Band
    style: SeriesStyle
    held: NDArray[np.int64]
    """Rows that a hold-out predicted."""
    held_errors: Array


def law_figure(
    fits: LawFit | Mapping[str, LawFit],
    *,
    outcome: str | None = None,
    beyond: float = BEYOND,
) -> Figure:
    """Return a column for every size of the law: the outcome above, the residuals below.

    The other sizes are held at their geometric mean, and each run is moved there along the law, keeping its residual
    (a component-plus-residual plot; Larsen and McCleary 1972). Crosses below are held-out runs, predicted from the rest.

    Args:
        fits: One fit, or fits by architecture; those without numbers are named below the figure.
        outcome: Label; the name of what was fitted if None.
        beyond: Factor beyond the largest run to which curves are drawn.

    Raises:
        ValueError: If no fit has numbers, or they are of laws with different inputs.
    """
    given = fits if isinstance(fits, Mapping) else {_plain(fits): fits}
    usable = {name: fit for name, fit in given.items() if fit.usable}
    _need(given, usable)
    first = next(iter(usable.values()))
    if any(fit.law.inputs != first.law.inputs for fit in usable.values()):
        raise ValueError("figure: the fits are of laws with different inputs; draw them apart")
    parts = [part for name, fit in usable.items() for part in _parts(name, fit)]
    label = outcome or _label(first.outcome)
    names = [n for n in first.law.inputs if n != "group"]
    middle = {n: _middle(np.concatenate([f.inputs[n] for f in usable.values()])) for n in names}
    styles = series_styles(name for name, _, _, _ in parts)
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(len(names))
        for column, size in enumerate(names):
            series = [
                _law_series(fit, rows, fixed, size, middle, styles[name], beyond)
                for name, fit, rows, fixed in parts
            ]
            others = ", ".join(f"{n} {count(middle[n])}" for n in names if n != size)
            _column(
                axes[0, column], axes[1, column], series, size=size,
                zeros=any((fit.inputs[size] == 0).any() for fit in usable.values()),
                title=f"at {others}" if others else "", outcome=label if column == 0 else "",
                relative=True,
            )  # fmt: skip
        equations = dict.fromkeys(f.law.equation for f in usable.values())
        _finish(figure, styles, given, [" · ".join(equations)], held=True, level=first.level)
    return figure


def curve_figure(
    fits: LawFit | Mapping[str, LawFit],
    *,
    x: str = "Size",
    outcome: str = "Outcome",
    beyond: float = BEYOND,
) -> Figure:
    """Return the curves of one size with their residuals.

    Args:
        fits: One fit, or fits by architecture.
        x: Label, or a name of LABELS.
        outcome: Label.
        beyond: Factor beyond the largest run to which curves are drawn.

    Raises:
        ValueError: If no fit has numbers.
    """
    return curves_figure({"": fits if isinstance(fits, Mapping) else {"fit": fits}}, x={"": x}, outcome={"": outcome}, beyond=beyond)  # fmt: skip


def curves_figure(
    columns: Mapping[str, Mapping[str, LawFit]],
    *,
    x: Mapping[str, str],
    outcome: Mapping[str, str],
    beyond: float = BEYOND,
) -> Figure:
    """Return a column for each set of fits by architecture.

    Args:
        columns: Title to fits by architecture.
        x: Title to label of the size.
        outcome: Title to label of the outcome.
        beyond: Factor beyond the largest run to which curves are drawn.

    Raises:
        ValueError: If no fit has numbers.
    """
    everything = {f"{n}, {t}" if t else n: f for t, fits in columns.items() for n, f in fits.items()}  # fmt: skip
    usable = {name: fit for name, fit in everything.items() if fit.usable}
    _need(everything, usable)
    styles = series_styles(name for fits in columns.values() for name in fits)
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(len(columns))
        for column, (title, fits) in enumerate(columns.items()):
            series = [_curve_series(fit, styles[n], beyond) for n, fit in fits.items() if fit.usable]  # fmt: skip
            _column(
                axes[0, column], axes[1, column], series, size=x[title], title=title,
                outcome=outcome[title], relative=False,
            )  # fmt: skip
        level = next(iter(usable.values())).level
        shown = {n: s for n, s in styles.items() if any(n in f and f[n].usable for f in columns.values())}  # fmt: skip
        equations = dict.fromkeys(f.law.equation for f in usable.values())
        _finish(figure, shown, everything, list(equations), held=False, level=level)
    return figure


def chain_figure(
    chains: TwoStageFit | Mapping[str, TwoStageFit],
    *,
    outcome: str | None = None,
    size: str | None = None,
    beyond: float = BEYOND,
) -> Figure:
    """Return three columns: loss against a size, the outcome against loss, the outcome against the size through both.

    Args:
        chains: One chain, or chains by architecture.
        outcome: Label; the name of what was fitted if None.
        size: Input of the law on the horizontal axis; its first if None.
        beyond: Factor beyond the largest run to which curves are drawn.

    Raises:
        ValueError: If no chain has numbers.
    """
    given = chains if isinstance(chains, Mapping) else {_plain(chains.to_loss): chains}
    usable = {name: chain for name, chain in given.items() if chain.usable}
    _need(given, usable)
    styles = series_styles(usable)
    first = next(iter(usable.values()))
    size = size or first.to_loss.law.inputs[0]
    loss, outcome = _label(first.to_loss.outcome), outcome or _label(first.outcome)
    names = [n for n in first.to_loss.law.inputs if n != "group"]
    middle = {n: _middle(np.concatenate([c.to_loss.inputs[n] for c in usable.values()])) for n in names}  # fmt: skip
    others = ", ".join(f"{n} {count(middle[n])}" for n in names if n != size)
    title = f"at {others}" if others else ""
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(3)
        losses = [_law_series(c.to_loss, None, {}, size, middle, styles[n], beyond) for n, c in usable.items()]  # fmt: skip
        _column(axes[0, 0], axes[1, 0], losses, size=size, title=f"1. {title}", outcome=loss, relative=True)  # fmt: skip
        links = [_curve_series(c.to_outcome, styles[n], 1.0, margin=1.15) for n, c in usable.items()]  # fmt: skip
        _column(axes[0, 1], axes[1, 1], links, size=loss, title="2. the link", outcome=outcome, relative=False)  # fmt: skip
        through = [_chain_series(c, size, middle, styles[n], beyond) for n, c in usable.items()]
        _column(axes[0, 2], axes[1, 2], through, size=size, title=f"3. through both, {title}", outcome=outcome, relative=False)  # fmt: skip
        equations = [first.to_loss.law.equation, first.to_outcome.law.equation]
        _finish(figure, styles, given, equations, held=True, level=first.level)
    return figure


def isoflop_figure(fit: IsoflopFit, *, size: str = "params", outcome: str = "Loss") -> Figure:
    """Return the budgets with their curves and residuals, and the line through the optima with the parametric answer.

    Args:
        fit: Of `fit_isoflop`.
        size: params or tokens.
        outcome: Label.
    """
    line = fit.lines[size]
    budgets = list(line.budgets)
    styles = series_styles(f"{b.compute:.3g} FLOPs" for b in budgets)
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(2)
        upper, lower = axes[0, 0], axes[1, 0]
        for budget, style in zip(budgets, styles.values(), strict=True):
            _draw_budget(upper, lower, budget, style)
        _axes_of(upper, lower, size, outcome, "Residual")
        if line.method == "akima":
            lower.yaxis.set_visible(False)
            lower.text(0.5, 0.5, "the curve goes through the mean losses", transform=lower.transAxes, ha="center", va="center", color=GREY)  # fmt: skip
        low = min(float(b.x.min()) for b in budgets)
        high = max(float(b.x.max()) for b in budgets)
        _log_axis(upper, low / 1.2, high * 1.2)
        upper.set_title("Budgets; ring: optimum, bar: its interval")
        _draw_line(axes[0, 1], axes[1, 1], fit, size, list(styles.values()))
        shown = dict(list(styles.items())[:: max(1, len(styles) // 8)])
        left = [b.sentence for b in budgets if not b.usable]
        _finish(
            figure, shown, {}, [line.sentence if not left else "; ".join(left[:3])], held=False,
            level=line.level, band="band: line over resamples",
        )  # fmt: skip
    return figure


def envelope_figure(fit: Envelope, *, outcome: str = "Loss") -> Figure:
    """Return the envelope of training curves, and which size wins at which budget, with its line."""
    style = next(iter(series_styles(["envelope"]).values()))
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(2)
        sizes = np.unique(fit.params)
        colours = series_styles(f"{count(s)} wins" for s in sizes)
        for value, look in zip(sizes, colours.values(), strict=True):
            mine = fit.params == value
            edge = bool(fit.at_edge[mine].all())
            axes[0, 0].plot(fit.compute[mine], fit.loss[mine], ".", color="#AAAAAA" if edge else look.colour, markersize=4)  # fmt: skip
        axes[1, 0].axis("off")
        _axes_of(axes[0, 0], None, "training_flops", outcome, "")
        axes[0, 0].set_title("Envelope; grey: at the edge")
        _log_axis(axes[0, 0], float(fit.compute.min()), float(fit.compute.max()))
        upper, lower = axes[0, 1], axes[1, 1]
        good = ~fit.at_edge
        upper.plot(fit.compute[good], fit.params[good], ".", color=style.colour, markersize=3)
        upper.plot(fit.compute[~good], fit.params[~good], ".", color="#AAAAAA", markersize=3)
        high = float(fit.compute.max()) * BEYOND
        at = np.geomspace(float(fit.compute.min()), high, 100)
        if fit.exponent is not None and fit.coefficient is not None:
            upper.plot(at, fit.coefficient * at**fit.exponent, color=style.colour, linewidth=2)
            lines = fit.lines[np.isfinite(fit.lines).all(axis=1)]
            if len(lines):
                curves = np.exp(lines[:, :1] + lines[:, 1:] * np.log(at))
                upper.fill_between(at, *np.quantile(curves, [0.025, 0.975], axis=0), color=style.colour, alpha=0.18, linewidth=0)  # fmt: skip
            r = fit.params[good] / (fit.coefficient * fit.compute[good] ** fit.exponent) - 1
            lower.plot(fit.compute[good], r, ".", color=style.colour, markersize=3)
        _shade(upper, lower, float(fit.compute.min()), float(fit.compute.max()))
        upper.set_yscale("log")
        _log_values(upper)
        _axes_of(upper, lower, "training_flops", "Parameters", "Residual (relative)")
        _log_axis(upper, at[0], high)
        upper.set_title("Size that wins")
        _finish(figure, colours if len(colours) <= 10 else {}, {}, [fit.sentence], held=False, level=0.95, band="band: line over resampled runs")  # fmt: skip
    return figure


def _label(outcome: str) -> str:
    """Return the label of an outcome column: of a path its end, for somebody's own column has its own name."""
    known = {"loss": "Loss (nats per token)", "accuracy": "Accuracy", "error": "Error"}
    return known.get(outcome, outcome.rpartition("/")[2] or outcome)


def _grid(n_columns: int) -> tuple[Figure, Any]:
    figure = Figure(
        figsize=(1.0 + 3.9 * n_columns, 5.4), layout=ConstrainedLayoutEngine(wspace=0.04)
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, n_columns, squeeze=False, sharex="col", gridspec_kw={"height_ratios": [3, 1.15]})  # fmt: skip
    return figure, axes


def _parts(
    name: str, fit: LawFit
) -> list[tuple[str, LawFit, NDArray[np.bool_] | None, dict[str, float]]]:
    """Return the series of a fit: one, or one for every group of a law with groups."""
    if not isinstance(fit.law, SharedCoefficients):
        return [(name, fit, None, {})]
    group = fit.inputs["group"]
    return [(g, fit, group == i, {"group": float(i)}) for i, g in enumerate(fit.law.groups)]


def _law_series(
    fit: LawFit,
    rows: NDArray[np.bool_] | None,
    fixed: Mapping[str, float],
    size: str,
    middle: Mapping[str, float],
    style: SeriesStyle,
    beyond: float,
) -> _Series:
    chosen = np.ones(len(fit.y), dtype=bool) if rows is None else rows
    x = _positive(fit.inputs[size][chosen])
    high = 1.0 if size == "sparsity" else np.inf
    at = np.geomspace(x.min() / 1.2, min(x.max() * beyond, 0.5 * (x.max() + high)), 120)
    held = {n: v for n, v in {**middle, **fixed}.items() if n != size}

    def slice_at(values: Array) -> dict[str, Array]:
        return {size: values} | {n: np.full(len(values), v) for n, v in held.items()}

    band = fit.predict(slice_at(at))
    fitted = fit.law.evaluate({n: v[chosen] for n, v in fit.inputs.items()}, fit.best)
    ratio = fit.y[chosen] / fitted
    on_slice = fit.law.evaluate(slice_at(fit.inputs[size][chosen]), fit.best)
    held_rows, errors = np.empty(0, dtype=np.int64), np.empty(0)
    if fit.hold_out is not None:
        mine = np.flatnonzero(chosen)
        inside = np.isin(fit.hold_out.rows, mine)
        held_rows = np.searchsorted(mine, fit.hold_out.rows[inside])
        errors = np.expm1(-fit.hold_out.log_errors[inside])
    return _Series(
        x=x, y=on_slice * ratio, residuals=ratio - 1, at=at, band=band, style=style,
        held=held_rows, held_errors=errors,
    )  # fmt: skip


def _curve_series(
    fit: LawFit, style: SeriesStyle, beyond: float, *, margin: float = 1.2
) -> _Series:
    at = np.geomspace(fit.x.min() / margin, fit.x.max() * max(beyond, margin), 160)
    return _Series(
        x=fit.x, y=fit.y, residuals=-fit.residuals, at=at, band=fit.predict(at), style=style,
        held=np.empty(0, dtype=np.int64), held_errors=np.empty(0),
    )  # fmt: skip


def _chain_series(
    chain: TwoStageFit, size: str, middle: Mapping[str, float], style: SeriesStyle, beyond: float
) -> _Series:
    """Return predictions through both steps; a run of the link lies where its loss puts it on the slice."""
    law = _law_series(chain.to_loss, None, {}, size, middle, style, beyond)
    at = {size: law.at} | {n: np.full(len(law.at), v) for n, v in middle.items() if n != size}
    link = chain.to_outcome
    # Runs of the link that the law knows, too: matched by their loss.
    order = {round(float(v), 12): i for i, v in enumerate(chain.to_loss.y)}
    pairs = [(order[k], j) for j, v in enumerate(link.x) if (k := round(float(v), 12)) in order]
    first = np.asarray([i for i, _ in pairs], dtype=np.int64)
    second = np.asarray([j for _, j in pairs], dtype=np.int64)
    best = link.best
    (name,) = link.law.inputs
    own = chain.predict({n: v[first] for n, v in chain.to_loss.inputs.items()}).y if pairs else np.empty(0)  # fmt: skip
    on_slice = link.law.evaluate({name: law.y[first]}, best)
    moved = on_slice + link.y[second] - link.law.evaluate({name: link.x[second]}, best)
    return _Series(
        x=law.x[first], y=moved, residuals=link.y[second] - own, at=law.at, band=chain.predict(at),
        style=style, held=np.empty(0, dtype=np.int64), held_errors=np.empty(0),
    )  # fmt: skip


def _column(
    upper: Axes,
    lower: Axes,
    series: Sequence[_Series],
    *,
    size: str,
    title: str,
    outcome: str,
    relative: bool,
    zeros: bool = False,
) -> None:
    many = len(series) > 3
    for one in series:
        style = one.style
        upper.fill_between(one.at, one.band.new_low, one.band.new_high, color=style.colour, alpha=0.03 if many else 0.08, linewidth=0)  # fmt: skip
        upper.fill_between(one.at, one.band.low, one.band.high, color=style.colour, alpha=0.1 if many else 0.22, linewidth=0)  # fmt: skip
        upper.plot(one.at, one.band.y, color=style.colour, linestyle=style.line, linewidth=1.0)
        # Thick where this one has runs: another may reach further.
        own = (one.at >= one.x.min()) & (one.at <= one.x.max())
        upper.plot(one.at[own], one.band.y[own], color=style.colour, linestyle=style.line, linewidth=2.2)  # fmt: skip
        small = 3.2 if len(one.x) > 60 else 5
        points: Any = {"linestyle": "none", "marker": style.marker, "markersize": small, "markeredgewidth": 1.0,
                  "markerfacecolor": "white", "markeredgecolor": style.colour}  # fmt: skip
        upper.plot(one.x, one.y, **points)
        lower.plot(one.x, one.residuals, **points)
        if len(one.held):
            lower.plot(one.x[one.held], one.held_errors, linestyle="none", marker="x", markersize=small + 1, color=style.colour)  # fmt: skip
    _axes_of(upper, lower, size, outcome, "Residual (relative)" if relative else "Residual")
    if zeros:
        lower.set_xlabel(f"{LABELS.get(size, size)} (leftmost: none)")
    if not series:
        return
    low, high = min(s.x.min() for s in series), max(s.x.max() for s in series)
    _shade(upper, lower, low, high)
    values = np.concatenate([np.concatenate([s.y, s.band.y]) for s in series])
    span = float(np.ptp(values)) or 1.0
    upper.set_ylim(float(values.min()) - 0.08 * span, float(values.max()) + 0.08 * span)
    _log_axis(upper, min(s.at[0] for s in series), max(s.at[-1] for s in series))
    upper.set_title(title, fontsize=9, fontweight="normal", color=GREY)


def _shade(upper: Axes, lower: Axes, low: float, high: float) -> None:
    """Hatch what lies outside the runs."""
    for axis in (upper, lower):
        left, right = low / 1e6, high * 1e6
        for start, end in ((left, low), (high, right)):
            axis.axvspan(start, end, facecolor="#F3F3F3", edgecolor="#D5D5D5", hatch="////", linewidth=0, zorder=0)  # fmt: skip


def _axes_of(upper: Axes, lower: Axes | None, size: str, outcome: str, residual: str) -> None:
    label = LABELS.get(size, size)
    upper.set_ylabel(outcome)
    for axis in (upper, *([lower] if lower is not None else [])):
        axis.grid(visible=True, color="#E5E5E5", linewidth=0.8)
        axis.set_axisbelow(True)
    if lower is None:
        upper.set_xlabel(label)
        upper.tick_params(labelbottom=True)
        return
    lower.axhline(0, color=GREY, linewidth=1)
    lower.set_ylabel(residual if outcome else "")
    lower.set_xlabel(label)


def _log_axis(axis: Axes, low: float, high: float) -> None:
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(FixedLocator(ticks(low, high, most=6)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())


def _log_values(axis: Axes) -> None:
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(FixedLocator(ticks(low, high, most=6)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_minor_locator(NullLocator())


def _tick(value: float) -> str:
    if 1e-2 <= value < 1e15:
        return f"{value:g}" if value < 1000 else count(value).replace(".00", "").replace(".0", "")
    exponent = int(np.floor(np.log10(value) + 1e-9))
    lead = f"{value / 10**exponent:.3g}"
    return rf"$10^{{{exponent}}}$" if lead == "1" else rf"${lead}\cdot10^{{{exponent}}}$"


def _draw_budget(upper: Axes, lower: Axes, budget: Budget, style: SeriesStyle) -> None:
    shown: Any = {"linestyle": "none", "marker": style.marker, "markersize": 4.5, "markeredgecolor": style.colour}  # fmt: skip
    upper.plot(budget.x, budget.y, markerfacecolor=style.colour if budget.usable else "white", **shown)  # fmt: skip
    if not budget.usable:
        upper.plot(budget.x, budget.y, linestyle=":", color=style.colour, linewidth=1)
        return
    if budget.coefficients is not None:
        c0, c1, c2 = budget.coefficients
        at = np.linspace(np.log(budget.x.min()), np.log(budget.x.max()), 80)
        upper.plot(np.exp(at), c0 + c1 * at + c2 * at**2, color=style.colour, linestyle=style.line, linewidth=1.4)  # fmt: skip
        log = np.log(budget.x)
        lower.plot(budget.x, budget.y - (c0 + c1 * log + c2 * log**2), markerfacecolor="white", **shown)  # fmt: skip
    else:
        upper.plot(*_means(budget), color=style.colour, linewidth=1, alpha=0.6)
    assert budget.optimum is not None
    assert budget.loss is not None
    if budget.interval is not None:
        upper.plot(budget.interval, [budget.loss] * 2, color="black", linewidth=2.4, zorder=4, solid_capstyle="butt")  # fmt: skip
    upper.plot([budget.optimum], [budget.loss], marker="o", markersize=8, markerfacecolor="none", markeredgecolor="black", zorder=5)  # fmt: skip


def _means(budget: Budget) -> tuple[Array, Array]:
    sizes, member = np.unique(budget.x, return_inverse=True)
    return sizes, np.bincount(member.reshape(-1), weights=budget.y) / np.bincount(member.reshape(-1))  # fmt: skip


def _draw_line(
    upper: Axes, lower: Axes, fit: IsoflopFit, size: str, styles: Sequence[SeriesStyle]
) -> None:
    line = fit.lines[size]
    compute = np.asarray([b.compute for b in line.budgets])
    at = np.geomspace(compute.min() / 1.5, compute.max() * BEYOND**2, 80)
    colour = "#000000"
    said = []
    if line.usable:
        values = np.asarray([line.at(c) for c in at])
        upper.plot(at, values[:, 0], color=colour, linewidth=1.8)
        if np.isfinite(values[:, 1:]).all():
            upper.fill_between(at, values[:, 1], values[:, 2], color=colour, alpha=0.15, linewidth=0)  # fmt: skip
        said.append(f"line: exponent {line.exponent:.3f}")
    if fit.parametric.usable:
        other = 0 if size == "params" else 1
        upper.plot(at, [fit.parametric_optimum(c)[other] for c in at], color="#D55E00", linestyle=(0, (5, 2)), linewidth=1.6)  # fmt: skip
        said.append(f"dashed: parametric law {fit.exponents[size][0]:.3f}")
    for budget, style in zip(line.budgets, styles, strict=True):
        if budget.optimum is None:
            continue
        if budget.interval is not None:
            upper.plot([budget.compute] * 2, budget.interval, color=style.colour, linewidth=2)
        upper.plot([budget.compute], [budget.optimum], linestyle="none", marker=style.marker, color=style.colour)  # fmt: skip
        if line.usable:
            lower.plot([budget.compute], [budget.optimum / line.at(budget.compute)[0] - 1], linestyle="none", marker=style.marker, color=style.colour)  # fmt: skip
    _shade(upper, lower, float(compute.min()), float(compute.max()))
    upper.set_yscale("log")
    _axes_of(upper, lower, "training_flops", f"Optimal {LABELS[size].lower()}", "Residual (relative)")  # fmt: skip
    _log_axis(upper, at[0], at[-1])
    _log_values(upper)
    upper.set_title("; ".join(said), fontsize=9, fontweight="normal", color=GREY)


def _finish(
    figure: Figure,
    styles: Mapping[str, SeriesStyle],
    given: Mapping[str, Any],
    lines: Sequence[str],
    *,
    held: bool,
    level: float,
    band: str | None = None,
) -> None:
    """Add the legend, and below the figure what is what and what has no curve."""
    for axis in figure.axes:
        if axis.get_yscale() == "linear":
            axis.yaxis.set_major_locator(MaxNLocator(nbins=5))
    handles: list[Any] = [
        Line2D([], [], color=s.colour, marker=s.marker, markerfacecolor="white", linestyle=s.line, label=name)
        for name, s in styles.items()
    ]  # fmt: skip
    handles.append(Patch(facecolor="#F3F3F3", edgecolor="#D5D5D5", hatch="////", label="extrapolation"))  # fmt: skip
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False, fontsize=9)  # fmt: skip
    words = [
        band
        or f"dark band: the curve, light: one new run, both {level:.0%} · thin line: beyond the runs of its kind"
    ]
    if held:
        words.append("cross: held-out run, predicted from the rest")
    words += lines
    words += [f"{name}: no curve, {fit.sentence}" for name, fit in given.items() if not fit.usable]
    figure.supxlabel("\n".join(_wrapped(" · ".join(words), int(13 * figure.get_figwidth()))), fontsize=8, color=GREY)  # fmt: skip


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _need(given: Mapping[str, Any], usable: Mapping[str, Any]) -> None:
    if not usable:
        why = "; ".join(f"{name}: {fit.sentence}" for name, fit in given.items()) or "no fit given"
        raise ValueError(f"figure: no fit has numbers to draw ({why})")


def _plain(fit: LawFit) -> str:
    return fit.law.name.replace("_", " ")


def _middle(values: Array) -> float:
    positive = values[values > 0]
    return float(np.exp(np.log(positive).mean())) if len(positive) else 0.0


def _positive(x: Array) -> Array:
    """Return sizes for a logarithmic axis: none at all stands a step left of the smallest."""
    some = x[x > 0]
    return np.where(x > 0, x, (some.min() if len(some) else 1.0) / 2)


DRAW: Mapping[type, Callable[..., Figure]] = {
    LawFit: law_figure,
    TwoStageFit: chain_figure,
    IsoflopFit: isoflop_figure,
    Envelope: envelope_figure,
}
"""The figure of each kind of fit."""


def draw(fit: Any, **options: Any) -> Figure:
    """Return the figure of any fit.

    Raises:
        ValueError: If it is of no kind known, or has no numbers.
    """
    if type(fit) not in DRAW:
        raise ValueError(f"figure: of {', '.join(k.__name__ for k in DRAW)}, got {type(fit).__name__}")  # fmt: skip
    if isinstance(fit, LawFit) and fit.objective_of.residual == "value" and len(fit.inputs) == 1:
        return curve_figure(fit, **options)
    return DRAW[type(fit)](fit, **options)
