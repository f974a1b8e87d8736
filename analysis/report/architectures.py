"""Report sections comparing architectures: multipliers, frontier, next runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.formatting import Column, Table, count, flops, seconds
from analysis.plotting.axes import NO_BAND, lacks_bands
from analysis.plotting.design_figure import design_figure
from analysis.plotting.frontier_figure import frontier_figure
from analysis.plotting.multipliers_figure import multipliers_figure
from analysis.plotting.style import SeriesStyle
from analysis.report.fit_tables import laws_table
from analysis.report.next_runs_table import next_runs_table
from analysis.scaling.comparison import ArchitectureComparison
from analysis.scaling.compute_multiplier import Multipliers
from analysis.scaling.cost_measures import CostMeasure
from analysis.scaling.frontier import LEAST_SHARE, Frontier, OptimalAllocation

Array = NDArray[np.float64]

AMOUNTS = ("flops", "seconds", "bytes_moved", "stored_bytes")
"""Cost measures of the figure of multipliers."""

SIZES = ("active_params", "flops")
"""Cost measures of the figure of effective parameters."""

UNITS = {"flops": "FLOPs", "seconds": "s"}
"""Of a budget."""


FIGURE_STEMS = (
    "multipliers",
    "effective_size",
    "frontier_flops",
    "frontier_seconds",
    "next_runs",
)
"""Files of the figures, those that a report has."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of the page."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By the stem of the file that each is saved in."""
    table: Table | None = None
    missing: Sequence[str] = ()
    """What is not shown, why, and how to get it."""


@dataclass(frozen=True, kw_only=True)
class ArchitectureSections:
    """The sections, in the order of the page."""

    laws: Table | None
    """What they rest on."""
    multipliers: Section
    frontier: Section
    next_runs: Section


def architecture_sections(
    comparison: ArchitectureComparison, styles: Mapping[str, SeriesStyle] | None = None
) -> ArchitectureSections:
    """Return the sections of a comparison: its figures drawn, its numbers as text.

    Args:
        comparison: Of `compare_architectures`.
        styles: By architecture, as in the report's other figures; None: each figure has its own.
    """
    laws, missing = comparison.laws, comparison.unavailable
    frontiers, design = comparison.frontiers, comparison.design
    by_name = {} if laws is None else {name: law.fit for name, law in laws.by_name.items()}
    return ArchitectureSections(
        laws=replace(laws_table(by_name), title="Laws of the architectures") if by_name else None,
        multipliers=_multipliers_section(comparison, styles),
        frontier=Section(
            figures={
                f"frontier_{f.measure.name}": frontier_figure(f, styles=styles)
                for f in frontiers[:1]
            },
            table=_frontier_table(frontiers) if frontiers else None,
            missing=missing.get("frontier", ()),
        ),
        next_runs=Section(
            figures={} if design is None else {"next_runs": design_figure(design, styles=styles)},
            table=None if design is None else next_runs_table(design, rows=8),
            missing=missing.get("next_runs", ()),
        ),
    )


def _multipliers_section(
    comparison: ArchitectureComparison, styles: Mapping[str, SeriesStyle] | None
) -> Section:
    curves = comparison.multipliers
    amounts = [c for name in AMOUNTS for c in curves if c.measure.name == name]
    sizes = [
        c
        for name in SIZES
        for c in curves
        if comparison.has_sizes and c.measure.name == name and np.isfinite(c.size).any()
    ]
    figures = {"multipliers": multipliers_figure(amounts, styles=styles)} if amounts else {}
    if sizes:
        figures["effective_size"] = multipliers_figure(sizes, size=True, styles=styles)
    return Section(
        figures=figures,
        table=_multipliers_table(curves, sizes=bool(sizes)) if curves else None,
        missing=comparison.unavailable.get("multipliers", ()),
    )


def _multipliers_table(curves: Sequence[Multipliers], *, sizes: bool) -> Table:
    """Return some points of every curve: where both have runs, and the largest amount."""
    points = [(curve, i) for curve in curves for i in _telling_points(~curve.extrapolated)]
    reference, outcome, level = curves[0].reference, curves[0].outcome, curves[0].level

    def tokens(curve: Multipliers, i: int) -> str:
        return "–" if np.isnan(curve.tokens[i]) else count(curve.tokens[i])

    def times(curve: Multipliers, i: int) -> str:
        return _with_band(curve.multiplier, (curve.low, curve.high), i)

    def times_size(curve: Multipliers, i: int) -> str:
        return _with_band(curve.size, (curve.size_low, curve.size_high), i)

    def rests_on(curve: Multipliers, i: int) -> str:
        return curve.refusals.get(i) or _rests_on(
            _outside(curve, i), "within the runs of both", "the runs"
        )

    columns = [
        _point_column("at equal", lambda curve, _: curve.measure.label, fields=_multiplier_values),
        _point_column("architecture", lambda curve, _: curve.candidate),
        _point_column("amount", lambda curve, i: _amount(curve.measure, curve.amount[i]), True),
        _point_column("tokens", tokens, True),
        _point_column(f"× that {reference} needs", times, True),
        *([_point_column(f"× the size that {reference} needs", times_size, True)] if sizes else []),
        _point_column("rests on", rests_on),
    ]
    notes = [
        f"× that {reference} needs: for the {outcome} that the architecture has at that amount;"
        " 2 means that half the FLOPs, seconds or bytes do;"
        f" {_band_words(level, [(curve.multiplier, curve.low) for curve in curves])}"
    ]
    if not sizes:
        notes.append("tokens grow with the size as they do in the runs")
    return Table.of("Multipliers", points, columns, [*notes, *_verdict_notes(curves)])


def _point_column(
    heading: str,
    cell: Callable[[Any, int], str],
    numeric: bool = False,
    *,
    fields: Callable[[Any, int], dict[str, Any]] | None = None,
) -> Column:
    """Return a column of points (curve, i); one column of a table has the numbers of all."""
    return Column(
        heading,
        lambda point: cell(*point),
        numeric,
        lambda point: {} if fields is None else fields(*point),
    )


def _outside(curve: Multipliers, i: int) -> float:
    """Return the factor by which point i lies outside the runs of either architecture."""
    return float(max(curve.candidate_beyond[i], curve.reference_beyond[i]))


def _multiplier_values(curve: Multipliers, i: int) -> dict[str, Any]:
    """Return the numbers of one point."""
    return {
        "measure": curve.measure.name,
        "architecture": curve.candidate,
        "reference": curve.reference,
        "amount": float(curve.amount[i]),
        "tokens": float(curve.tokens[i]),
        "multiplier": float(curve.multiplier[i]),
        "multiplier_low": float(curve.low[i]),
        "multiplier_high": float(curve.high[i]),
        "size_multiplier": float(curve.size[i]),
        "size_multiplier_low": float(curve.size_low[i]),
        "size_multiplier_high": float(curve.size_high[i]),
        "outside_runs": _outside(curve, i),
        "verdict": str(curve.verdict.status),
        "refusal": curve.refusals.get(i),
    }


def _band_words(level: float, curves: Iterable[tuple[Array, Array]]) -> str:
    """Return what brackets are, or why no number has any; curves as of `lacks_bands`."""
    if lacks_bands(curves):
        return f"no band: {NO_BAND}, so nothing is claimed of these numbers"
    return f"[…] is the {level:.0%} band of resampled runs"


def _verdict_notes(curves: Iterable[Any]) -> list[str]:
    """Return why numbers are not to be relied on: laws below them that misfit or stay open."""
    verdicts = [curve.verdict for curve in curves if not curve.verdict.is_credible]
    return [f"not to be relied on: {words}" for words in dict.fromkeys(map(str, verdicts))]


def _frontier_table(frontiers: Sequence[Frontier]) -> Table:
    """Return some budgets of every frontier: within the runs, and the largest."""
    allocations = [best for one in frontiers for best in one.allocations.values()]
    # Without draws or a rival nobody wins any.
    drawn = any(np.isfinite(best.share).any() for best in allocations)
    points = [(one, i) for one in frontiers for i in _telling_points(_within_runs(one))]

    def budget(one: Frontier, i: int) -> str:
        return f"{_amount(one.measure, one.budgets[i])} {UNITS[one.measure.name]}"

    def of_best(
        show: Callable[[OptimalAllocation, int], str],
    ) -> Callable[[Frontier, int], str]:
        return lambda one, i: show(one.allocations[one.best[i]], i) if one.best[i] else "–"

    def tokens(of: OptimalAllocation, i: int) -> str:
        if np.isnan(of.tokens[i]):
            return "–"
        return _with_band(of.tokens, of.tokens_band, i, show=count)

    def rests_on(one: Frontier, i: int) -> str:
        if not one.best[i]:
            return one.sentence(i)
        return _rests_on(one.allocations[one.best[i]].beyond[i], "its runs", "its runs")

    columns = [
        _point_column("budget", budget, True, fields=_frontier_values),
        _point_column(
            "best" if any(one.compares for one in frontiers) else "architecture",
            lambda one, i: one.best[i] or "–",
        ),
        _point_column(
            "parameters",
            of_best(lambda of, i: _with_band(of.params, of.params_band, i, show=count)),
            True,
        ),
        _point_column(
            "memory",
            of_best(lambda of, i: count(of.memory[i]) if of.memory[i] > 0 else "–"),
            True,
        ),
        _point_column("tokens", of_best(tokens), True),
        _point_column(
            frontiers[0].outcome,
            of_best(lambda of, i: _with_band(of.loss, of.loss_band, i, show="{:.4g}".format)),
            True,
        ),
        *([_point_column("lowest in so many draws", _shares)] if drawn else []),
        _point_column("rests on", rests_on),
    ]
    ends = [(best.loss, best.loss_band[0]) for best in allocations]
    notes = [_band_words(frontiers[0].level, ends), *_verdict_notes(frontiers)]
    return Table.of("Frontier", points, columns, notes)


def _within_runs(one: Frontier) -> NDArray[np.bool_]:
    """Return at which budgets the best lies within its runs."""
    best = enumerate(one.best)
    return np.asarray([bool(n) and one.allocations[n].beyond[i] <= 1 + 1e-9 for i, n in best])


def _frontier_values(one: Frontier, i: int) -> dict[str, Any]:
    """Return the numbers of one budget."""
    found: dict[str, Any] = {
        "measure": one.measure.name,
        "budget": float(one.budgets[i]),
        "best" if one.compares else "architecture": one.best[i] or None,
        "verdict": str(one.verdict.status),
    }
    if not one.best[i]:
        return found
    of = one.allocations[one.best[i]]
    bands = {
        "params": (of.params, *of.params_band),
        "tokens": (of.tokens, *of.tokens_band),
        one.outcome: (of.loss, *of.loss_band),
    }
    for name, (value, low, high) in bands.items():
        found |= {name: float(value[i]), f"{name}_low": float(low[i])}
        found |= {f"{name}_high": float(high[i])}
    return found | {"memory_params": float(of.memory[i]), "outside_runs": float(of.beyond[i])}


def _shares(one: Frontier, i: int) -> str:
    """Return the share of draws that each architecture wins at budget i, largest first.

    Last, in how many none has a best size.
    """
    shares = {name: of.share[i] for name, of in one.allocations.items()}
    if not one.best[i] or np.isnan(shares[one.best[i]]):
        return "–"
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    ordered.append(("none", 1 - sum(shares.values())))
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered if share >= LEAST_SHARE)


def _amount(measure: CostMeasure, value: float) -> str:
    return {"flops": flops, "seconds": seconds}.get(measure.name, count)(value)


def _rests_on(beyond: float, inside: str, outside: str) -> str:
    return inside if beyond <= 1 + 1e-9 else f"{beyond:.3g} times outside {outside}"


def _telling_points(firm: NDArray[np.bool_]) -> list[int]:
    """Return the middle and last point that rest on runs, and the last of all."""
    inside = np.flatnonzero(firm)
    chosen = [inside[len(inside) // 2], inside[-1]] if len(inside) else [len(firm) // 2]
    return sorted({int(i) for i in (*chosen, len(firm) - 1)})


def _with_band(
    value: Array,
    band: tuple[Array, Array],
    i: int,
    *,
    show: Callable[[float], str] = "{:.3g}".format,
) -> str:
    low, high = band[0][i], band[1][i]
    if np.isnan(value[i]):
        return "none"
    if np.isnan(low):
        return show(value[i])
    return f"{show(value[i])} [{show(low)}, {show(high) if np.isfinite(high) else '∞'}]"
