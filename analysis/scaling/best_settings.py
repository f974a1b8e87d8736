"""Best settings of each size: the winner, and whether it is at the grid's edge."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.schema import OUTCOMES
from analysis.scaling.outcomes import higher_is_better
from orchestrator.records.varied_settings import MATCH, SIZES, setting_label, setting_text

LENGTH = "train.tokens"
"""Training length: never chosen between, since the longest is best and laws need every length."""


@dataclass(frozen=True, kw_only=True)
class BestSetting:
    """The best of several settings that were tried at one size."""

    architecture: str
    size: str
    """Preset, or the dimensions of the model; with the training length where that varies."""
    outcome: str
    configuration: str
    label: str
    """`lr=3e-3 · n_keys=64` of the best."""
    value: float
    """Of the outcome, mean over seeds."""
    n_tried: int
    """Configurations of that size, those included that diverged."""
    diverged: tuple[str, ...]
    """`lr=1` of every configuration of which all runs diverged."""
    at_edge: tuple[str, ...]
    """`lr=1e-3 is the smallest of 3` for every setting whose best value is the last one tried;
    values that diverged were tried."""


def best_settings(
    table: pd.DataFrame, names: Sequence[str], diverged: pd.DataFrame
) -> list[BestSetting]:
    """Return the best configuration of every architecture and size of which several were tried.

    The outcome is the loss where all runs have it, for it has the least noise.

    Args:
        table: Of `Runs`.
        names: Settings that vary beside size; `chosen_between` says which of them are tuned.
        diverged: Of `Runs`: they were tried, too, and are never the best.
    """
    tuned = chosen_between(table, names)
    outcome = _outcome(table)
    if outcome is None or not tuned:
        return []
    lengths = [LENGTH] * has_lengths(table)
    apart = [*(name for name in names if name not in (*tuned, LENGTH)), *lengths]
    rows = _ranked(with_diverged(table, diverged), outcome)
    rows = rows.assign(size=size_names(rows))
    # By size; within a size still the best first.
    rows = rows.sort_values(["architecture", "total_params", *lengths], kind="stable")
    found = []
    for (architecture, size, *_), group in rows.groupby(
        ["architecture", "size", *apart], sort=False, dropna=False
    ):
        if len(group) < 2:
            continue
        group = group.sort_values("mean", ascending=not higher_is_better(outcome), kind="stable")
        best, lost = group.iloc[0], group[group["mean"].isna()]
        if len(lost) == len(group):
            continue
        found.append(
            BestSetting(
                architecture=str(architecture),
                size=" ".join([str(size), setting_label(_known(best, apart), apart)]).strip(),
                outcome=outcome,
                configuration=str(best["configuration"]),
                label=setting_label(_known(best, tuned), tuned),
                value=float(best["mean"]),
                n_tried=len(group),
                diverged=tuple(
                    setting_label(_known(row, tuned), tuned) for _, row in lost.iterrows()
                ),
                at_edge=tuple(_edges(group, best, tuned)),
            )
        )
    return found


def chosen_between(table: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the settings of whose values the best is taken: all but `settings_apart` and LENGTH.

    Args:
        table: Of `Runs`.
        names: Settings that vary beside size.
    """
    apart = settings_apart(table, names)
    return [name for name in names if name not in (*apart, LENGTH)]


def has_lengths(table: pd.DataFrame) -> bool:
    """Whether an architecture was trained for several lengths at one size.

    Also where another setting changes with the length, so that it alone counts as varied.
    """
    if LENGTH not in table:
        return False
    lengths = table.groupby([table["architecture"], size_names(table)], sort=False)[LENGTH]
    return bool((lengths.nunique() > 1).any())


def settings_apart(table: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the settings whose values answer different questions, so that none is the best.

    Those are settings of the data, what `match` held equal, and what changes the number of
    parameters.

    Args:
        table: Of `Runs`.
        names: Settings that vary beside size.
    """
    asked = [name for name in names if name.startswith(("data.", MATCH))]
    others = [name for name in names if name not in asked]
    return [*asked, *size_settings(table, others)]


def size_settings(table: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the settings that change the number of parameters at one preset, as a table's size.

    No two values of such a setting have a number of parameters in common.

    Args:
        table: Of `Runs`.
        names: Settings that vary beside size.
    """
    rows = table.drop_duplicates("configuration")
    rows = rows.assign(size=size_names(rows))
    found = []
    for name in names:
        varied = 0
        for _, group in rows[rows[name].notna()].groupby(["architecture", "size"], sort=False):
            counts = group.groupby(name)["total_params"].agg(set)
            if len(counts) > 1 and len(set.union(*counts)) < counts.map(len).sum():
                break
            varied += len(counts) > 1
        else:
            if varied:
                found.append(name)
    return found


def with_diverged(table: pd.DataFrame, diverged: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that count, and those of configurations of which all runs diverged."""
    lost = diverged[~diverged["configuration"].isin(table["configuration"])]
    # What they measured is no outcome, and a table of none would change the types of columns.
    lost = lost.drop(columns=[name for name in OUTCOMES if name in lost])
    return pd.concat([table, lost], ignore_index=True) if len(lost) else table


def tuned_settings(table: pd.DataFrame, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many values of each training setting an architecture tried at one size.

    Args:
        table: Of `Runs`; of `with_diverged` if what diverged counts as tried.
        names: Settings that vary beside size; those of `train` alone are tuned.

    Returns:
        Architecture to setting to the largest number of values at one size and training length; 1
        was not varied.
    """
    tuned = [name for name in names if name.startswith("train.") and name != LENGTH]
    if not tuned or not len(table):
        return {}
    rows = table.assign(size=size_names(table))
    place = ["size", *[LENGTH] * (LENGTH in names)]
    return {
        str(architecture): {
            name: max(1, int(group.groupby(place, dropna=False)[name].nunique().max()))
            for name in tuned
        }
        for architecture, group in rows.groupby("architecture", sort=False)
    }


def best_of_every_size(
    table: pd.DataFrame, series: Mapping[str, str], *, by_preset: bool = False
) -> pd.DataFrame:
    """Return the runs of the best configuration of every series and size.

    Args:
        table: Of `Runs`.
        series: Configuration to series.
        by_preset: Whether series are of one preset: sizes are then those of what is added to it.
    """
    outcome = _outcome(table)
    if outcome is None:
        return table
    size = table["total_params"] if by_preset else size_names(table)
    rows = _ranked(table.assign(size=size, series=table["configuration"].map(series)), outcome)
    best = rows.drop_duplicates(["series", "size"])["configuration"]
    return table[table["configuration"].isin(best)]


def _outcome(table: pd.DataFrame) -> str | None:
    outcomes = ("loss", *OUTCOMES) if len(table) else ()
    return next((o for o in outcomes if o in table and table[o].notna().all()), None)


def _ranked(table: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """Return a row per configuration, the best first; those without the outcome last."""
    means = table.groupby("configuration")[outcome].mean()
    rows = table.drop_duplicates("configuration")
    rows = rows.assign(mean=rows["configuration"].map(means))
    return rows.sort_values("mean", ascending=not higher_is_better(outcome), kind="stable")


def _known(row: pd.Series, names: Iterable[str]) -> dict[str, Any]:
    """Return the settings of these names that a row holds."""
    return {name: row[name] for name in names if pd.notna(row[name])}


def size_names(table: pd.DataFrame) -> pd.Series:
    """Return the size of every run (n,): its preset, else the dimensions of its model."""
    dimensions = [name for name in sorted(SIZES) if name in table]
    written = [
        setting_label(
            {n: v for n, v in zip(dimensions, row, strict=True) if pd.notna(v)}, dimensions
        )
        for row in table[dimensions].itertuples(index=False)
    ]
    return table["preset"].where(table["preset"].notna(), pd.Series(written, index=table.index))


def _edges(group: pd.DataFrame, best: pd.Series, names: Sequence[str]) -> list[str]:
    """Return a phrase for every setting whose best value is the last of those tried."""
    edges = []
    for name in names:
        tried = np.sort(pd.to_numeric(group[name], errors="coerce").dropna().unique())
        if len(tried) > 1 and best[name] in (tried[0], tried[-1]):
            which = "smallest" if best[name] == tried[0] else "largest"
            value = f"{name.rpartition('.')[2]}={setting_text(best[name])}"
            edges.append(f"{value} is the {which} of {len(tried)}")
    return edges
