"""Summaries of configurations: sizes, costs, outcomes over seeds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.fitting.bootstrap import MeanEstimate, mean_over_seeds
from analysis.loading.schema import NOT_CAUSAL, OUTCOMES, PARAM_GROUPS, declaration

Row = Any
"""A row of the table: a pandas Series of mixed cells."""

_BOUNDS = {
    "factual_recall": (0.0, 1.0),
    "answer_nll": (0.0, math.inf),
    "bits_per_param": (0.0, math.inf),
    "loss": (0.0, math.inf),
}
"""What an outcome can be at all; others have no bounds."""

_SIZES_AND_COSTS = (
    "active_params",
    "training_flops",
    "memory_params",
    "bytes_read_per_token",
    "bytes_read_per_token_batch64",
    "paper_block_flops",
)
"""Columns that a summary takes over as they are, where the table has them."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationSummary:
    """All seeds of one configuration."""

    configuration: str
    architecture: str
    preset: str | None
    series: str
    """Name of its curve (`analysis/scaling/series_curves.py`)."""
    label: str
    """Architecture and all that varies beside the preset: `memory_plus (n_keys=64)`."""
    seeds: tuple[int, ...]
    params: Mapping[str, float]
    """Per group, the groups that the table has."""
    total_params: float
    active_params: float | None
    training_flops: float | None
    outcomes: Mapping[str, MeanEstimate]
    """factual_recall, answer_nll, bits_per_param, loss: those that were measured."""
    memory_params: float | None = None
    """Keys and values of its memories."""
    bytes_read_per_token: float | None = None
    """Decoding one sequence alone."""
    bytes_read_per_token_batch64: float | None = None
    """Decoding 64 sequences at once."""
    paper_block_flops: float | None = None
    """Of one block and one sequence, as MemoryFormer's tables count them."""
    train_seconds: float | None = None
    """Measured, mean over seeds."""
    not_causal: str | None = None
    """When and why an output can depend on later tokens, where the architecture declares it."""


def summarise(
    table: pd.DataFrame,
    *,
    series: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    level: float = 0.95,
) -> list[ConfigurationSummary]:
    """Return one summary per configuration, by series and size.

    Args:
        table: Of `Runs`.
        series: Configuration to the name of its curve.
        labels: Configuration to its own name; None: that of its curve.
        level: Of the intervals over seeds.
    """
    summaries = []
    for configuration, group in table.groupby("configuration", sort=False):
        first = group.iloc[0]
        name = str(configuration)
        summaries.append(
            ConfigurationSummary(
                configuration=name,
                architecture=str(first["architecture"]),
                preset=None if pd.isna(first["preset"]) else str(first["preset"]),
                series=series[name],
                label=(labels or series)[name],
                seeds=tuple(sorted(int(seed) for seed in group["seed"])),
                params={
                    g: float(first[f"params_{g}"])
                    for g in PARAM_GROUPS
                    if _has(first, f"params_{g}")
                },
                total_params=float(first["total_params"]),
                **{name: _number(first, name) for name in _SIZES_AND_COSTS},
                train_seconds=_mean(group, "train_seconds"),
                not_causal=declaration(first.get(NOT_CAUSAL)),
                outcomes={
                    outcome: mean_over_seeds(
                        group[outcome].to_numpy(dtype=float),
                        level=level,
                        bounds=_BOUNDS.get(outcome, (-math.inf, math.inf)),
                    )
                    for outcome in OUTCOMES
                    if outcome in group and group[outcome].notna().all()
                },
            )
        )
    return sorted(summaries, key=lambda s: (s.series, s.total_params, s.configuration))


def _number(row: Row, name: str) -> float | None:
    return float(row[name]) if _has(row, name) else None


def _mean(group: pd.DataFrame, name: str) -> float | None:
    return float(group[name].mean()) if name in group and group[name].notna().any() else None


def _has(row: Row, name: str) -> bool:
    return name in row.index and bool(pd.notna(row[name]))
