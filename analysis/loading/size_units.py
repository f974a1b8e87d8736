"""Units of parameters and tokens in millions or billions that do not say so.

70 and 2.8 fit a law as well as 7e7 and 2.8e9 do, and what it then predicts means nothing.
"""

from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from analysis.loading.validation import FLOPS_PER_PARAM_TOKEN, DataWarning

Array = NDArray[np.float64]

SMALL = 1000.0
"""Median below which parameters or tokens are hardly counts; there are models of 5,000 parameters,
and hardly smaller ones."""

TOKENS_PER_PARAM = (1e-4, 1e6)
"""Beyond these, parameters and tokens are hardly in the same unit."""

USUAL = {"params": 1e9, "tokens": 2e10}
"""Guesses are near these: a model of compute-optimal tokens (Hoffmann et al. 2022)."""

UNITS = (1.0, 1e6, 1e9, 1e12)


def check_small_sizes(
    columns: Mapping[str, Array],
    *,
    units: Mapping[str, float] | None = None,
    rows: NDArray[np.int64] | None = None,
) -> DataWarning | None:
    """Return a warning if parameters or tokens are hardly counts, else None.

    It proposes units. Its kind is `units`, which is refused, where a value is below 1 or where the
    proposed units alone agree with the FLOPs; `small` where the sizes are only unlikely.

    Args:
        columns: Sizes (n,) by name, NaN where a row has none.
        units: By which columns were multiplied already; a proposal takes their place.
        rows: What the rows are called (n,); None counts from 0.
    """
    size = "active_params" if "active_params" in columns else "params"
    sizes = {n: columns[n] for n in (size, "tokens") if np.isfinite(columns.get(n, np.nan)).any()}
    medians = {n: float(np.nanmedian(v)) for n, v in sizes.items()}
    small = {n for n, v in sizes.items() if np.nanmin(v) < 1 or medians[n] < SMALL}
    low, high = TOKENS_PER_PARAM
    apart = len(sizes) == 2 and not low <= medians["tokens"] / medians[size] <= high
    if not small and not apart:
        return None
    cost = float("nan")
    if len(sizes) == 2 and "flops" in columns:
        ratio = columns["flops"] / (sizes[size] * sizes["tokens"])
        cost = float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else cost
    choices = [[u for u in UNITS if n not in small or u > 1] for n in sizes]
    guesses = [dict(zip(sizes, factors, strict=True)) for factors in product(*choices)]
    best = min(guesses, key=lambda guess: _oddness(guess, medians, size, cost))
    odd = [name for name, factor in best.items() if factor != 1]
    if not odd:
        return None
    certain = any(np.nanmin(v) < 1 for v in sizes.values()) or (
        not _possible(cost) and _possible(cost / float(np.prod(list(best.values()))))
    )
    others = [n for n in ("params", "total_params") if n in columns and n != size and size in odd]
    factors = {**best, **dict.fromkeys(others, best[size])}
    named = [n for n in (*others, *odd) if np.isfinite(columns[n]).any()]
    proposed = ", ".join(f"{n!r}: {_short(factors[n] * (units or {}).get(n, 1.0))}" for n in named)
    ranges = " and ".join(f"{n} ({_range(columns[n])})" for n in named)
    then = " and ".join(_range(columns[n] * factors[n]) for n in named)
    what = " and ".join(["parameters"] * (size in odd) + ["tokens"] * ("tokens" in odd))
    below = np.flatnonzero(np.any([v < 1 for v in sizes.values()], axis=0))
    return DataWarning(
        kind="units" if certain else "small",
        column=odd[0],
        rows=tuple((below if rows is None else rows[below]).tolist()),
        sentence=f"{ranges}: too small to count single {what}; say the unit, "
        f"as units={{{proposed}}} for {then}",
    )


def _oddness(
    guess: Mapping[str, float], medians: Mapping[str, float], size: str, cost: float
) -> float:
    """Return how unusual the sizes would be, in powers of ten."""
    usual = {size: USUAL["params"], "tokens": USUAL["tokens"]}
    off = {n: float(np.log10(medians[n] * factor / usual[n])) for n, factor in guess.items()}
    if len(off) == 1:
        return abs(next(iter(off.values())))
    impossible = np.isfinite(cost) and not _possible(cost / (guess[size] * guess["tokens"]))
    # Tokens per parameter vary less between tables than sizes do.
    return abs(off["tokens"] - off[size]) + 0.5 * abs(off[size]) + (100.0 if impossible else 0.0)


def _possible(cost: float) -> bool:
    """Whether training takes so many FLOPs per parameter and token; NaN is unknown."""
    low, high = FLOPS_PER_PARAM_TOKEN
    return bool(np.isnan(cost) or low <= cost <= high)


def _range(values: Array) -> str:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return _short(low) if low == high else f"{_short(low)} to {_short(high)}"


def _short(number: float) -> str:
    if 1000 <= number < 1e5:
        return f"{number:,.0f}"
    return f"{number:.3g}".replace("e+0", "e").replace("e+", "e")
