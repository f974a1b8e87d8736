"""Columns of a table of runs as numbers.

Every fit reads its runs through this file, so that all of them say the same about the same mistake:
which column, which row, what it holds, what to do.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Runs = Mapping[str, Any]
"""Columns of numbers, one row per run: a DataFrame, or a dict of lists."""


class HasTable(Protocol):
    """What `analysis.load` returns."""

    table: Any


OURS: Mapping[str, tuple[str, ...]] = {
    "params": ("active_params", "non_embedding_params", "total_params"),
    "n_active": ("active_params", "non_embedding_params"),
    "tokens": ("training_tokens",),
    "flops": ("training_flops",),
    "n_memory": ("memory_params",),
    "experts": ("n_experts",),
}
"""Inputs of laws to the columns that are taken where none has the input's name, in this order.

Active parameters come first: total ones count embeddings and every expert, and neither training
FLOPs nor the loss go by them."""

MOST_LISTED = 8
"""Columns that an error lists; of more it says how many."""


def as_columns(runs: Runs | HasTable) -> Runs:
    """Return the columns of runs: a table as it is, or the one that `analysis.load` read.

    Raises:
        ValueError: If it is neither.
    """
    if hasattr(runs, "keys"):
        return cast("Runs", runs)
    if not hasattr(runs, "table"):
        raise ValueError(
            f"runs: must be a DataFrame, a dict of columns or what analysis.load returns, got "
            f"{type(runs).__name__}"
        )
    return cast("Runs", runs.table)


def find_column(
    runs: Runs,
    name: str,
    columns: Mapping[str, str] | None = None,
    *,
    among: Sequence[str] | None = None,
) -> str | None:
    """Return the column that holds an input of a law, None if there is none.

    Args:
        runs: The table.
        name: Of the input.
        columns: Inputs to the columns that the caller named.
        among: Where an input that is not named is looked for, in this order. None is the column of
            its name and then `OURS`.
    """
    if columns and name in columns:
        among = [columns[name]]
    elif among is None:
        among = [name, *OURS.get(name, ())]
    return next((c for c in among if c in runs), None)


def column_of(
    runs: Runs,
    name: str,
    columns: Mapping[str, str] | None = None,
    *,
    among: Sequence[str] | None = None,
) -> str:
    """Return what `find_column` does.

    Raises:
        ValueError: If there is none; the message names the most similar ones.
    """
    found = find_column(runs, name, columns, among=among)
    if found is None:
        theirs = (columns or {}).get(name, name)
        raise _no_column(runs, theirs, f"the column of {name}: columns={{'{name}': '…'}}")
    return found


def taken(columns: Mapping[str, str]) -> str:
    """Return which inputs were read from columns of another name; empty if none was.

    Args:
        columns: Inputs to columns.
    """
    return ", ".join(f"{n} is column {theirs}" for n, theirs in columns.items() if n != theirs)


def column(runs: Runs, name: str) -> Any:
    """Return a column as it is.

    Raises:
        ValueError: If there is none; the message names the most similar ones.
    """
    if name in runs:
        return runs[name]
    raise _no_column(
        runs,
        name,
        "the column that holds it: outcome='…' for the outcome, "
        "columns={'params': '…'} for an input of the law",
    )


def _no_column(runs: Runs, name: str, how: str) -> ValueError:
    """Return the error of a missing column.

    Args:
        runs: The table.
        name: Of the column.
        how: What the caller can name in its place, and how.
    """
    there = [str(c) for c in runs]
    near = get_close_matches(name, there, n=2, cutoff=0.6)
    near = near or [c for c in there if len(name) > 2 and name.lower() in c.lower()][:2]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    if "trial_id" in there and not len(runs["trial_id"]):
        return ValueError(
            f"{name}: no such column, and no row; the notes and `excluded` of what analysis.load "
            "returned say why no run counts"
        )
    return ValueError(
        f"{name}: no such column; {hint}there are {names_of(runs)}; give {name}, too, or name {how}"
    )


def names_of(runs: Runs) -> str:
    """Return the names of the columns for a message: the first of many, and how many others."""
    there = [str(c) for c in runs]
    shown = ", ".join(there[:MOST_LISTED]) or "none"
    return shown if len(there) <= MOST_LISTED else f"{shown} and {len(there) - MOST_LISTED} more"


def numbers(
    runs: Runs,
    name: str,
    *,
    zero: bool = False,
    negative: bool = False,
    why: str = "",
    among: NDArray[np.bool_] | None = None,
) -> Array:
    """Return a column as positive, finite numbers (n,).

    Args:
        runs: The table.
        name: Of the column.
        zero: Whether zero is a value of it, too.
        negative: Whether any finite number is.
        why: What to do about a bad row; the usual advice if empty.
        among: Mask (n,) of the rows that matter; None checks all.

    Raises:
        ValueError: If there is no such column or no row, or a value is no number, not finite, or
            of a sign that it cannot have. Rows count from 0.
    """
    raw = column(runs, name)
    try:
        values = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.asarray([_number_in_row(value, name, i) for i, value in enumerate(raw)])
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"{name}: must be one number per run, got shape {values.shape}; give at least one run"
        )
    bad = ~np.isfinite(values)
    if not negative:
        bad |= values < 0 if zero else values <= 0
    if among is not None:
        if among.shape != values.shape:
            raise ValueError(
                f"{name}: {len(values)} values for {len(among)} runs; give one per run"
            )
        bad &= among
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        more = f" (so has {in_words(np.flatnonzero(bad)[1:])})" if bad.sum() > 1 else ""
        must = "must be positive and"
        if zero or negative:
            must = "must be" if negative else "must not be negative, and"
        raise ValueError(
            f"{name}, row {row}: {must} finite, got {values[row]}{more}; "
            f"{why or 'correct the row or take it out'}"
        )
    return values


LOSS_ADVICE = "a diverged run is taken out by its row, not fitted"


def labels(
    runs: Runs,
    clusters: Sequence[Any] | NDArray[Any] | str | None,
    same_inputs: NDArray[np.int64],
) -> NDArray[Any]:
    """Return the label of every run's configuration (n,).

    Args:
        runs: The table.
        clusters: One label per run, or the column that has them; None: runs of equal inputs are of
            one configuration.
        same_inputs: A number per run (n,), the same for runs of equal inputs (`equal_rows`).

    Raises:
        ValueError: If the column is missing, or there is not one label per run.
    """
    if clusters is None:
        return np.asarray([f"{number:09d}" for number in same_inputs])
    values = column(runs, clusters) if isinstance(clusters, str) else clusters
    found = np.asarray([str(label) for label in values])
    if found.shape != same_inputs.shape:
        raise ValueError(
            f"clusters: must name one configuration per run ({len(same_inputs)}), got {len(found)}"
        )
    return found


def seeds_of(
    runs: Runs,
    clusters: Sequence[Any] | NDArray[Any] | str | None,
    same_inputs: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Return a number per run (n,), the same for seeds of one configuration; None if unknown.

    `clusters` says it, and so do the columns `configuration` and `seed` of memscale's own tables.
    Arguments are those of `labels`.
    """
    if clusters is None:
        ours = [runs[c] for c in ("configuration", "seed") if c in runs]
        if [np.shape(c) for c in ours] != 2 * [same_inputs.shape]:
            return None
        clusters = "configuration"
    return np.unique(labels(runs, clusters, same_inputs), return_inverse=True)[1]


def equal_rows(*columns_: Array) -> NDArray[np.int64]:
    """Return a number per run (n,), the same for runs that are equal in all columns."""
    matrix = np.stack(columns_, axis=1)
    return np.unique(matrix, axis=0, return_inverse=True)[1].reshape(-1)


def row_numbers(table: Runs, n: int) -> NDArray[np.int64]:
    """Return the rows' numbers (n,) as `analysis.load` read them in a file; else from 0."""
    given = np.asarray(table["row"]) if "row" in table else np.empty(0)
    if given.shape == (n,) and np.issubdtype(given.dtype, np.integer):
        return given.astype(np.int64)
    return np.arange(n)


MOST_NAMED = 4
"""Rows that a sentence names; of more it says how many."""


def in_words(rows: NDArray[np.int64]) -> str:
    """Return `row 3`, `rows 3, 5 and 6`, or `rows 3, 5, 6, 7 and 12 more`."""
    shown = [str(int(r)) for r in rows[:MOST_NAMED]]
    if len(rows) > MOST_NAMED:
        return f"rows {', '.join(shown)} and {len(rows) - MOST_NAMED} more"
    if len(shown) == 1:
        return f"row {shown[0]}"
    return f"rows {', '.join(shown[:-1])} and {shown[-1]}"


def _number_in_row(value: Any, name: str, row: int) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}, row {row}: not a number, got {str(value)!r}; correct the row or take it out "
            "(analysis.load reads 70M and 1.4e9)"
        ) from None
