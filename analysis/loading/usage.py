"""Usage metrics of sparse layers, by kind, layer and statistic.

Names and meanings: docs/metrics.md, "Metrics".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.loading.histories import USAGE_METRICS

Array = NDArray[np.float64]

KIND_WORDS = {"memory": "memory rows", "moe": "experts"}

USAGE_LABELS = {
    "usage": "used (share)",
    "usage_ever": "ever used (share)",
    "kl": "KL to uniform (nats)",
    "max_over_mean": "largest over mean",
    "effective_rows": "effective rows per token",
    "top1_weight": "weight of the first row",
    "distinct_rows": "distinct rows per batch",
    "router_entropy": "router entropy (nats)",
    "dropped_share": "dropped tokens (share)",
    "output_ratio": "output over residual (std)",
}
"""Of the statistics that docs/metrics.md names, in the order of a table's columns."""


class UsageName(NamedTuple):
    """A metric's name by its parts."""

    kind: str
    """memory or moe."""
    layer: str | None
    """`layer_03`, `layer_03_qkv`; None for the mean over layers."""
    stat: str


def usage_name(metric: str) -> UsageName | None:
    """Return the parts of a metric's name, None if it tells nothing of memories or experts."""
    if not metric.startswith(USAGE_METRICS):
        return None
    kind, *layer, stat = metric.split("/", 2)
    return UsageName(kind, layer[0] if layer else None, stat)


@dataclass(frozen=True, kw_only=True)
class UsageColumns:
    """Columns of the table of runs that hold one statistic."""

    mean: str | None
    """Mean over layers, where it was reported."""
    layers: tuple[str, ...]


def usage_columns(columns: Iterable[object]) -> list[tuple[str, str, UsageColumns]]:
    """Return (kind, statistic, its columns) for every statistic among the columns, by kind."""
    found: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for column in map(str, columns):
        name = usage_name(column)
        if name is not None:
            means, layers = found.setdefault((name.kind, name.stat), ([], []))
            (means if name.layer is None else layers).append(column)
    return [
        (kind, stat, UsageColumns(mean=means[0] if means else None, layers=tuple(sorted(layers))))
        for (kind, stat), (means, layers) in sorted(found.items())
    ]


def by_parts(histories: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `analysis.histories` about use, with columns kind, layer and stat.

    The layer is None for the mean over layers.
    """
    chosen = histories[histories["metric"].str.startswith(USAGE_METRICS)]
    parts = chosen["metric"].str.split("/", n=2)
    return chosen.assign(
        kind=parts.str[0],
        layer=parts.str[1].where(parts.map(len) > 2, None),
        stat=parts.str[-1],
    )


class UsageCurve(NamedTuple):
    """One statistic over training, mean over the seeds that reported it."""

    x: Array
    y: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class UsageCurves:
    """One statistic of one configuration over training."""

    mean: UsageCurve
    """Over layers: as reported, else taken here."""
    layers: Mapping[str, UsageCurve]
    """In order."""


def usage_curves(reports: pd.DataFrame, *, x: str) -> dict[tuple[str, str, str], UsageCurves]:
    """Return (configuration, kind, statistic) to its curves. Values that are not finite are gaps.

    Args:
        reports: Of `by_parts`.
        x: Column to go along: tokens or step.
    """
    finite = reports[np.isfinite(reports["value"])].fillna({"layer": ""})
    by = ["configuration", "kind", "stat", "layer"]
    curves: dict[tuple[str, str, str], dict[str, UsageCurve]] = {}
    for (configuration, kind, stat, layer), values in (
        finite.groupby([*by, x])["value"].mean().groupby(level=by)
    ):
        along = values.index.get_level_values(x).to_numpy(dtype=np.float64)
        key = (str(configuration), str(kind), str(stat))
        curves.setdefault(key, {})[str(layer)] = UsageCurve(along, values.to_numpy(np.float64))
    return {
        key: UsageCurves(
            mean=found[""] if "" in found else _mean(list(found.values())),
            layers={layer: curve for layer, curve in found.items() if layer},
        )
        for key, found in curves.items()
    }


def _mean(layers: Sequence[UsageCurve]) -> UsageCurve:
    along = np.unique(np.concatenate([curve.x for curve in layers]))
    values = [dict(zip(curve.x, curve.y, strict=True)) for curve in layers]
    means = [np.mean([known[at] for known in values if at in known]) for at in along]
    return UsageCurve(along, np.array(means, dtype=np.float64))
