"""Training histories: metrics over steps, one row per measurement."""

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

COLUMNS = (
    "trial_id",
    "sweep",
    "architecture",
    "configuration",
    "seed",
    "step",
    "tokens",
    "metric",
    "value",
)

USAGE_METRICS = ("memory/", "moe/")
"""How the names begin of what sparse layers report of their use."""

_TRIAL = ["sweep", "trial_id"]


class HistoryPoint(NamedTuple):
    """One measurement."""

    sweep: str
    trial_id: str
    metric: str
    step: int
    """Optimizer steps done."""
    value: float


def histories_table(points: Iterable[HistoryPoint], table: pd.DataFrame) -> pd.DataFrame:
    """Return the points of trials in the table with COLUMNS, sorted by trial, metric and step.

    `tokens` are those trained on by that step, NaN where the table does not say how many a step
    takes.
    """
    frame = pd.DataFrame(list(points), columns=list(HistoryPoint._fields))
    frame = frame.astype({"step": "int64", "value": "float64"})
    trials = table[[*_TRIAL, "architecture", "configuration", "seed"]].assign(
        tokens_per_step=table["training_tokens"] / table["steps"]
        if {"training_tokens", "steps"} <= set(table.columns)
        else float("nan"),
        order=range(len(table)),
    )
    joined = frame.merge(trials, on=_TRIAL, how="inner", validate="many_to_one")
    joined["tokens"] = joined["step"] * joined["tokens_per_step"]
    ordered = joined.sort_values(["order", "metric", "step"], kind="stable")
    return ordered.reset_index(drop=True)[list(COLUMNS)]
