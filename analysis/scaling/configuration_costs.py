"""Configurations of a sweep: what each took and reached, over seeds."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.formatting import count
from analysis.scaling.cost_measures import COST_MEASURES, CostMeasure
from analysis.scaling.run_columns import COLUMNS
from orchestrator.records.varied_settings import MATCH

Array = NDArray[np.float64]

MEASURED = frozenset({"seconds"})
"""Costs that are measured, so that other work on the machine is in them; the others are counted."""

TOKENS = "training_tokens"

OF_TRIALS = ("model.", "train.")
"""Beginnings of the columns of a configuration's settings."""

BASE = CostMeasure(name="base", column=TOKENS, label="preset and tokens", with_tokens=True)
"""Of what is added to a preset, such as a memory table, and has FLOPs of its own."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What one configuration took and reached."""

    name: str
    architecture: str
    series: str
    preset: str | None
    data: tuple[str, ...]
    """Settings of its data."""
    tokens: float | None
    values: Array
    """Of the outcome, over seeds."""
    costs: Mapping[str, float]
    """By column, mean over seeds."""
    taken: Mapping[str, Array]
    """By column of what is measured, over seeds."""
    params: float
    """NaN where the table has no column of sizes."""
    memory: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of model and training, by their names in a sweep file; None is left out."""
    columns: frozenset[str] = frozenset()
    """Settings of which the table has a column: others are the same in all configurations."""
    match: Mapping[str, str] = field(default_factory=dict)
    """What `match` held equal, and what it solved for: `{step_time: dense, solve: d_ff}`."""
    seeds: frozenset[int] = frozenset()

    @property
    def label(self) -> str:
        """Series and size: `primer (total_params=dense) d12`."""
        size = self.name if math.isnan(self.params) else count(self.params)
        return f"{self.series} {self.preset or size}"

    @property
    def solved_tokens(self) -> bool:
        """Whether `match` chose its tokens."""
        return self.match.get("solve") == "tokens"

    @property
    def solved_model(self) -> bool:
        """Whether `match` chose a field of its model, which then is not that of its preset."""
        return "solve" in self.match and not self.solved_tokens


def read_configurations(
    table: pd.DataFrame, outcome: str, series: Mapping[str, str] | None
) -> list[Configuration]:
    """Return the configurations of a table; arguments are those of `equal_cost`."""
    columns = [c for c in {m.column for m in (*COST_MEASURES.values(), BASE)} if c in table]
    data = [c for c in table if str(c).startswith("data.") and table[c].nunique(dropna=False) > 1]
    by_name = table.groupby("configuration", sort=False)[columns].mean().to_dict(orient="index")
    means = {str(name): row for name, row in by_name.items()}
    values = {str(n): group for n, group in table.groupby("configuration", sort=False)[outcome]}
    seeds = table.groupby("configuration", sort=False)["seed"].agg(frozenset).to_dict()
    taken = {
        column: {str(n): group for n, group in table.groupby("configuration", sort=False)[column]}
        for column in (COST_MEASURES[name].column for name in sorted(MEASURED))
        if column in table
    }
    size = next((c for c in COLUMNS["params"] if c in table), "")
    memory = next((c for c in COLUMNS["n_memory"] if c in table), "")
    columns_of_settings = frozenset(str(c) for c in table if str(c).startswith(OF_TRIALS))
    found = []
    for row in table.drop_duplicates("configuration").to_dict(orient="records"):
        name = str(row["configuration"])
        found.append(
            Configuration(
                name=name,
                architecture=str(row["architecture"]),
                series=str(row["architecture"]) if series is None else series[name],
                preset=str(row["preset"]) if pd.notna(row.get("preset")) else None,
                data=tuple(str(row[c]) for c in data),
                tokens=float(row[TOKENS]) if pd.notna(row.get(TOKENS)) else None,
                values=values[name].to_numpy(dtype=np.float64),
                costs={c: float(means[name][c]) for c in columns},
                taken={c: v[name].to_numpy(dtype=np.float64) for c, v in taken.items()},
                params=float(row[size]) if pd.notna(row.get(size)) else math.nan,
                memory=float(row[memory]) if pd.notna(row.get(memory)) else 0.0,
                settings=_written(row, OF_TRIALS),
                columns=columns_of_settings,
                match={k.removeprefix(MATCH): str(v) for k, v in _written(row, MATCH).items()},
                seeds=frozenset(int(seed) for seed in seeds[name]),
            )
        )
    return found


def _written(row: Mapping[Hashable, Any], prefix: str | tuple[str, ...]) -> dict[str, Any]:
    """Return the cells of a row that have a value and whose column begins with a prefix."""
    return {
        str(name): value
        for name, value in row.items()
        if str(name).startswith(prefix) and value is not None and value == value
    }


def plainest_series(every: Sequence[Configuration], reference: str) -> list[Configuration]:
    """Return the configurations of the reference's plainest series."""
    by_series: dict[str, list[Configuration]] = {}
    for one in every:
        if one.architecture == reference:
            by_series.setdefault(one.series, []).append(one)
    if not by_series:
        return []

    def plain(members: Sequence[Configuration]) -> tuple[int, float]:
        params = [c.costs.get("total_params", 0.0) for c in members]
        return -len(members), sum(params) / len(params)

    return min(by_series.values(), key=plain)


def of_same_data(members: Sequence[Configuration], *, tokens: bool) -> list[list[Configuration]]:
    """Return those of the same data together, and of the same tokens where asked for."""
    groups: dict[object, list[Configuration]] = {}
    for one in members:
        groups.setdefault((one.data, one.tokens if tokens else None), []).append(one)
    return list(groups.values())
