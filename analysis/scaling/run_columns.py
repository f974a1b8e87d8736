"""Columns of runs for fits of architecture laws: checked, grouped, resampled."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.bootstrap import n_distinct_drawn, resample_clusters
from analysis.fitting.law import Law
from analysis.loading.columns import (
    OURS,
    HasTable,
    Runs,
    as_columns,
    column,
    column_of,
    equal_rows,
    numbers,
    row_numbers,
)
from analysis.scaling.cost_measures import BYTES_PER_PARAM, CostMeasure

Array = NDArray[np.float64]

SIZE_INPUTS = ("params", "n_active", "x")
"""Names under which laws take a model's size; one of them."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    **{name: (name, *ours) for name, ours in OURS.items()},
    "params": ("active_params", "params", "non_embedding_params", "total_params"),
    "x": ("x", "total_params", "params"),
}
"""Columns in which a law's input is looked for, in this order, unless `columns` says.

Where architectures are compared, `params` beside `active_params` counts every expert."""


def size_of(inputs: Mapping[str, Any]) -> Any:
    """Return the model size among the inputs of a law."""
    return next(inputs[name] for name in SIZE_INPUTS if name in inputs)


class RunColumns:
    """The columns that a law, its bands and its costs need, before they are split by architecture.

    Raises:
        ValueError: If the law takes other inputs, a column is missing, or a value is impossible;
            the row is named.
    """

    def __init__(
        self,
        runs: Runs | HasTable,
        law: Law,
        *,
        outcome: str,
        architecture: str,
        columns: Mapping[str, str],
        clusters: str | None,
    ) -> None:
        unknown = set(law.inputs) - {*SIZE_INPUTS, "tokens", "n_memory", "experts"}
        if unknown:
            raise ValueError(
                f"law: {law.name} needs {', '.join(sorted(unknown))};"
                " architectures are compared by laws of size, tokens, memory and experts"
            )
        runs = as_columns(runs)
        self.runs, self.columns, self.notes = runs, columns, list[str]()
        self.architectures = np.asarray([str(a) for a in column(self.runs, architecture)])
        self.names = sorted(set(self.architectures.tolist()))
        self.rows = row_numbers(runs, len(self.architectures))
        self.outcome = self._numbers(outcome)
        self.inputs = {
            name: self._numbers(self.column_of(name), zero=name in law.may_be_zero)
            for name in law.inputs
        }
        self.size: Array = size_of(self.inputs)
        self.tokens = self.inputs.get("tokens")
        self._note_size()
        memory = next((c for c in COLUMNS["n_memory"] if c in runs), None)
        self.memory = (
            np.zeros(len(self.rows)) if memory is None else self._numbers(memory, zero=True)
        )
        chosen = clusters or ("configuration" if "configuration" in runs else None)
        if chosen is None:
            everywhere = np.ones(len(self.rows), dtype=bool)
            configurations = [f"{i:09d}" for i in self._distinct_inputs(everywhere)]
        else:
            configurations = [str(c) for c in column(self.runs, chosen)]
        # Architectures never share a configuration, whatever somebody's labels say.
        self.clusters = np.asarray(
            [f"{a} {c}" for a, c in zip(self.architectures, configurations, strict=True)]
        )

    def rows_of(self, *names: str) -> NDArray[np.int64]:
        """Return the rows of architectures, in order."""
        return np.flatnonzero(np.isin(self.architectures, names))

    def resampled(self, names: Sequence[str], *, n_draws: int, seed: int, needed: int) -> Array:
        """Return (n_draws, n) how often each run counts; each architecture is resampled by itself.

        Args:
            names: Architectures; runs of others never count.
            n_draws: Resamples.
            seed: Of all random numbers.
            needed: Distinct inputs that a resample of one architecture has to hold.
        """
        weights = np.zeros((n_draws, len(self.rows)))
        if not n_draws:
            return weights
        for name in names:
            rows = self.rows_of(name)
            place = self._distinct_inputs(rows)
            least = min(needed, int(place.max()) + 1)
            accept = partial(_determined, places=place, least=least)
            # Its own stream of random numbers, so that another architecture changes nothing here.
            own_seed = int(np.random.SeedSequence([seed, *name.encode()]).generate_state(1)[0])
            drawn = resample_clusters(
                self.clusters[rows], n_draws=n_draws, seed=own_seed, accept=accept
            )
            weights[:, rows] = drawn.weights
        return weights

    def experts_of(self, name: str) -> float | None:
        """Return the number of experts of an architecture, None where the law does not know them.

        Raises:
            ValueError: If its runs have several.
        """
        if "experts" not in self.inputs:
            return None
        counts = np.unique(self.inputs["experts"][self.rows_of(name)])
        if len(counts) > 1:
            raise ValueError(
                f"experts: {name} has {counts[0]:g} to {counts[-1]:g};"
                f" make each count an architecture of its own, as '{name} {counts[0]:g}'"
            )
        return float(counts[0])

    def cost(self, measure: CostMeasure, rows: NDArray[np.int64]) -> Array | str:
        """Return what runs took of a measure (len(rows),), or the sentence that says why not."""
        if measure.column in self.runs:
            values = np.asarray(self.runs[measure.column], dtype=np.float64)[rows]
            if not (np.isfinite(values) & (values > 0)).all():
                return f"column {measure.column} has an empty or impossible cell among its runs"
            return values
        if measure.name == "flops" and self.tokens is not None:
            self._note("no column training_flops: C = 6 N D")
            return np.asarray(6.0 * self.size[rows] * self.tokens[rows])
        if measure.name == "total_params" and self._stored is not None:
            return self._numbers(self._stored)[rows]
        if measure.name == "stored_bytes" and self._stored is not None:
            self._note(f"no column stored_bytes: {BYTES_PER_PARAM:g} bytes a stored parameter")
            return BYTES_PER_PARAM * self._numbers(self._stored)[rows]
        if measure.name in ("active_params", "total_params") and not self.memory.any():
            return self.size[rows]
        return f"the table has no column {measure.column}"

    def column_of(self, name: str) -> str:
        """Return the column that holds an input of the law."""
        return column_of(self.runs, name, self.columns, among=COLUMNS[name])

    @property
    def _stored(self) -> str | None:
        """Column of all parameters: `params` is one only beside the active ones."""
        beside = ["params"] if "active_params" in self.runs else []
        return next((c for c in ("total_params", *beside) if c in self.runs), None)

    def _note_size(self) -> None:
        """Note which of two columns is the size, where they differ."""
        used = next((self.column_of(n) for n in SIZE_INPUTS if n in self.inputs), None)
        if used != "active_params" or "params" not in self.runs:
            return
        if not np.array_equal(self._numbers("params"), self.size):
            self._note("sizes are active_params; params, which differ, are stored parameters")

    def _distinct_inputs(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return which of the distinct inputs each row has."""
        return equal_rows(*(values[rows] for values in self.inputs.values()))

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _numbers(self, name: str, *, zero: bool = False) -> Array:
        try:
            values = np.asarray(column(self.runs, name), dtype=np.float64)
        except (TypeError, ValueError):
            values = numbers(self.runs, name, zero=zero)  # names the cell
        bad = ~np.isfinite(values) | (values < 0 if zero else values <= 0)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            must = "must not be negative" if zero else "must be positive"
            raise ValueError(
                f"{name}, row {self.rows[first]}: {must} and finite, got {values[first]};"
                " correct the row or take it out"
            )
        return values


def _determined(weights: Array, *, places: NDArray[np.int64], least: int) -> NDArray[np.bool_]:
    return n_distinct_drawn(weights, places) >= least
