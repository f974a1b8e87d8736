"""Comparison of a sweep's architectures: laws, multipliers, frontiers, next runs.

All parts are computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.formatting import some_of
from analysis.loading.load import Runs, sweep_names
from analysis.scaling.architecture_laws import ArchitectureLaws
from analysis.scaling.best_settings import LENGTH
from analysis.scaling.candidate_trials import propose_from
from analysis.scaling.compute_multiplier import Multipliers, multipliers
from analysis.scaling.cost_measures import COST_MEASURES, why_rough
from analysis.scaling.design_result import ExperimentalDesign
from analysis.scaling.frontier import Frontier, frontier
from analysis.scaling.measured_cost import why_not_rising
from analysis.scaling.series_curves import name_series, varied_in
from analysis.scaling.sweep_laws import fit_sweep_laws
from analysis.scaling.sweep_summary import SweepFits, best_runs

MEASURES = ("flops", "seconds", "bytes_moved", "stored_bytes", "active_params")
"""Cost measures that are held equal, those that a table has."""

BUDGETS = ("flops", "seconds")
"""Cost measures of the frontier."""

POINTS = 25
"""Amounts along every curve of multipliers."""

DRAWS = 400
"""Resamples behind the bands of one comparison, shared by all architectures.

With more architectures each gets fewer, so that ten take no longer than five."""

FEWEST_DRAWS, MOST_DRAWS = 60, 200

N_NEXT_RUNS = 3

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArchitectureComparison:
    """What the runs of a sweep say about its architectures.

    Where they do not allow a part, `unavailable` says what is missing and how to get it.
    """

    laws: ArchitectureLaws | None = None
    multipliers: Sequence[Multipliers] = ()
    """By cost measure, then by candidate."""
    frontiers: Sequence[Frontier] = ()
    """One per budget that has a best architecture."""
    design: ExperimentalDesign | None = None
    """The most useful next runs."""
    unavailable: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By part: multipliers, frontier or next_runs."""

    @property
    def has_sizes(self) -> bool:
        """Whether the laws know sizes; along a ladder they know compute alone."""
        return self.laws is not None and self.laws.columns.get("x") != "training_flops"


def compare_architectures(
    runs: Runs, fits: SweepFits, *, trials: Sequence[Any] = (), progress: Progress = lambda _: None
) -> ArchitectureComparison:
    """Return the comparison of a sweep's architectures.

    Args:
        runs: Of `analysis.load`. Where several settings were tried, the best of every size are
            compared.
        fits: Of `analysis.fit_sweep`: its baseline is the reference of multipliers, its seed that
            of the draws.
        trials: Planned ones (`orchestrator.planning.pricing.PlannedTrial`) to choose next runs of.
        progress: Called with a line before each long part.
    """
    every, runs = runs.table, best_runs(runs)
    table = runs.table
    n = table["architecture"].astype(str).nunique() if len(table) else 0
    progress(f"laws of {n} {'architecture' if n == 1 else 'architectures'}")
    try:
        laws = fit_sweep_laws(
            table,
            outcome="loss" if "loss" in table else "answer_nll",
            n_draws=int(np.clip(DRAWS // max(1, n - 1), FEWEST_DRAWS, MOST_DRAWS)),
            seed=fits.seed,
            level=fits.level,
        )
    except ValueError as error:
        later = ("Needs the same laws.",)
        why = (f"Not for these runs: {error}.",)
        unavailable = {"multipliers": why, "frontier": later, "next_runs": later}
        return ArchitectureComparison(unavailable=unavailable)
    no_cost = _no_cost(laws, runs, fits)
    curves, no_multipliers = _all_multipliers(laws, fits.baseline, runs, no_cost, progress)
    frontiers, no_frontier = _frontiers(laws, no_cost, progress)
    names = sweep_names(runs.sweep) or []
    design, no_design = _design(laws, every, trials, progress, sweeps=names)
    left_out = tuple(f"Without {name}: {why}." for name, why in laws.left_out.items())
    pooled = _pooled(runs)
    return ArchitectureComparison(
        laws=laws,
        multipliers=curves,
        frontiers=frontiers,
        design=design,
        unavailable={
            "multipliers": (*pooled, *left_out, *no_multipliers),
            "frontier": (*pooled, *left_out, *no_frontier),
            "next_runs": no_design,
        },
    )


def _all_multipliers(
    laws: ArchitectureLaws,
    baseline: str,
    runs: Runs,
    no_cost: Mapping[str, str],
    progress: Progress,
) -> tuple[list[Multipliers], list[str]]:
    """Return the multipliers of every other architecture, and why a measure has none."""
    names = list(laws.by_name)
    if len(names) < 2:
        return [], [
            f"Multipliers compare architectures, and only {names[0]} has a law here;"
            " train another at six sizes or so, and where tokens vary at two lengths each."
        ]
    reference = baseline if baseline in names else names[0]
    found: list[Multipliers] = []
    missing = []
    for measure in (COST_MEASURES[name] for name in MEASURES):
        if measure.name in no_cost:
            missing.append(f"Not at equal {measure.label}: {no_cost[measure.name]}.")
            continue
        progress(f"multipliers at equal {measure.label}")
        tokens = None if measure.with_tokens else _middle_tokens(laws, runs)
        for name in names:
            if name == reference:
                continue
            low, high = laws.named(name).curve.domain.amounts[measure.name]
            found.append(
                multipliers(
                    laws,
                    name,
                    reference=reference,
                    measure=measure.name,
                    amounts=np.geomspace(low, 10 * high, POINTS),
                    tokens=tokens,
                )
            )
    return found, missing


def _frontiers(
    laws: ArchitectureLaws, no_cost: Mapping[str, str], progress: Progress
) -> tuple[list[Frontier], list[str]]:
    """Return the frontier of each budget, and why a budget has none."""
    if laws.columns.get("x") == "training_flops":
        return [], [
            "No frontier: tokens grow in step with size in these runs, so what either is worth"
            " cannot be told; train a few of the sizes at two or three further lengths"
            " (grid: {train.tokens: […]})."
        ]
    curves = laws.curves().values()
    if len(curves) < 2 and not any(curve.has_tokens for curve in curves):
        return [], [
            "No frontier: one architecture trained on one number of tokens has no choice to make;"
            " train the sizes at two or three further lengths (grid: {train.tokens: […]})."
        ]
    found, missing, empty = [], [], []
    for measure in (COST_MEASURES[name] for name in BUDGETS):
        if measure.name in no_cost:
            missing.append(f"Not for budgets of {measure.label}: {no_cost[measure.name]}.")
            continue
        progress(f"frontier over {measure.label}")
        one = frontier(laws, measure=measure.name)
        if any(one.best):
            found.append(one)
        else:
            empty.append(f"No frontier over {measure.label}: {one.sentence(0)}.")
    return found, missing + empty


def _design(
    laws: ArchitectureLaws,
    table: pd.DataFrame,
    trials: Sequence[Any],
    progress: Progress,
    *,
    sweeps: Sequence[str],
) -> tuple[ExperimentalDesign | None, tuple[str, ...]]:
    """Return the next runs among planned trials, or why there are none."""
    if not trials and len(sweeps) > 1:
        each = some_of([f"`memscale next {name}`" for name in sweeps])
        return None, (f"Next runs are chosen for one sweep at a time: {each}.",)
    if not trials:
        return None, (
            "Nothing to choose from: the trials of the sweep are not known where this page was"
            f" made. `memscale next {sweeps[0] if sweeps else 'SWEEP'} --candidates more.yaml`"
            " chooses among those of any sweep file.",
        )
    progress("next runs")
    try:
        return propose_from(laws, table, trials, n_runs=N_NEXT_RUNS), ()
    except ValueError as error:
        return None, (f"None can be named: {error}.",)


def _no_cost(laws: ArchitectureLaws, runs: Runs, fits: SweepFits) -> dict[str, str]:
    """Return by cost measure why architectures cannot be held equal in it.

    Measured costs have to follow size as they do where means are compared (`equal_cost`).
    """
    series = name_series(runs.table, by=[n for n in fits.apart if not n.startswith("data.")])
    domains = {architecture: law.curve.domain for architecture, law in laws.by_name.items()}
    found: dict[str, str] = {}
    for name, measure in COST_MEASURES.items():
        unpriced = {a: d.unpriced[name] for a, d in domains.items() if name in d.unpriced}
        if unpriced:
            architecture, why = next(iter(unpriced.items()))
            found[name] = f"{architecture}: {why}"
            continue
        rough = (why_rough(a, d.price_error[name]) for a, d in domains.items())
        reasons = (
            why_not_rising(
                measure,
                runs.table,
                reference=fits.baseline,
                outcome=laws.outcome,
                series=series,
            ),
            *rough,
        )
        first = next(filter(None, reasons), None)
        if first is not None:
            found[name] = first
    return found


def _pooled(runs: Runs) -> tuple[str, ...]:
    """Say which architectures have one law here and several curves elsewhere in the report."""
    varied = varied_in(runs.table)
    # Laws know the training length, so to have several is no pooling.
    by = [name for name in varied if name != LENGTH] if LENGTH in varied else None
    settings: dict[str, set[str]] = {}
    for name in name_series(runs.table, by=by).values():
        architecture, _, setting = name.partition(" (")
        settings.setdefault(architecture, set()).add(setting.removesuffix(")"))
    return tuple(
        f"One law for {architecture} with {' and '.join(sorted(found))} together; curves have them"
        " apart."
        for architecture, found in settings.items()
        if len(found) > 1 and all(found)
    )


def _middle_tokens(laws: ArchitectureLaws, runs: Runs) -> float | None:
    """Return the tokens of the middle run; None where the law knows none."""
    if not all(curve.has_tokens for curve in laws.curves().values()):
        return None
    tokens = np.sort(runs.table[laws.columns["tokens"]].to_numpy(dtype=np.float64))
    return float(tokens[(len(tokens) - 1) // 2])
