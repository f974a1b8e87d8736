"""The part of the report that compares architectures: multipliers, the frontier, the most useful next runs.

Each is shown where the runs allow it; otherwise stands one sentence that says what is missing and how to get it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.formatting import Table, count, flops, seconds
from analysis.loading.load import Runs
from analysis.plotting.architectures import frontier_figure, multipliers_figure
from analysis.plotting.next_run import next_run_figure
from analysis.report.tables import laws_table
from analysis.scaling.architecture_laws import ArchitectureLaws
from analysis.scaling.compute_multiplier import Multipliers, multipliers
from analysis.scaling.cost_measures import COST_MEASURES, CostMeasure
from analysis.scaling.frontier import Frontier, frontier
from analysis.scaling.next_sweep import fit_sweep_laws, propose_from, ranking
from analysis.scaling.sweep_summary import SweepFits

SHOWN = ("flops", "seconds", "bytes_moved", "stored_bytes")
"""Measures that are held equal, those that a table has."""

SIZED = ("active_params", "flops")
"""Those at which effective parameters are shown."""

POINTS = 25
"""Amounts along every curve of multipliers."""

DRAWS = 400
"""Resamples behind the bands of one comparison, shared by all: with more architectures each gets fewer, so that a page
of ten takes no longer than one of five."""

FEWEST_DRAWS, MOST_DRAWS = 60, 200

BUDGETS = {"flops": "FLOPs", "seconds": "s"}
"""Of a frontier, with the units of a budget."""

COST_ERROR = 0.5
"""Relative error of a fitted cost from which on it says nothing about other sizes."""

N_NEXT = 3
"""Runs that are proposed."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One section of the page."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By the stem of the file that each is saved in."""
    table: Table | None = None
    missing: Sequence[str] = ()
    """What is not shown, why, and how to get it."""


@dataclass(frozen=True, kw_only=True)
class ArchitecturesCompared:
    """The sections, in the order of the page."""

    laws: Table | None
    """What they rest on."""
    multipliers: Shown
    frontier: Shown
    next_runs: Shown


def compare_architectures(
    runs: Runs, fits: SweepFits, *, trials: Sequence[Any] = (), say: Say = lambda _: None
) -> ArchitecturesCompared:
    """Return the sections about architectures.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`: its baseline is the reference of multipliers, its seed that of the draws.
        trials: Planned ones (`orchestrator.planning.pricing.PlannedTrial`), to choose the next runs from.
        say: Called with a line of progress before each long part.
    """
    table = runs.table
    names = sorted(set(table["architecture"].astype(str))) if len(table) else []
    outcome = "loss" if "loss" in table else "answer_nll"
    draws = int(np.clip(DRAWS // max(1, len(names) - 1), FEWEST_DRAWS, MOST_DRAWS))
    say(f"laws of {len(names)} {'architecture' if len(names) == 1 else 'architectures'}")
    try:
        families = fit_sweep_laws(table, outcome=outcome, n_draws=draws, seed=fits.seed, level=fits.level)  # fmt: skip
    except ValueError as error:
        why = Shown(missing=(f"Not for these runs: {error}.",))
        later = Shown(missing=("Needs the same laws.",))
        return ArchitecturesCompared(laws=None, multipliers=why, frontier=later, next_runs=later)
    left_out = tuple(f"Without {name}: {why}." for name, why in families.left_out.items())
    return ArchitecturesCompared(
        laws=laws_table({name: family.fit for name, family in families.by_name.items()}),
        multipliers=_multipliers(families, fits.baseline, table, left_out, say),
        frontier=_frontier(families, left_out, say),
        next_runs=_next_runs(families, runs, trials, say),
    )


def _multipliers(
    families: ArchitectureLaws,
    baseline: str,
    table: pd.DataFrame,
    left_out: tuple[str, ...],
    say: Say,
) -> Shown:
    names = list(families.by_name)
    if len(names) < 2:
        return Shown(missing=(*left_out, f"Multipliers compare architectures, and only {names[0]} has a law here; train another at six sizes or so, and where tokens vary at two lengths each."))  # fmt: skip
    reference = baseline if baseline in names else names[0]
    others = [name for name in names if name != reference]
    curves: dict[str, list[Multipliers]] = {}
    missing = list(left_out)
    for measure in (COST_MEASURES[name] for name in dict.fromkeys((*SHOWN, *SIZED))):
        why = _unpriced(families, measure)
        if why is not None:
            missing.append(f"Not at equal {measure.label}: {why}.")
            continue
        say(f"multipliers at equal {measure.label}")
        tokens = None if measure.with_tokens else _common_tokens(families, table)
        for name in others:
            low, high = families.named(name).curve.domain.amounts[measure.name]
            amounts = np.geomspace(low, 10 * high, POINTS)
            curves.setdefault(measure.name, []).append(
                multipliers(families, name, reference=reference, measure=measure.name, amounts=amounts, tokens=tokens)
            )  # fmt: skip
    amount = [c for name in SHOWN for c in curves.get(name, ())]
    # Along a ladder the law knows compute alone, and no size.
    sized = [c for name in SIZED for c in curves.get(name, ()) if np.isfinite(c.size).any()] if _has_sizes(families) else []  # fmt: skip
    figures = {"multipliers": multipliers_figure(amount)} if amount else {}
    if sized:
        figures["effective_size"] = multipliers_figure(sized, size=True)
    shown = [c for members in curves.values() for c in members]
    table_shown = _multipliers_table(shown, sizes=bool(sized)) if shown else None
    return Shown(figures=figures, table=table_shown, missing=missing)


def _multipliers_table(curves: Sequence[Multipliers], *, sizes: bool) -> Table:
    """Return some points of every curve: where both have runs, and the largest amount."""
    rows = []
    for curve in curves:
        for i in _told(~curve.extrapolated, len(curve.amount)):
            outside = max(curve.candidate_beyond[i], curve.reference_beyond[i])
            refused = curve.refusals.get(i)
            rows.append(
                (
                    curve.measure.label,
                    curve.candidate,
                    _amount(curve.measure, curve.amount[i]),
                    "–" if np.isnan(curve.tokens[i]) else count(curve.tokens[i]),
                    _with_band(curve.multiplier, curve.low, curve.high, i),
                    *((_with_band(curve.size, curve.size_low, curve.size_high, i),) if sizes else ()),
                    refused or ("within the runs of both" if outside <= 1 + 1e-9 else f"{outside:.3g} times outside the runs"),
                )
            )  # fmt: skip
    reference, outcome = curves[0].reference, curves[0].outcome
    return Table(
        title="Multipliers",
        columns=(
            "at equal", "architecture", "amount", "tokens", f"× that {reference} needs",
            *((f"× the size that {reference} needs",) if sizes else ()), "rests on",
        ),
        rows=tuple(rows),
        numeric=(False, False, True, True, True, *((True,) if sizes else ()), False),
        notes=(
            f"× that {reference} needs: for the {outcome} that the architecture has at that amount; 2 means that half the FLOPs, seconds or bytes do; […] is the {curves[0].level:.0%} band of resampled runs",
            *(() if sizes else ("tokens grow with the size as they do in the runs",)),
        ),
    )  # fmt: skip


def _frontier(families: ArchitectureLaws, left_out: tuple[str, ...], say: Say) -> Shown:
    if not _has_sizes(families):
        return Shown(missing=(*left_out, "No frontier: tokens grow in step with size in these runs, so what either is worth cannot be told; train a few of the sizes at two or three further lengths (grid: {train.tokens: […]})."))  # fmt: skip
    curves = families.curves().values()
    if len(curves) < 2 and not any(curve.has_tokens for curve in curves):
        return Shown(missing=(*left_out, "No frontier: one architecture trained on one number of tokens has no choice to make; train the sizes at two or three further lengths (grid: {train.tokens: […]})."))  # fmt: skip
    missing, found = list(left_out), []
    for measure in (COST_MEASURES[name] for name in BUDGETS):
        why = _unpriced(families, measure)
        if why is not None:
            missing.append(f"Not for budgets of {measure.label}: {why}.")
            continue
        say(f"frontier over {measure.label}")
        found.append(frontier(families, measure=measure.name))
    shown = [f for f in found if any(f.best)]
    missing += [f"No frontier over {f.measure.label}: {f.sentence(0)}." for f in found if not any(f.best)]  # fmt: skip
    if not shown:
        return Shown(missing=missing)
    return Shown(
        figures={f"frontier_{f.measure.name}": frontier_figure(f) for f in shown[:1]},
        table=_frontier_table(shown),
        missing=missing,
    )


def _frontier_table(frontiers: Sequence[Frontier]) -> Table:
    rows = []
    for one in frontiers:
        best = one.best
        firm = np.asarray([bool(n) and one.allocations[n].beyond[i] <= 1 + 1e-9 for i, n in enumerate(best)])  # fmt: skip
        for i in _told(firm, len(best)):
            budget = f"{_amount(one.measure, one.budgets[i])} {BUDGETS[one.measure.name]}"
            name = best[i]
            if not name:
                rows.append((budget, "–", "–", "–", "–", "–", "–", one.sentence(i)))
                continue
            allocation = one.allocations[name]
            outside = allocation.beyond[i]
            rows.append(
                (
                    budget,
                    name,
                    _with_band(allocation.params, *allocation.params_band, i, show=count),
                    count(allocation.memory[i]) if allocation.memory[i] > 0 else "–",
                    "–" if np.isnan(allocation.tokens[i]) else _with_band(allocation.tokens, *allocation.tokens_band, i, show=count),
                    _with_band(allocation.loss, *allocation.loss_band, i, show="{:.4g}".format),
                    "–" if np.isnan(allocation.share[i]) else ", ".join(f"{n} {c.share[i]:.0%}" for n, c in sorted(one.allocations.items(), key=lambda item: -item[1].share[i]) if c.share[i] >= 0.01),
                    "its runs" if outside <= 1 + 1e-9 else f"{outside:.3g} times outside its runs",
                )
            )  # fmt: skip
    return Table(
        title="Frontier",
        columns=("budget", "best", "parameters", "memory", "tokens", frontiers[0].outcome, "lowest in so many draws", "rests on"),
        rows=tuple(rows),
        numeric=(True, False, True, True, True, True, False, False),
        notes=(f"[…] is the {frontiers[0].level:.0%} band of resampled runs",),
    )  # fmt: skip


def _next_runs(families: ArchitectureLaws, runs: Runs, trials: Sequence[Any], say: Say) -> Shown:
    sweep = runs.sweep or "SWEEP"
    if not trials:
        return Shown(missing=(f"Nothing to choose from: the trials of the sweep are not known where this page was made. `memscale next {sweep} --candidates more.yaml` chooses among those of any sweep file.",))  # fmt: skip
    say("next runs")
    try:
        found = propose_from(families, runs.table, trials, n_runs=N_NEXT)
    except ValueError as error:
        return Shown(missing=(f"None can be named: {error}.",))
    return Shown(
        figures={"next_runs": next_run_figure(found, families)}, table=ranking(found, rows=8)
    )


def _amount(measure: CostMeasure, value: float) -> str:
    return {"flops": flops, "seconds": seconds}.get(measure.name, count)(value)


def _unpriced(families: ArchitectureLaws, measure: CostMeasure) -> str | None:
    """Return why architectures cannot be held equal in a measure."""
    for name, family in families.by_name.items():
        domain = family.curve.domain
        if measure.name in domain.unpriced:
            return f"{name}: {domain.unpriced[measure.name]}"
        if domain.price_error[measure.name] > COST_ERROR:
            return f"what sizes of {name} take is no smooth function of size in these runs (off by {domain.price_error[measure.name]:.0%} at most)"
    return None


def _has_sizes(families: ArchitectureLaws) -> bool:
    return families.columns.get("x") != "training_flops"


def _common_tokens(families: ArchitectureLaws, table: pd.DataFrame) -> float | None:
    """Return the tokens of the middle run; None where the law knows none."""
    if not all(curve.has_tokens for curve in families.curves().values()):
        return None
    tokens = np.sort(table[families.columns["tokens"]].to_numpy(dtype=np.float64))
    return float(tokens[(len(tokens) - 1) // 2])


def _told(firm: np.ndarray[Any, np.dtype[np.bool_]], n: int) -> list[int]:
    """Return the middle and last point that rest on runs, and the last of all."""
    inside = np.flatnonzero(firm)
    chosen = [inside[len(inside) // 2], inside[-1]] if len(inside) else [n // 2]
    return sorted({int(i) for i in (*chosen, n - 1)})


def _with_band(
    value: np.ndarray[Any, Any], low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], i: int,
    *, show: Callable[[float], str] = "{:.3g}".format,
) -> str:  # fmt: skip
    if np.isnan(value[i]):
        return "none"
    if np.isnan(low[i]):
        return show(value[i])
    return f"{show(value[i])} [{show(low[i])}, {show(high[i]) if np.isfinite(high[i]) else '∞'}]"
