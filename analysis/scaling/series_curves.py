"""Curves of a sweep's series: outcome against one size, for each architecture and data set.

A series is what gets one curve: all configurations of one architecture on the same data. Each
series is fitted once per specification in CURVE_SPECS; further curves are further entries there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.fit_law import fit_law
from analysis.fitting.result import LawFit
from analysis.laws.power import PowerLaw
from analysis.laws.saturating import Saturating
from analysis.loading.validation import ALL_KINDS


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


def fit_series(
    table: pd.DataFrame,
    series: Mapping[str, str],
    specs: Sequence[CurveSpec],
    **options: Any,
) -> list[SeriesFit]:
    """Return the curves of every series; those whose columns are missing are left out.

    Args:
        table: Of `Runs`.
        series: Configuration to series.
        specs: Curves to fit.
        options: n_draws, seed and level of the fits.
    """
    curves = []
    for name in sorted(set(series.values())):
        rows = table[table["configuration"].map(series) == name]
        for spec in specs:
            columns = [spec.outcome, spec.x]
            if set(columns) <= set(rows.columns) and rows[columns].notna().all(axis=None):
                curves.append(
                    SeriesFit(
                        series=name,
                        architecture=str(rows["architecture"].iloc[0]),
                        spec=spec,
                        fit=_fit(spec, rows, **options),
                    )
                )
    return curves


def name_series(table: pd.DataFrame) -> dict[str, str]:
    """Return configuration to series: the architecture, and data settings that the sweep varies."""
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


def _fit(spec: CurveSpec, rows: pd.DataFrame, **options: Any) -> LawFit:
    laws = {"power_law": PowerLaw(), "saturating": Saturating()}
    if spec.law not in laws:
        raise ValueError(f"law must be power_law or saturating, got {spec.law!r}")
    return fit_law(
        laws[spec.law],
        {
            "x": rows[spec.x].to_numpy(dtype=np.float64),
            spec.outcome: rows[spec.outcome].to_numpy(dtype=np.float64),
        },
        outcome=spec.outcome,
        clusters=list(rows["configuration"]),
        accept=ALL_KINDS,  # checked for the whole series, with its seeds and settings
        **options,
    )
