"""Everything that `memscale fit` prints and the report shows, from one call.

A series is what gets one curve: all configurations of one architecture on the same data. Each series is fitted once
per spec in QUESTIONS; later forms are further entries there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.fitting.fit_law import fit_law
from analysis.fitting.result import LawFit
from analysis.laws.power import PowerLaw
from analysis.laws.saturating import Saturating
from analysis.loading.load import Runs
from analysis.loading.validation import ALL_KINDS, check_runs
from analysis.scaling.equal_compute import ConfigurationSummary, EqualFlops, equal_flops, summarise


@dataclass(frozen=True, kw_only=True)
class CurveSpec:
    """One curve per series: an outcome against a size."""

    outcome: str
    x: str
    law: str
    """power_law or saturating."""


CURVE_SPECS = (
    CurveSpec(outcome="factual_recall", x="total_params", law="saturating"),
    CurveSpec(outcome="factual_recall", x="training_flops", law="saturating"),
    CurveSpec(outcome="answer_nll", x="total_params", law="power_law"),
    CurveSpec(outcome="answer_nll", x="training_flops", law="power_law"),
    CurveSpec(outcome="loss", x="total_params", law="power_law"),
    CurveSpec(outcome="loss", x="training_flops", law="power_law"),
)


@dataclass(frozen=True, kw_only=True)
class SeriesFit:
    """One fitted curve with its place."""

    series: str
    architecture: str
    spec: CurveSpec
    fit: LawFit


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
    """A sentence for everything odd about the runs of a series (`analysis/loading/validation.py`)."""

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
    baseline: str = "dense",
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    specs: Sequence[CurveSpec] = CURVE_SPECS,
) -> SweepFits:
    """Summarise, fit and compare the runs of a sweep.

    Args:
        runs: Of `analysis.load`.
        baseline: Architecture that others are compared with.
        n_draws: Resamples behind every interval of a curve.
        seed: Of the resampling.
        level: Of all intervals.
        specs: Curves to fit; those whose columns are missing are left out.

    Raises:
        ValueError: If the table has no parameters, which configurations are told apart by.
    """
    table = runs.table
    if len(table) and "total_params" not in table:
        raise ValueError(f"{runs.source}: no parameters, by which configurations are compared; say which column they are with load's columns={{'params': …}}, or fit what is there with analysis.fit_law")  # fmt: skip
    series = name_series(table)
    summaries = summarise(table, series=series, level=level)
    curves = []
    for name in dict.fromkeys(s.series for s in summaries):
        rows = table[table["configuration"].map(series) == name]
        for spec in specs:
            if not {spec.outcome, spec.x} <= set(rows.columns) or rows[
                [spec.outcome, spec.x]
            ].isna().any(axis=None):
                continue
            fit = _fit(spec, rows, n_draws=n_draws, seed=seed, level=level)
            curves.append(
                SeriesFit(
                    series=name,
                    architecture=str(rows["architecture"].iloc[0]),
                    spec=spec,
                    fit=fit,
                )
            )
    by_size = {(c.series, c.spec.outcome): c.fit for c in curves if c.spec.x == "total_params"}
    pairs, unpaired = equal_flops(
        table, summaries, by_size, baseline=baseline, level=level, seed=seed
    )
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
        warnings=tuple(_doubts(table, series)),
    )


def _doubts(table: pd.DataFrame, series: Mapping[str, str]) -> list[str]:
    """Return a sentence for every series that holds configurations of one size and different settings, or odd runs."""
    found = []
    for name, rows in table.groupby(table["configuration"].map(series), sort=False):
        first = rows.drop_duplicates("configuration").sort_values("total_params", kind="stable")
        sizes = first["total_params"].to_numpy(dtype=np.float64)
        for i in np.flatnonzero(np.diff(sizes) <= 1e-3 * sizes[1:]).tolist():
            one, other = first.iloc[i], first.iloc[i + 1]
            settings = [str(c) for c in first if str(c).startswith("model.")]
            changed = [c for c in settings if one[c] != other[c] and not (pd.isna(one[c]) and pd.isna(other[c]))]  # fmt: skip
            if changed:
                values = ", ".join(f"{c} ({one[c]}, {other[c]})" for c in changed[:3])
                found.append(f"{name}: trials {one['trial_id']} and {other['trial_id']} have the same total params and differ in {values}: two architectures under one name, and one curve through both; fit them as sweeps of their own")  # fmt: skip
                break
        names = [c for c in ("total_params", "training_tokens") if c in rows and rows[c].notna().all()]  # fmt: skip
        if "loss" in rows and rows["loss"].notna().all() and len(names) == 2:
            inputs = {short: rows[c].to_numpy(dtype=np.float64) for short, c in zip(("params", "tokens"), names, strict=True)}  # fmt: skip
            loss = rows["loss"].to_numpy(dtype=np.float64)
            odd = [d for d in check_runs(inputs, loss, outcome="loss", seeds_named=True) if d.kind != "architectures"]  # fmt: skip
            # Seeds of one configuration are of one kind, however far apart; configurations of equal sizes may be of two.
            each = np.flatnonzero(~rows["configuration"].duplicated().to_numpy())
            mean = rows.groupby("configuration", sort=False)["loss"].mean().to_numpy(dtype=np.float64)  # fmt: skip
            apart = check_runs({k: v[each] for k, v in inputs.items()}, mean, outcome="mean loss", seeds_named=True, rows=each)  # fmt: skip
            odd += [d for d in apart if d.kind == "architectures"]
            trials = rows["trial_id"].tolist()
            found += [f"{name}: {d.sentence} ({', '.join(f'row {i} is {trials[i]}' for i in d.rows[:3])})" for d in odd]  # fmt: skip
    return found


def name_series(table: pd.DataFrame) -> dict[str, str]:
    """Return configuration -> series: the architecture, and the data settings where the sweep varies them."""
    varied = [
        c for c in table.columns if c.startswith("data.") and table[c].nunique(dropna=False) > 1
    ]
    names = {}
    for _, row in table.drop_duplicates("configuration").iterrows():
        setting = ", ".join(
            f"{column.removeprefix('data.')} {row[column]}"
            for column in varied
            if pd.notna(row[column])
        )
        names[str(row["configuration"])] = (
            f"{row['architecture']} ({setting})" if setting else str(row["architecture"])
        )
    return names


def _fit(spec: CurveSpec, rows: pd.DataFrame, *, n_draws: int, seed: int, level: float) -> LawFit:
    x = rows[spec.x].to_numpy(dtype=np.float64)
    y = rows[spec.outcome].to_numpy(dtype=np.float64)
    laws = {"power_law": PowerLaw(), "saturating": Saturating()}
    if spec.law not in laws:
        raise ValueError(f"law must be power_law or saturating, got {spec.law!r}")
    return fit_law(
        laws[spec.law],
        {"x": x, spec.outcome: y},
        outcome=spec.outcome,
        clusters=list(rows["configuration"]),
        n_draws=n_draws,
        seed=seed,
        level=level,
        accept=ALL_KINDS,  # checked for the whole series, with its seeds and settings
    )
