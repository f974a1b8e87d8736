"""Table of how memories and experts were used."""

import math
from collections.abc import Hashable, Mapping

import numpy as np

from analysis.formatting import Table, number
from analysis.loading.load import Runs
from analysis.loading.usage import KIND_WORDS, USAGE_LABELS, UsageColumns, usage_columns
from analysis.scaling.sweep_summary import SweepFits


def usage(runs: Runs, fits: SweepFits) -> Table:
    """Return the last reports on the use of memories and experts, mean over seeds.

    One row per configuration and kind; in brackets the smallest and the largest layer, where
    layers report on their own.
    """
    known = {(kind, stat): names for kind, stat, names in usage_columns(runs.table.columns)}
    order = [*USAGE_LABELS, *sorted({stat for _, stat in known} - set(USAGE_LABELS))]
    stats = [stat for stat in order if any(stat == known_stat for _, known_stat in known)]
    names = [n for c in known.values() for n in (c.mean, *c.layers) if n is not None]
    rows, values = [], []
    for s in fits.summaries:
        group = runs.table.loc[runs.table["configuration"] == s.configuration, names]
        means = group.mean().to_dict()
        for kind in dict.fromkeys(kind for kind, _ in known):
            uses = {stat: _last_use(means, known.get((kind, stat))) for stat in stats}
            if any(use is not None for use in uses.values()):
                cells = map(_use, uses.values())
                rows.append((s.label, s.preset or "–", KIND_WORDS[kind], *cells))
                named = {"architecture": s.label, "preset": s.preset, "of": kind}
                values.append(
                    {**named, **{stat: use[0] if use else None for stat, use in uses.items()}}
                )
    labels = [USAGE_LABELS.get(stat, stat.replace("_", " ")) for stat in stats]
    note = (
        "last report of training, mean over layers and seeds;"
        " in brackets the layers with the smallest and the largest value"
    )
    return Table(
        title="Use of memories and experts",
        columns=("architecture", "preset", "of", *labels),
        rows=tuple(rows),
        numeric=(False, False, False, *(True for _ in stats)),
        notes=(note,) if rows else (),
        values=tuple(values),
    )


def _use(use: tuple[float, float, float] | None) -> str:
    if use is None:
        return "–"
    mean, low, high = map(number, use)
    return mean if use[1] == use[2] else f"{mean} [{low}, {high}]"


def _last_use(
    means: Mapping[Hashable, float], columns: UsageColumns | None
) -> tuple[float, float, float] | None:
    """Return the mean and the smallest and largest layer, the mean alone thrice without layers.

    Args:
        means: Of each column, over seeds.
        columns: Of one statistic.
    """
    if columns is None:
        return None
    layers = [means[name] for name in columns.layers if not math.isnan(means[name])]
    mean = float(np.mean(layers)) if layers else math.nan
    if columns.mean is not None:
        mean = means[columns.mean]
    if math.isnan(mean):
        return None
    return (mean, min(layers), max(layers)) if len(layers) > 1 else (mean, mean, mean)
