"""Summary of a sweep: configurations, curves, comparisons and missing sizes.

Comparisons are at equal compute. Everything that `memscale fit` prints and the report shows, from
one call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from analysis.fitting.result import LawFit
from analysis.loading.load import Runs
from analysis.loading.run_checks import check_runs
from analysis.scaling.best_settings import (
    LENGTH,
    BestSetting,
    best_of_every_size,
    best_settings,
    chosen_between,
    has_lengths,
    settings_apart,
    tuned_settings,
    with_diverged,
)
from analysis.scaling.configuration_summary import ConfigurationSummary, summarise
from analysis.scaling.equal_compute import EqualFlops, equal_flops
from analysis.scaling.missing_runs import MissingSize, missing_sizes
from analysis.scaling.series_curves import (
    CURVE_SPECS,
    CurveSpec,
    SeriesFit,
    fit_series,
    name_series,
    varied_in,
)
from orchestrator.records.redaction import without_password
from orchestrator.records.varied_settings import MATCH


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepFits:
    """The numbers of a sweep."""

    summaries: Sequence[ConfigurationSummary]
    curves: Sequence[SeriesFit]
    pairs: Sequence[EqualFlops]
    unpaired: Sequence[str]
    """A sentence for every configuration without a partner of equal FLOPs."""
    series: Mapping[str, str]
    """Configuration to series."""
    baseline: str
    level: float
    n_draws: int
    seed: int
    warnings: Sequence[str] = ()
    """A sentence for everything odd about the runs of a series.

    Source: `analysis/loading/validation.py`."""
    missing: Sequence[MissingSize] = ()
    """Sizes of the curves that no run has."""
    varied: Sequence[str] = ()
    """Settings by which runs of one architecture and one size differ."""
    apart: Sequence[str] = ()
    """Those of them that are never chosen between (`analysis/scaling/best_settings.py`)."""
    best: Sequence[BestSetting] = ()
    """The best of them, for every size of which several were tried."""
    tuned: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Architecture to training setting to how many values were tried at one size."""
    pooled: Sequence[str] = ()
    """Those that no series is told apart by: a curve goes through the best of every size."""

    def __repr__(self) -> str:
        return (
            f"<SweepFits: {len(self.summaries)} configurations, {len(self.curves)} curves, "
            f"baseline {self.baseline}; analysis.tables(runs, fits) has the numbers, "
            "analysis.draw(fits, runs=runs) the figure>"
        )

    def curve(self, series: str, *, outcome: str, x: str) -> LawFit | None:
        """Return the curve of a series, None if that outcome or size was not measured."""
        return next(
            (
                c.fit
                for c in self.curves
                if c.series == series and c.spec.outcome == outcome and c.spec.x == x
            ),
            None,
        )


def fit_sweep(
    runs: Runs,
    *,
    baseline: str | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    specs: Sequence[CurveSpec] = CURVE_SPECS,
    by: Sequence[str] | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> SweepFits:
    """Summarise, fit and compare the runs of a sweep.

    Args:
        runs: Of `analysis.load`.
        baseline: Architecture that others are compared with; None: `default_baseline`.
        n_draws: Resamples behind every interval of a curve.
        seed: Of the resampling.
        level: Of all intervals.
        specs: Curves to fit; those whose columns are missing are left out.
        by: Settings that tell curves apart (`model.n_keys`, `preset`); None: all that vary beside
            the size. Of others that vary, a curve goes through the best of every size.
        meanwhile: Called once, while the second process has begun to fit: imports, say, that only
            what follows needs.

    Raises:
        ValueError: If runs are not what `analysis.load` returns, the table has no parameters,
            which configurations are told apart by, a setting of `by` is none of its columns, or
            the baseline is none of its architectures.
    """
    _check_given(runs, baseline)
    table = runs.table
    baseline = baseline or default_baseline(table)
    # Curves are told apart by what was asked for; labels by all that varies, since two rows of the
    # tables must not bear one name.
    varied = varied_in(table) if len(table) else ()
    series = name_series(table, by=by)
    fitted = table if by is None else best_of_every_size(table, series, by_preset="preset" in by)
    labels = name_series(table, by=varied)
    summaries: list[ConfigurationSummary] = []

    # Means rest on no curve, so they need not wait for the second process.
    def beside_the_fits() -> None:
        meanwhile()
        summaries.extend(summarise(table, series=series, labels=labels, level=level))

    curves = fit_series(
        fitted, series, specs, meanwhile=beside_the_fits, n_draws=n_draws, seed=seed, level=level
    )
    # Only these curves say how large a baseline had to be for a candidate's outcome.
    by_size = {(c.series, c.spec.outcome): c.fit for c in curves if c.spec.x == "total_params"}
    pairs, unpaired = equal_flops(table, summaries, by_size, baseline=baseline, level=level)
    return SweepFits(
        summaries=summaries,
        curves=curves,
        pairs=pairs,
        unpaired=unpaired,
        series=series,
        baseline=baseline,
        level=level,
        n_draws=n_draws,
        seed=seed,
        warnings=tuple(_data_warnings(table, series)),
        missing=missing_sizes(runs.excluded, curves),
        varied=varied,
        apart=settings_apart(table, varied),
        best=best_settings(table, varied, runs.diverged),
        tuned=tuned_settings(with_diverged(table, runs.diverged), varied),
        pooled=[n for n in varied if n not in (by or ())] if len(fitted) < len(table) else [],
    )


def _check_given(runs: Runs, baseline: str | None) -> None:
    """Refuse a bare table, runs without parameters and a baseline that was not trained."""
    if not hasattr(runs, "table"):
        raise ValueError(
            f"runs: must be what analysis.load returns, got {type(runs).__name__}; "
            "give analysis.load(table), or narrow loaded runs with "
            "dataclasses.replace(runs, table=…)"
        )
    table = runs.table
    if len(table) and "total_params" not in table:
        raise ValueError(
            f"{without_password(runs.source)}: no parameters, by which configurations are compared;"
            " say which column they are with load's columns={'params': …}, or fit what is there"
            " with analysis.fit_law"
        )
    there = sorted({str(name) for name in table.get("architecture", ())})
    if baseline is not None and there and baseline not in there:
        raise ValueError(f"baseline: no runs of {baseline!r}; there are {', '.join(there)}")


def best_runs(runs: Runs) -> Runs:
    """Return the runs that architectures are compared by: those of `best_rows`."""
    return replace(runs, table=best_rows(runs.table))


def best_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the best settings of every size and training length."""
    varied = varied_in(table) if len(table) else ()
    tuned = chosen_between(table, varied)
    if not tuned:
        return table
    by = [name for name in varied if name not in (*tuned, LENGTH)]
    series = name_series(table, by=[*by, *[LENGTH] * has_lengths(table)])
    return best_of_every_size(table, series)


def default_baseline(table: pd.DataFrame) -> str:
    """Return dense where it was trained, else what `match` made most others equal to, else any."""
    names = [str(name) for name in dict.fromkeys(table.get("architecture", ()))]
    if "dense" in names or not names:
        return "dense"
    held = [column for column in table if str(column).startswith(MATCH)]
    matched = [name for column in held for name in table[column].dropna() if name in names]
    return max(names, key=matched.count)


def _data_warnings(table: pd.DataFrame, series: Mapping[str, str]) -> list[str]:
    """Return a sentence for every series with odd runs or two settings of one size."""
    found = []
    for name, rows in table.groupby(table["configuration"].map(series), sort=False):
        settings = _differing_settings(rows)
        if settings:
            found.append(f"{name}: {settings}")
        names = [c for c in ("total_params", "training_tokens") if c in rows]
        if len(names) < 2 or "loss" not in rows or rows[[*names, "loss"]].isna().any(axis=None):
            continue
        inputs = {
            short: rows[c].to_numpy(dtype=np.float64)
            for short, c in zip(("params", "tokens"), names, strict=True)
        }
        loss = rows["loss"].to_numpy(dtype=np.float64)
        configurations = pd.factorize(rows["configuration"])[0]
        trials = rows["trial_id"].tolist()
        doubts = check_runs(
            inputs, loss, outcome="loss", seeds_named=True, configurations=configurations
        )
        for doubt in doubts:
            where = ", ".join(f"row {i} is {trials[i]}" for i in doubt.rows[:3])
            found.append(f"{name}: {doubt.sentence} ({where})")
    return found


def _differing_settings(rows: pd.DataFrame) -> str | None:
    """Return which two trials of a series have one size and different settings, None if none."""
    first = rows.drop_duplicates("configuration").sort_values("total_params", kind="stable")
    sizes = first["total_params"].to_numpy(dtype=np.float64)
    settings = [str(c) for c in first if str(c).startswith("model.")]
    for i in np.flatnonzero(np.diff(sizes) <= 1e-3 * sizes[1:]).tolist():
        one, other = first.iloc[i], first.iloc[i + 1]
        changed = [
            c
            for c in settings
            if one[c] != other[c] and not (pd.isna(one[c]) and pd.isna(other[c]))
        ]
        if changed:
            values = ", ".join(f"{c} ({one[c]}, {other[c]})" for c in changed[:3])
            return (
                f"trials {one['trial_id']} and {other['trial_id']} have the same total params and"
                f" differ in {values}: two architectures under one name, and one curve through"
                " both; fit them as sweeps of their own"
            )
    return None
