"""Missing-run sensitivity of a fit to part of a sweep.

    found = fit_partial("chinchilla", runs)         # of analysis.load: what it excluded is missing
    found = fit_partial("chinchilla", table)        # rows without a loss are the missing cells
    print(found.sentence)
    found.moves                                     # one row per scenario: answer and parameters

A missing cell is put in at the two ends of its prediction interval, in which its run would lie by
the fit of the others. The law is refitted each time, with one cell at a time and with all together.
The answer then moves as far as the missing cells can move it, if they are like the rest. A run that
diverged is no number to fit; its cell is treated as if the run had been repeated.

For comparison, each cell that is there is left out in turn. If one of them moves the answer further
than all missing ones do, the answer does not want for runs of this kind.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.bootstrap import n_distinct_drawn
from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.law import Law, as_law
from analysis.fitting.objective import Objective
from analysis.fitting.result import LawFit, LawPrediction
from analysis.loading.columns import (
    OURS,
    HasTable,
    Runs,
    as_columns,
    column,
    column_of,
    equal_rows,
    labels,
    numbers,
    row_numbers,
    seeds_of,
)
from analysis.loading.validation import ALL_KINDS

Array = NDArray[np.float64]

REASONS = ("reason", "status", "state")
"""Columns that may say why a cell has no outcome, in this order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MissingCell:
    """One cell of the sweep without an outcome."""

    row: int
    """In the table given, from 0; rows that `analysis.load` excluded follow its last."""
    name: str
    """As sentences name it: its `trial_id`, or `row 7`."""
    inputs: Mapping[str, float]
    reason: str
    expected: tuple[float, float, float]
    """Outcome by the fit of the others, and the two ends of its prediction interval."""
    answer: tuple[float, float]
    """The answer with this cell at either end, the lower answer first."""
    extrapolated: bool
    """Whether it lies outside the cells that are there."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialFit:
    """A law fitted to the cells that are there, and what the others could change."""

    fit: LawFit
    sentence: str
    at: Mapping[str, float]
    """Where the answer is asked for."""
    answer: LawPrediction | None = None
    """Of the cells that are there; None without a usable fit."""
    missing: Sequence[MissingCell] = ()
    could_be: tuple[float, float] | None = None
    """Lowest and highest answer over all scenarios with missing cells filled in."""
    left_out: tuple[float, float] | None = None
    """Lowest and highest answer when one configuration that is there is left out."""
    moves: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row per scenario: `scenario`, `row` (of the cell; -1 for all), `answer`, and the
    parameters."""

    def __repr__(self) -> str:
        n = len(self.missing)
        return f"<PartialFit of {self.fit.law.name}: {n} missing cells; see summary()>"

    @property
    def usable(self) -> bool:
        """Whether there are numbers."""
        return self.fit.usable

    def summary(self) -> str:
        """Return the sentence, the missing cells, and the summary of the fit."""
        cells = self.to_frame().to_string(index=False, float_format=lambda v: f"{v:.5g}")
        return "\n\n".join([self.sentence, *([cells] if self.missing else []), self.fit.summary()])

    def to_frame(self) -> pd.DataFrame:
        """Return one row per missing cell: its sizes, its interval, and the answer's range."""
        columns = ["cell", *self.fit.law.inputs, "expected", "low", "high"]
        columns += ["answer_low", "answer_high", "extrapolated", "reason"]
        rows = [
            (c.name, *c.inputs.values(), *c.expected, *c.answer, c.extrapolated, c.reason)
            for c in self.missing
        ]
        return pd.DataFrame(rows, columns=columns)


def fit_partial(
    law: Law | str,
    runs: Runs | HasTable,
    *,
    outcome: str = "loss",
    columns: Mapping[str, str] | None = None,
    clusters: Sequence[Any] | NDArray[Any] | str | None = None,
    at: Mapping[str, float] | None = None,
    objective: Objective | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    accept: Collection[str] = (),
) -> PartialFit:
    """Fit `law` to the rows that have an outcome, and say what the others would change.

    Args:
        law: Of `analysis/laws`, or its name there.
        runs: All cells of the sweep, one row each; a missing one has no outcome (NaN, infinite or
            empty). A column of REASONS says why. Of what `analysis.load` returns, excluded rows
            are missing cells where their sizes are known; the sentence counts the others.
        outcome: Column to explain.
        columns: The law's input names to columns, where they differ.
        clusters: Configuration per row, or its column, as in `fit_law`.
        at: Inputs to answer at; the largest cell of the sweep if None.
        objective: As in `fit_law`.
        n_draws: Resamples.
        seed: Of the resampling.
        level: Of the intervals.
        accept: Kinds of warning that were looked into.

    Raises:
        ValueError: As `fit_law`; sizes have to be there for missing cells, too.

    Example:
        >>> import numpy as np
        >>> from analysis.laws.chinchilla import CHINCHILLA
        >>> N, D = (v.ravel() for v in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1e9, 4e9, 1.6e10]))
        >>> runs = {"params": N, "tokens": D, "loss": 1.8 + 400 * N**-0.35 + 2000 * D**-0.37}
        >>> runs["loss"][-1] = np.nan  # the largest has not run
        >>> found = fit_partial(CHINCHILLA, runs, n_draws=50)
        >>> found.sentence.partition(".")[0]
        '11 of 12 cells; missing: 1 not run'
    """
    # The largest cell may itself be missing: it is what a sweep is run for, and what others move.
    law = as_law(law)
    objective = objective or law.default_objective
    cells = _read_cells(law, runs, outcome, columns, clusters, objective)
    there, inputs = cells.there, cells.inputs
    if at is None:
        largest = int(np.argmax(law.size(inputs)))
        at = {n: float(v[largest]) for n, v in inputs.items()}
    options: dict[str, Any] = {
        "outcome": outcome,
        "objective": objective,
        "seed": seed,
        "level": level,
    }
    # What the missing cells would change is measured from this fit, so it knows nothing of them;
    # warnings still name rows as the caller's table counts them.
    fit = fit_law(
        law,
        {n: v[there] for n, v in inputs.items()} | {outcome: cells.y[there]},
        clusters=cells.labels[there] if clusters is not None else None,
        n_draws=n_draws,
        accept=accept,
        controls=FitControls(
            rows=cells.numbers[there],
            configurations=None if cells.seeds is None else cells.seeds[there],
        ),
        **options,
    )
    fit = replace(fit, columns=cells.columns)
    if not fit.usable:
        return PartialFit(fit=fit, sentence=f"{cells.counted}. No fit: {fit.sentence}", at=at)
    return _with_scenarios(fit, cells, at, options)


def _with_scenarios(
    fit: LawFit, cells: "_Cells", at: Mapping[str, float], options: Mapping[str, Any]
) -> PartialFit:
    """Return the fit with missing cells at either end of their intervals, and others left out."""
    expected, ends = _expected(fit, cells)
    moves = _moves(fit.law, cells, ends, at, options)
    put_in = moves[moves["scenario"].isin(["low", "high", "all low", "all high"])]
    taken = moves[moves["scenario"] == "left out"]
    missing = [
        MissingCell(
            row=int(row),
            name=cells.names[row],
            inputs={n: float(v[row]) for n, v in cells.inputs.items()},
            reason=cells.reasons[row],
            expected=(float(expected.y[k]), float(ends[0, k]), float(ends[1, k])),
            answer=_range(put_in.loc[put_in["row"] == row, "answer"]) or (np.nan, np.nan),
            extrapolated=bool(expected.extrapolated[k]),
        )
        for k, row in enumerate(cells.gone)
        if expected is not None
    ]
    found = PartialFit(
        fit=fit,
        sentence="",
        at=at,
        answer=fit.predict({n: [v] for n, v in at.items()}),
        missing=tuple(missing),
        could_be=_range(put_in["answer"]),
        left_out=_range(taken["answer"]),
        moves=moves,
    )
    return replace(found, sentence=f"{cells.counted}. {_sentence(found, taken, cells.names)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cells:
    """The table of a sweep, with and without outcomes; all (n,) unless said otherwise."""

    inputs: Mapping[str, Array]
    columns: Mapping[str, str]
    """The law's inputs to the columns that they were read from."""
    y: Array
    """NaN or infinite where there is none."""
    there: NDArray[np.bool_]
    places: NDArray[np.int64]
    """The same number for rows of equal inputs."""
    labels: NDArray[Any]
    seeds: NDArray[np.int64] | None
    """Configuration of which each row is a seed, where the table or the caller says it."""
    reasons: Sequence[str]
    names: Sequence[str]
    numbers: NDArray[np.int64]
    """As the file counts the rows, where `analysis.load` read one."""
    gone: NDArray[np.int64]
    """Rows of the missing cells, one each."""
    unplaced: str = ""
    """Which excluded rows are no cells, and why."""

    @property
    def counted(self) -> str:
        """`10 of 12 cells; missing: 2 diverged`."""
        n_there, n = len(np.unique(self.places[self.there])), len(np.unique(self.places))
        words = f"{n_there} of {n} cells"
        if len(self.gone):
            by_reason = Counter(_in_short(self.reasons[i]) for i in self.gone)
            words += f"; missing: {', '.join(f'{n} {why}' for why, n in by_reason.items())}"
        return words + self.unplaced


def _read_cells(
    law: Law,
    runs: Runs | HasTable,
    outcome: str,
    columns: Mapping[str, str] | None,
    clusters: Sequence[Any] | NDArray[Any] | str | None,
    objective: Objective,
) -> _Cells:
    table = as_columns(runs)
    names = {n: column_of(table, n, columns) for n in law.inputs}
    inputs = {n: numbers(table, c, zero=n in law.may_be_zero) for n, c in names.items()}
    given = pd.Series(list(column(table, outcome)))
    y = pd.to_numeric(given, errors="coerce").to_numpy(np.float64)
    numbers(
        {outcome: y},
        outcome,
        zero=objective.offset > 0,
        negative=objective.residual == "value",
        among=np.isfinite(y),
    )
    configurations = labels(table, clusters, equal_rows(*inputs.values()))
    seeds = seeds_of(table, clusters, equal_rows(*inputs.values()))
    reasons = _reasons(table, outcome, y)
    rows = row_numbers(table, len(y))
    known = table["trial_id"] if "trial_id" in table else [f"row {i}" for i in rows]
    excluded, unplaced = _excluded_cells(runs, table, names)
    n = len(excluded)
    inputs = {name: np.append(v, excluded[name].to_numpy()) for name, v in inputs.items()}
    y = np.append(y, np.full(n, np.nan))
    there = np.isfinite(y)
    places = equal_rows(*inputs.values())
    # A cell with one seed left is there; one without any is named by its first row.
    gone = np.flatnonzero(~there & ~np.isin(places, places[there]))
    _, first = np.unique(places[gone], return_index=True)
    return _Cells(
        inputs=inputs,
        columns=names,
        y=y,
        there=there,
        places=places,
        labels=np.append(configurations, [f"excluded {i}" for i in range(n)]),
        seeds=None if seeds is None else np.append(seeds, np.full(n, -1)),
        reasons=[*reasons, *excluded["reason"]],
        names=[*map(str, known), *excluded["trial_id"].map(str)],
        numbers=np.append(rows, np.full(n, -1)),
        gone=np.sort(gone[first]),
        unplaced=unplaced,
    )


def _excluded_cells(
    runs: Runs | HasTable, table: Runs, names: Mapping[str, str]
) -> tuple[pd.DataFrame, str]:
    """Return the rows that `analysis.load` excluded and whose sizes are known.

    Columns are the law's inputs, trial_id and reason. The text says how many others there are.

    Args:
        runs: As given.
        table: Its columns.
        names: The law's inputs to columns of the table.
    """
    excluded = getattr(runs, "excluded", None)
    if hasattr(runs, "keys") or excluded is None or not len(excluded):
        nothing = pd.DataFrame(columns=[*names, "trial_id", "reason"])
        return nothing.astype(dict.fromkeys(names, np.float64)), ""
    # Of a table that somebody narrowed, what was excluded of other architectures is not missing.
    excluded = excluded[excluded["architecture"].isin(list(table["architecture"]))]
    found = {"trial_id": excluded["trial_id"], "reason": excluded["reason"]}
    for name, theirs in names.items():
        # Excluded rows have few columns: one of the same sizes as the law's.
        same = [c for c in (theirs, *OURS.get(theirs, ())) if c in excluded and c in table]
        same = [c for c in same if np.array_equal(table[c], table[theirs])]
        found[name] = excluded[same[0]] if same else pd.Series(np.nan, excluded.index)
    cells = pd.DataFrame(found).astype(dict.fromkeys(names, np.float64))
    # Sizes with a value that cannot be are in doubt themselves.
    placed = (cells[list(names)] > 0).all(axis=1) & ~cells["reason"].str.startswith("impossible")
    n = int((~placed).sum())
    rows = f"{n} excluded row{'s have' if n > 1 else ' has'}"
    unplaced = f"; {rows} no known {' and '.join(names)}, so no cell" if n else ""
    return cells[placed], unplaced


def _expected(fit: LawFit, cells: _Cells) -> tuple[LawPrediction | None, Array]:
    """Return the prediction for the missing cells, and the ends (2, m) of their intervals."""
    if not len(cells.gone):
        return None, np.empty((2, 0))
    expected = fit.predict({n: v[cells.gone] for n, v in cells.inputs.items()})
    ends = np.stack([expected.new_low, expected.new_high])
    # Without an interval, as far as the worst residual.
    worst = np.abs(fit.residuals).max() * np.asarray([[1.0], [-1.0]])
    ends = np.where(np.isfinite(ends), ends, fit.objective_of.observed(expected.y, worst))
    # No further than a run's outcome can lie, for what is put in is fitted.
    is_share = fit.law.outcome_is_share
    lowest = 0.0 if is_share or fit.objective_of.offset else -np.inf
    return expected, np.clip(ends, lowest, 1.0 if is_share else np.inf)


def _moves(
    law: Law, cells: _Cells, ends: Array, at: Mapping[str, float], options: Mapping[str, Any]
) -> pd.DataFrame:
    """Return one row per scenario: the answer and the parameters of its refit."""
    there, gone = cells.there, cells.gone
    scenarios, weights = _scenarios(there, cells.labels, gone)
    filled = {n: np.concatenate([v[there], v[gone], v[gone]]) for n, v in cells.inputs.items()}
    filled[options["outcome"]] = np.concatenate([cells.y[there], *ends])
    places = equal_rows(*(filled[n] for n in law.inputs))
    enough = n_distinct_drawn(weights, places) > law.n_free
    # All scenarios are resamples of one table: one start for all, refitted in one array program.
    draws = fit_law(
        law,
        filled,
        hold_out=False,
        accept=ALL_KINDS,
        controls=FitControls(resamples=weights[enough], calibrate=False),
        **options,
    ).draws
    scenarios = [s for s, good in zip(scenarios, enough, strict=True) if good and len(draws)]
    answers = np.empty(0)
    if scenarios:
        answers = law.evaluate({n: np.asarray([v]) for n, v in at.items()}, draws)[:, 0]
    return pd.DataFrame(
        {"scenario": [s for s, _ in scenarios], "row": [r for _, r in scenarios], "answer": answers}
        | {n: draws[:, i] for i, n in enumerate(law.parameter_names) if scenarios}
    )


def _scenarios(
    there: NDArray[np.bool_], named: NDArray[Any], gone: NDArray[np.int64]
) -> tuple[list[tuple[str, int]], Array]:
    """Return what is put in or left out (scenario, row), and the weights of the rows.

    Rows are those that are there, the missing ones at the low end, and at the high end.
    """
    n, m = int(there.sum()), len(gone)
    base = np.concatenate([np.ones(n), np.zeros(2 * m)])
    listed: list[tuple[str, int]] = [("as it is", -1)]
    weights = [base]
    for end, name in enumerate(("low", "high")):
        for k in range(m):
            put = base.copy()
            put[n + end * m + k] = 1
            listed.append((name, int(gone[k])))
            weights.append(put)
        if m > 1:
            both = base.copy()
            both[n + end * m : n + (end + 1) * m] = 1
            listed.append((f"all {name}", -1))
            weights.append(both)
    present = named[there]
    rows = np.flatnonzero(there)
    for one in dict.fromkeys(present.tolist()):
        without = base.copy()
        without[:n][present == one] = 0
        listed.append(("left out", int(rows[np.flatnonzero(present == one)[0]])))
        weights.append(without)
    return listed, np.stack(weights)


def _reasons(runs: Runs, outcome: str, y: Array) -> list[str]:
    """Return why each row has no outcome.

    What a column says, the text in its place, or what the number shows.
    """
    name = next((n for n in REASONS if n in runs), None)
    given = list(column(runs, name)) if name else [None] * len(y)
    reasons = []
    for value, cell, reason in zip(y, list(column(runs, outcome)), given, strict=True):
        words = [str(w).strip() for w in (reason, cell) if isinstance(w, str) and w.strip()]
        reasons.append(words[0] if words else "diverged" if np.isinf(value) else "not run")
    return reasons


def _in_short(reason: str) -> str:
    """Return a reason without its kind and what to do, which `analysis.load` adds."""
    return reason.partition(";")[0].removeprefix("missing: ").removeprefix("not finite: ")


def _range(values: "pd.Series[float]") -> tuple[float, float] | None:
    return (float(values.min()), float(values.max())) if len(values) else None


def _sentence(found: PartialFit, taken: pd.DataFrame, names: Sequence[str]) -> str:
    assert found.answer is not None
    where = ", ".join(f"{n} {v:.3g}" for n, v in found.at.items())
    value = float(found.answer.y[0])
    words = [f"At {where} the law gives {value:.5g}"]
    if np.isfinite(found.answer.low[0]):
        words[0] += f" [{found.answer.low[0]:.5g}, {found.answer.high[0]:.5g}]"
    if found.answer.extrapolated[0]:
        factor = found.answer.distance[0]
        how_far = f"by a factor of {factor:.2g}" if np.isfinite(factor) else "to a size of 0"
        words[0] += f", an extrapolation {how_far}"
    if found.could_be is not None and found.missing:
        low, high = found.could_be
        most = max(found.missing, key=lambda c: c.answer[1] - c.answer[0])
        size = ", ".join(f"{n} {v:.3g}" for n, v in most.inputs.items())
        which = f"{most.name} ({size}; {_in_short(most.reason)})"
        words.append(
            "with the missing cells at the ends of their prediction intervals it would be "
            f"{low:.5g} to {high:.5g}, moved most by {which}: "
            f"{most.answer[0]:.5g} to {most.answer[1]:.5g}"
        )
    if found.left_out is not None:
        low, high = found.left_out
        far = taken.iloc[int(np.abs(taken["answer"].to_numpy() - value).argmax())]
        words.append(
            f"without one of the cells that are there it would be {low:.5g} to {high:.5g}, "
            f"moved most by {names[int(far['row'])]}"
        )
    return "; ".join(words)
