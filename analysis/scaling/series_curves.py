"""Curves of a sweep's series: outcome against one size, for each architecture and data set.

A series is what gets one curve: all configurations of one architecture that agree in what the sweep
varies beside size (learning rate, table size, data). Each
series is fitted once per specification in CURVE_SPECS; further curves are further entries there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.fit_law import fit_law
from analysis.fitting.result import LawFit
from analysis.laws.power import PowerLaw
from analysis.laws.saturating import Saturating
from analysis.loading.schema import IDENTITY, SETTINGS
from analysis.loading.validation import ALL_KINDS
from analysis.scaling.second_process import in_second_process
from orchestrator.records.varied_settings import SIZES, setting_label, varied_settings


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
    found = []
    for name in sorted(set(series.values())):
        rows = table[table["configuration"].map(series) == name]
        for spec in specs:
            columns = [spec.outcome, spec.x]
            if set(columns) <= set(rows.columns) and rows[columns].notna().all(axis=None):
                found.append((name, spec, rows))
    # Twelve curves take a second; one is not worth a process.
    fits = in_second_process([partial(_fit, spec, rows, **options) for _, spec, rows in found])()
    return [
        SeriesFit(
            series=name,
            architecture=str(rows["architecture"].iloc[0]),
            spec=spec,
            fit=replace(fit, n_judged=len(found)),
        )
        for (name, spec, rows), fit in zip(found, fits, strict=True)
    ]


def name_series(table: pd.DataFrame, *, by: Sequence[str] | None = None) -> dict[str, str]:
    """Return configuration to series: the architecture, and what the sweep varies beside size.

    Args:
        table: Of `Runs`.
        by: Settings to tell series apart by; None: all that vary (`varied_in`).

    Raises:
        ValueError: If a setting is no column of the table.
    """
    names = varied_in(table) if by is None else tuple(by)
    unknown = [name for name in names if name not in table]
    if unknown:
        there = ", ".join(varied_in(table)) or "nothing but architecture, preset and seed"
        raise ValueError(
            f"by: no setting {unknown[0]!r} in the table; the sweep varies {there}, "
            "and preset may be named"
        )
    series = {}
    for row in _configurations(table):
        label = setting_label(row, names)
        architecture = str(row["architecture"])
        series[str(row["configuration"])] = f"{architecture} ({label})" if label else architecture
    return series


def varied_in(table: pd.DataFrame) -> tuple[str, ...]:
    """Return the settings by which runs of one architecture and one size differ."""
    rows = _configurations(table)
    return varied_settings(
        (
            str(row["architecture"]),
            row.get("preset") or (None if SIZES & set(row) else str(row.get("total_params"))),
            {name: value for name, value in row.items() if name.startswith(SETTINGS)},
        )
        for row in rows
    )


def _configurations(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the settings of every configuration, those that it lacks left out."""
    named = [c for c in table if str(c).startswith(SETTINGS) or c in (*IDENTITY, "total_params")]
    records = table.drop_duplicates("configuration")[named].to_dict(orient="records")
    return [{str(k): v for k, v in row.items() if pd.notna(v)} for row in records]


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
