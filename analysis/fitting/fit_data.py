"""Runs of a fit, read by the law's inputs and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.law import Law
from analysis.fitting.objective import Objective
from analysis.fitting.pooled_conditions import pooled_conditions
from analysis.fitting.result import inputs_of
from analysis.loading.columns import (
    LOSS_ADVICE,
    OURS,
    Runs,
    column,
    column_of,
    equal_rows,
    labels,
    numbers,
)
from analysis.loading.validation import SIZES

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class FitData:
    """The runs of a fit, read and checked; all in the order given."""

    inputs: dict[str, Array]
    columns: Mapping[str, str]
    """The law's inputs to the columns that they were read from."""
    y: Array
    labels: NDArray[Any]
    """(n,): configuration."""
    places: NDArray[np.int64]
    """(n,): the same number for runs of equal inputs."""
    order: NDArray[np.int64]
    """(n,): sorts the rows, so that results do not depend on the order given."""
    conditions: Mapping[str, Sequence[Any]]
    """Columns that the law does not use and whose runs form groups."""

    @property
    def n_distinct(self) -> int:
        """Runs with different inputs."""
        return int(self.places.max()) + 1

    @property
    def n_clusters(self) -> int:
        """Configurations: what is resampled."""
        return len(np.unique(self.labels))

    def chosen(self, rows: NDArray[np.bool_]) -> dict[str, Any]:
        """Return some rows as a table with the column `outcome`."""
        return {**{k: v[rows] for k, v in self.inputs.items()}, "outcome": self.y[rows]}


def read_fit_data(
    law: Law,
    runs: Runs,
    outcome: str,
    columns: Mapping[str, str] | None,
    clusters: Sequence[Any] | NDArray[Any] | str | None,
    objective: Objective,
    sigma: ArrayLike | str | None,
) -> FitData:
    """Return the runs of a fit; arguments are those of `fit_law`.

    Raises:
        ValueError: If a column is missing, or a value cannot be: the message names the row.
    """
    names = {name: column_of(runs, name, columns) for name in law.inputs}
    given = {name: column(runs, theirs) for name, theirs in names.items()}
    inputs = inputs_of(law, given, names)
    y = numbers(
        runs,
        outcome,
        why=LOSS_ADVICE,
        zero=objective.offset > 0,
        negative=objective.residual == "value",
    )
    for name, values in inputs.items():
        if len(values) != len(y):
            raise ValueError(f"{name}: {len(values)} values for {len(y)} runs; give one per run")
    wrong = y[(y < 0) | (y > 1)]
    if law.outcome_is_share and len(wrong):
        raise ValueError(
            f"{outcome}: accuracies lie in [0, 1], got {wrong[0]}; give shares, not per cent"
        )
    sizes = [inputs[name] for name in law.inputs]
    places = equal_rows(*sizes)
    found = labels(runs, clusters, places)
    order = np.lexsort((found, y, *sizes[::-1]))
    used = {outcome, "seed", *SIZES, *names.values()}
    used |= {ours for size in ("params", "tokens", "flops") for ours in OURS[size]}
    used |= {sigma} if isinstance(sigma, str) else set()
    conditions = pooled_conditions(runs, used, inputs)
    return FitData(
        inputs=inputs,
        columns=names,
        y=y,
        labels=found,
        places=places,
        order=order,
        conditions=conditions,
    )
