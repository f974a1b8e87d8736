"""Architecture laws of a sweep: the law that its runs can determine.

The law is chosen by the design of the runs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.law import Law
from analysis.laws.registry import law_named
from analysis.scaling.architecture_laws import ArchitectureLaws, fit_families
from analysis.scaling.run_columns import COLUMNS
from orchestrator.records.varied_settings import MATCH

LADDER = 0.999
"""Correlation of ln N and ln D from which on tokens are held to grow in step with size.

A law of both is then a guess."""


def fit_sweep_laws(
    table: pd.DataFrame, *, outcome: str = "loss", law: str | None = None, **options: Any
) -> ArchitectureLaws:
    """Return the laws of a sweep's architectures.

    Args:
        table: Of `analysis.load`.
        outcome: Column that falls with size.
        law: Name of a law; None is chinchilla where tokens vary beside the size. Where tokens grow
            in step with the size, or are one number but where `match` solved for them, it is power
            in training FLOPs. Where they are one number it is power in stored parameters.
        options: As `fit_families`.

    Raises:
        ValueError: If the runs are of several data sets, a column is missing, or no architecture
            has a usable law.
    """
    names = [str(c) for c in table]
    varied = [c for c in names if c.startswith("data.") and table[c].nunique(dropna=False) > 1]
    if varied:
        raise ValueError(
            f"{', '.join(varied)}: the sweep has several, and a law is of one data set;"
            " use fit_families on the rows of one"
        )
    if outcome not in table:
        there = ", ".join(c for c in ("loss", "answer_nll") if c in names)
        raise ValueError(f"outcome: no {outcome!r} in the runs; there are {there}")
    chosen, columns = (law_named(law), None) if law else _law_for(table)
    return fit_families(
        {c: table[c] for c in names}, law=chosen, outcome=outcome, columns=columns, **options
    )


def _law_for(table: pd.DataFrame) -> tuple[Law, Mapping[str, str] | None]:
    tokens = next((c for c in COLUMNS["tokens"] if c in table), None)
    if tokens is None or table[tokens].nunique() < 2:
        return law_named("power"), None
    size = next((c for c in COLUMNS["params"] if c in table), None)
    if "training_flops" in table and (
        _are_solved(table, tokens) or (size is not None and _is_ladder(table, size, tokens))
    ):
        return law_named("power"), {"x": "training_flops"}
    return law_named("chinchilla"), None


def _are_solved(table: pd.DataFrame, tokens: str) -> bool:
    """Return whether tokens vary only where `match` solved for them, by what other runs cost.

    They then differ by what a step costs, which tells nothing of how the loss falls with tokens.
    Solved for a number of FLOPs they are those of an isoFLOP design, which does tell.
    """
    solve = f"{MATCH}solve"
    if solve not in table:
        return False
    solved = table[solve] == "tokens"
    held = [c for c in table if str(c).startswith(MATCH) and c != solve]
    numbers = table.loc[solved, held].apply(pd.to_numeric, errors="coerce").notna()
    by_runs = bool(solved.any()) and not solved.all() and not numbers.to_numpy().any()
    return by_runs and bool(table.loc[~solved, tokens].nunique() < 2)


def _is_ladder(table: pd.DataFrame, size: str, tokens: str) -> bool:
    """Return whether tokens grow in step with size in every architecture that has two sizes."""
    found = []
    for _, rows in table.groupby("architecture"):
        N, D = (np.log(rows[c].to_numpy(dtype=np.float64)) for c in (size, tokens))
        if np.ptp(N) > 0:
            found.append(np.ptp(D) > 0 and abs(float(np.corrcoef(N, D)[0, 1])) > LADDER)
    return bool(found) and all(found)
