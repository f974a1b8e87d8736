"""A fit on part of a sweep: what was missing, and how the answer would move if it were there.

    found = fit_partial(CHINCHILLA, table)          # rows without a loss are the missing cells
    print(found.sentence)
    found.moves                                     # one row per scenario: answer and parameters

A missing cell is put in, one at a time and all together, at the two ends of the interval in which its run would lie by
the fit of the others (its prediction interval), and the law is refitted each time: the answer then moves between what
the missing cells can do to it if they are like the rest. A run that diverged is no number to fit; its cell is
treated in the same way, as if the run had been repeated. A cell that is there is left out in turn, for comparison:
an answer that one of them moves further than all missing ones is not in want of more runs of this kind.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.fit_law import LawFit, LawPrediction, fit_law
from analysis.fitting.law import Law
from analysis.fitting.objective import Objective
from analysis.loading.columns import Runs, column, equal_rows, in_words, labels, numbers
from analysis.loading.validation import WarningKind

Array = NDArray[np.float64]

REASONS = ("reason", "status", "state")
"""Columns that may say why a cell has no outcome, in this order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MissingCell:
    """One cell of the sweep without an outcome."""

    row: int
    """In the table given, from 0."""
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
    answer: LawPrediction | None
    """Of the cells that are there; None without a usable fit."""
    missing: Sequence[MissingCell]
    could_be: tuple[float, float] | None
    """Lowest and highest answer over all scenarios with missing cells filled in."""
    left_out: tuple[float, float] | None
    """Lowest and highest answer when one configuration that is there is left out."""
    moves: pd.DataFrame
    """One row per scenario: `scenario`, `row` (of the cell; -1 for all), `answer`, and the parameters."""

    @property
    def usable(self) -> bool:
        """Whether there are numbers."""
        return self.fit.usable


def fit_partial(
    law: Law,
    runs: Runs,
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
        law: Of `analysis/laws`.
        runs: All cells of the sweep, one row each; a missing one has no outcome (NaN, infinite or empty). A column of
            REASONS says why.
        outcome: Column to explain.
        columns: The law's input names to columns, where they differ.
        clusters: Configuration per row, or its column, as in `fit_law`.
        at: Inputs to answer at; the largest cell of the sweep if None.
        objective: As in `fit_law`.
        n_draws: Resamples.
        seed: Of the resampling.
        level: Of the intervals.
        accept: Doubts that were looked into.

    Raises:
        ValueError: As `fit_law`; sizes have to be there for missing cells, too.
    """
    names = columns or {}
    inputs = {n: numbers(runs, names.get(n, n), zero=n in law.may_be_zero) for n in law.inputs}
    y = pd.to_numeric(pd.Series(list(column(runs, outcome))), errors="coerce").to_numpy(np.float64)
    there = np.isfinite(y)
    numbers({outcome: y}, outcome, among=there)
    places = equal_rows(*inputs.values())
    named = labels(runs, clusters, places)
    reasons = _reasons(runs, outcome, y)
    # A cell with one seed left is there.
    gone = np.flatnonzero(~there & ~np.isin(places, places[there]))
    _, first = np.unique(places[gone], return_index=True)
    gone = np.sort(gone[first])
    if at is None:
        largest = int(np.argmax(law.size(inputs)))
        at = {n: float(v[largest]) for n, v in inputs.items()}
    table: dict[str, Any] = {n: v[there] for n, v in inputs.items()} | {outcome: y[there]}
    options: dict[str, Any] = {"outcome": outcome, "objective": objective, "seed": seed, "level": level}  # fmt: skip
    fit = fit_law(law, table, clusters=named[there] if clusters is not None else None, n_draws=n_draws, accept=accept, rows=np.flatnonzero(there), **options)  # fmt: skip
    n_cells, n_there = len(np.unique(places)), len(np.unique(places[there]))
    lead = f"{n_there} of {n_cells} cells"
    if len(gone):
        counted = Counter(reasons[i] for i in gone)
        lead += f"; missing: {', '.join(f'{n} {why}' for why, n in counted.items())}"
    if not fit.usable:
        return PartialFit(
            fit=fit, sentence=f"{lead}. No fit: {fit.sentence}", at=at, answer=None, missing=(),
            could_be=None, left_out=None, moves=pd.DataFrame(),
        )  # fmt: skip
    answer = fit.predict({n: [v] for n, v in at.items()})
    if len(gone):
        expected = fit.predict({n: v[gone] for n, v in inputs.items()})
        ends = np.stack([expected.new_low, expected.new_high])
        # Without an interval, as far as the worst residual.
        spread = np.exp(np.abs(np.log(y[there] / law.evaluate({n: v[there] for n, v in inputs.items()}, fit._vector()))).max())  # fmt: skip
        ends = np.where(np.isfinite(ends), ends, np.stack([expected.y / spread, expected.y * spread]))  # fmt: skip
    else:
        ends = np.empty((2, 0))
    scenarios, weights = _scenarios(there, named, gone)
    filled = {n: np.concatenate([v[there], v[gone], v[gone]]) for n, v in inputs.items()}
    filled[outcome] = np.concatenate([y[there], *ends])
    enough = _n_places(filled, law.inputs, weights) > law.n_free
    refits = fit_law(
        law, filled, resamples=weights[enough], calibrate=False, hold_out=False, accept=get_args(WarningKind), **options
    )  # fmt: skip
    scenarios = [s for s, good in zip(scenarios, enough, strict=True) if good]
    if not len(refits.draws):
        scenarios = []
    answers = law.evaluate({n: np.asarray([v]) for n, v in at.items()}, refits.draws)[:, 0] if scenarios else np.empty(0)  # fmt: skip
    moves = pd.DataFrame(
        {"scenario": [s for s, _ in scenarios], "row": [r for _, r in scenarios], "answer": answers}
        | {n: refits.draws[:, i] for i, n in enumerate(law.parameter_names) if scenarios}
    )
    put_in = moves[moves["scenario"].isin(["low", "high", "all low", "all high"])]
    taken = moves[moves["scenario"] == "left out"]
    cells = []
    for k, row in enumerate(gone):
        mine = put_in.loc[put_in["row"] == row, "answer"]
        cells.append(
            MissingCell(
                row=int(row),
                inputs={n: float(v[row]) for n, v in inputs.items()},
                reason=reasons[row],
                expected=(float(expected.y[k]), float(ends[0, k]), float(ends[1, k])),
                answer=_range(mine) or (float("nan"), float("nan")),
                extrapolated=bool(expected.extrapolated[k]),
            )
        )
    found = PartialFit(
        fit=fit, sentence="", at=at, answer=answer, missing=tuple(cells),
        could_be=_range(put_in["answer"]), left_out=_range(taken["answer"]), moves=moves,
    )  # fmt: skip
    return PartialFit(**{**vars(found), "sentence": f"{lead}. {_sentence(found, taken)}"})


def _scenarios(
    there: NDArray[np.bool_], named: NDArray[Any], gone: NDArray[np.int64]
) -> tuple[list[tuple[str, int]], Array]:
    """Return what is put in or left out (scenario, row), and the weight of each row: there, gone low, gone high."""
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


def _n_places(table: Mapping[str, Array], names: Sequence[str], weights: Array) -> Array:
    places = equal_rows(*(table[n] for n in names))
    member = (places[None, :] == np.unique(places)[:, None]).astype(np.float64)
    return np.asarray(((weights @ member.T) > 0).sum(axis=1), dtype=np.float64)


def _reasons(runs: Runs, outcome: str, y: Array) -> list[str]:
    """Return why each row has no outcome: what a column says, the text in its place, or what the number shows."""
    name = next((n for n in REASONS if n in runs), None)
    given = list(column(runs, name)) if name else [None] * len(y)
    reasons = []
    for value, cell, told in zip(y, list(column(runs, outcome)), given, strict=True):
        words = [str(w).strip() for w in (told, cell) if isinstance(w, str) and w.strip()]
        reasons.append(words[0] if words else "diverged" if np.isinf(value) else "not run")
    return reasons


def _range(values: "pd.Series[float]") -> tuple[float, float] | None:
    return (float(values.min()), float(values.max())) if len(values) else None


def _sentence(found: PartialFit, taken: pd.DataFrame) -> str:
    assert found.answer is not None
    where = ", ".join(f"{n} {v:.3g}" for n, v in found.at.items())
    value = float(found.answer.y[0])
    words = [f"At {where} the law gives {value:.5g}"]
    if np.isfinite(found.answer.low[0]):
        words[0] += f" [{found.answer.low[0]:.5g}, {found.answer.high[0]:.5g}]"
    if found.answer.extrapolated[0]:
        words[0] += f", an extrapolation by a factor of {found.answer.distance[0]:.2g}"
    if found.could_be is not None and found.missing:
        low, high = found.could_be
        most = max(found.missing, key=lambda c: c.answer[1] - c.answer[0])
        size = ", ".join(f"{n} {v:.3g}" for n, v in most.inputs.items())
        words.append(
            f"with the missing cells at the ends of their prediction intervals it would be {low:.5g} to {high:.5g}, moved most by row {most.row} ({size}; {most.reason}): {most.answer[0]:.5g} to {most.answer[1]:.5g}"
        )
    if found.left_out is not None:
        low, high = found.left_out
        far = taken.iloc[int(np.abs(taken["answer"].to_numpy() - value).argmax())]
        words.append(
            f"without one of the cells that are there it would be {low:.5g} to {high:.5g}, moved most by {in_words(np.asarray([int(far['row'])]))}"
        )
    return "; ".join(words)
