"""Curves of a sweep's series: outcome against size, per architecture and data set.

A series is what gets one curve: all configurations of one architecture that agree in what the sweep
varies beside size (learning rate, data). Where a sweep varies a table more often than the model
below it, the curve runs over the tables of one preset: figure 1 of "Memory Layers at Scale".
Each series is fitted once per specification in CURVE_SPECS; further curves are further entries
there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.fit_law import fit_law
from analysis.fitting.result import LawFit
from analysis.laws.registry import CURVES
from analysis.loading.schema import IDENTITY, SETTINGS
from analysis.loading.validation import ALL_KINDS
from analysis.scaling.best_settings import size_names, size_settings
from analysis.scaling.second_process import in_second_process
from orchestrator.records.varied_settings import (
    SIZES,
    setting_label,
    varied_settings,
    without_solved,
)


@dataclass(frozen=True, kw_only=True)
class CurveSpec:
    """One curve per series: an outcome against a size."""

    outcome: str
    x: str
    law: str
    """power_law or saturating."""


FEWEST_TABLES = 3
"""Sizes of a table at one preset from which on a curve runs over them."""

CURVE_SPECS = (
    CurveSpec(outcome="factual_recall", x="total_params", law="saturating"),
    CurveSpec(outcome="factual_recall", x="training_flops", law="saturating"),
    CurveSpec(outcome="answer_nll", x="total_params", law="power_law"),
    CurveSpec(outcome="answer_nll", x="training_flops", law="power_law"),
    CurveSpec(outcome="loss", x="total_params", law="power_law"),
    CurveSpec(outcome="loss", x="training_flops", law="power_law"),
    CurveSpec(outcome="factual_recall", x="memory_params", law="saturating"),
    CurveSpec(outcome="answer_nll", x="memory_params", law="power_law"),
    CurveSpec(outcome="loss", x="memory_params", law="power_law"),
)
"""Where a curve runs over the tables of one preset it is against their parameters, and FLOPs say
nothing of them; elsewhere memory grows with the rest."""


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
    *,
    meanwhile: Callable[[], object] = lambda: None,
    **options: Any,
) -> list[SeriesFit]:
    """Return the curves of every series; those whose columns are missing are left out.

    Args:
        table: Of `Runs`.
        series: Configuration to series.
        specs: Curves to fit.
        meanwhile: Called once, while the second process has begun to fit.
        options: n_draws, seed and level of the fits.
    """
    found = []
    for name in sorted(set(series.values())):
        rows = table[table["configuration"].map(series) == name]
        for spec in specs:
            columns = [spec.outcome, spec.x]
            fitting = spec.x not in ("memory_params", "training_flops") or (
                over_tables(rows) == (spec.x == "memory_params")
            )
            there = set(columns) <= set(rows.columns) and rows[columns].notna().all(axis=None)
            if fitting and there:
                found.append((name, spec, rows))
    # Twelve curves take a second; one is not worth a process.
    fitted = in_second_process([partial(_fit, spec, rows, **options) for _, spec, rows in found])
    meanwhile()
    fits = fitted()
    return [
        SeriesFit(
            series=name,
            architecture=str(rows["architecture"].iloc[0]),
            spec=spec,
            fit=replace(fit, n_judged=len(found)),
        )
        for (name, spec, rows), fit in zip(found, fits, strict=True)
    ]


def over_tables(rows: pd.DataFrame) -> bool:
    """Return whether the rows of a series are of one preset and differ in their memories' size."""
    if "memory_params" not in rows or not (rows["memory_params"] > 0).all():
        return False
    tables = rows["memory_params"].nunique()
    return tables >= FEWEST_TABLES and size_names(rows).nunique() == 1


def name_series(table: pd.DataFrame, *, by: Sequence[str] | None = None) -> dict[str, str]:
    """Return configuration to series: the architecture, and what the sweep varies beside size.

    Args:
        table: Of `Runs`.
        by: Settings to tell series apart by, where they vary within the architecture; None: all
            that vary (`varied_in`), but the preset in place of a table's size where curves run
            over tables.

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
    of_architecture = _names_within(table, names, over_tables=by is None)
    series = {}
    for row in _configurations(table):
        architecture = str(row["architecture"])
        settings = without_solved(row) if by is None else row
        label = setting_label(settings, of_architecture[architecture])
        series[str(row["configuration"])] = f"{architecture} ({label})" if label else architecture
    return series


def _names_within(
    table: pd.DataFrame, names: Sequence[str], *, over_tables: bool
) -> dict[str, tuple[str, ...]]:
    """Return architecture to the settings that tell its series apart."""
    found: dict[str, tuple[str, ...]] = {}
    rows = table.drop_duplicates("configuration")
    for architecture, group in rows.groupby("architecture", sort=False):
        found[str(architecture)] = own = own_settings(group, names)
        sizes = size_settings(group, own) if over_tables else []
        if not sizes:
            continue
        bases = size_names(group)
        tables = group.groupby(bases)["total_params"].nunique()
        # Over the tables of a preset, if there are enough for a bend, and more than presets.
        if tables.max() >= max(FEWEST_TABLES, bases.nunique() + 1):
            own = tuple(name for name in own if name not in sizes)
            several = bases.nunique() > 1 and group["preset"].notna().all()
            found[str(architecture)] = ("preset", *own) if several else own
    return found


def own_settings(rows: pd.DataFrame, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the settings that vary within an architecture's rows; of data all."""
    return tuple(
        name
        for name in names
        if name.startswith("data.") or (name in rows and rows[name].nunique(dropna=False) > 1)
    )


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
    if spec.law not in CURVES:
        raise ValueError(f"law must be {' or '.join(CURVES)}, got {spec.law!r}")
    return fit_law(
        CURVES[spec.law],
        {
            "x": rows[spec.x].to_numpy(dtype=np.float64),
            spec.outcome: rows[spec.outcome].to_numpy(dtype=np.float64),
        },
        outcome=spec.outcome,
        clusters=list(rows["configuration"]),
        accept=ALL_KINDS,  # checked for the whole series, with its seeds and settings
        **options,
    )
