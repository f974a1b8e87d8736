"""Units of sizes: several in one column, or millions that do not say so.

70 and 2.8 fit a law as well as 7e7 and 2.8e9 do, and what it then predicts means nothing.
"""

from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from analysis.loading.columns import in_words
from analysis.loading.flops_per_token import FLOPS_PER_PARAM_TOKEN, check_flops, power_of_1000
from analysis.loading.validation import SIZES, DataWarning

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

GAP = 1000.0
"""Factor between neighbouring sizes from which on units look mixed: the step from k to M to B."""

SMALL = 1000.0
"""Median below which parameters or tokens are hardly counts; there are models of 5,000 parameters,
and hardly smaller ones."""

TOKENS_PER_PARAM = (1e-4, 1e6)
"""Beyond these, parameters and tokens are hardly in the same unit."""

USUAL = {"params": 1e9, "tokens": 2e10}
"""Guesses are near these: a model of compute-optimal tokens (Hoffmann et al. 2022)."""

UNITS = (1.0, 1e6, 1e9, 1e12)


def check_size_units(
    columns: Mapping[str, Array], *, rows: Rows | None = None
) -> list[DataWarning]:
    """Return warnings about the units of sizes: columns (n,) by name, NaN where a row has none.

    Args:
        columns: Those of SIZES that are there; FLOPs are checked by `active_params` rather than
            `params`.
        rows: What the rows are called (n,), where the source has others too; None counts from 0.
    """
    checked = [_check_one_unit(name, columns[name], rows) for name in SIZES if name in columns]
    found = [w for w in checked if w is not None]
    active = _active(columns)
    if not {active, "tokens", "flops"} <= set(columns):
        return found
    cost = check_flops(columns["flops"], columns[active], columns["tokens"], name=active, rows=rows)
    if (cost is None or cost.kind != "flops") and [w.column for w in found] == ["flops"]:
        # A flagship beside its small runs: what it costs is what its size and tokens say.
        found = []
    if found:
        return found  # with sizes of two units the FLOPs would be blamed for it
    return [] if cost is None else [cost]


def _active(columns: Mapping[str, Array]) -> str:
    """Return the column of the parameters that a token passes."""
    return "active_params" if "active_params" in columns else "params"


def _check_one_unit(name: str, values: Array, rows: Rows | None) -> DataWarning | None:
    """Return a warning if some values of a column lie far above or below all others."""
    known = np.flatnonzero(np.isfinite(values) & (values > 0))
    if len(known) < 3:
        return None
    order = known[np.argsort(values[known], kind="stable")]
    v = values[order]
    steps = v[1:] / v[:-1]
    at = int(steps.argmax())
    if steps[at] < GAP:
        return None
    small, large = np.sort(order[: at + 1]), np.sort(order[at + 1 :])
    below = len(small) <= len(large)
    odd = small if below else large
    named = odd if rows is None else rows[odd]
    unit = power_of_1000(float(np.median(values[large]) / np.median(values[small])))
    return DataWarning(
        kind="units",
        column=name,
        rows=tuple(named.tolist()),
        sentence=f"{name}: mixed units, {in_words(named)} (row {named[0]}: {values[odd[0]]:.4g}) "
        f"{'lies' if len(odd) == 1 else 'lie'} a factor of {steps[at]:.3g} "
        f"{'below' if below else 'above'} all others; "
        f"write every row in one unit (they differ by {unit:g}?)",
    )


def check_small_sizes(
    columns: Mapping[str, Array], *, units: Mapping[str, float], rows: Rows
) -> DataWarning | None:
    """Return a warning if parameters or tokens are hardly counts, else None.

    It proposes units. Its kind is `units`, which is refused, where a value is below 1 or where the
    proposed units alone agree with the FLOPs; `small` where the sizes are only unlikely.

    Args:
        columns: Sizes (n,) by name, NaN where a row has none.
        units: By which columns were multiplied already; a proposal takes their place.
        rows: What the rows are called (n,).
    """
    size = _active(columns)
    sizes = {n: columns[n] for n in (size, "tokens") if np.isfinite(columns.get(n, np.nan)).any()}
    medians = {n: float(np.nanmedian(v)) for n, v in sizes.items()}
    small = {n for n, v in sizes.items() if np.nanmin(v) < 1 or medians[n] < SMALL}
    if not small and not _far_apart(medians, size):
        return None
    cost = _flops_per_param_token(columns, sizes, size)
    factors = _likeliest_units(medians, small, size, cost)
    odd = [name for name, factor in factors.items() if factor != 1]
    if not odd:
        return None
    below_one = np.any([v < 1 for v in sizes.values()], axis=0)
    agrees = _possible(cost / float(np.prod(list(factors.values()))))
    certain = below_one.any() or (agrees and not _possible(cost))
    # Every count of parameters is in the unit of the one that was looked at.
    others = [n for n in ("params", "total_params") if n in columns and n != size and size in odd]
    factors |= dict.fromkeys(others, factors[size]) if others else {}
    named = [n for n in (*others, *odd) if np.isfinite(columns[n]).any()]
    proposed = ", ".join(f"{n!r}: {_short(factors[n] * units.get(n, 1.0))}" for n in named)
    ranges = " and ".join(f"{n} ({_range(columns[n])})" for n in named)
    then = " and ".join(_range(columns[n] * factors[n]) for n in named)
    what = " and ".join(["parameters"] * (size in odd) + ["tokens"] * ("tokens" in odd))
    return DataWarning(
        kind="units" if certain else "small",
        column=odd[0],
        rows=tuple(rows[below_one].tolist()),
        sentence=f"{ranges}: too small to count single {what}; say the unit, "
        f"as units={{{proposed}}} for {then}",
    )


def _far_apart(medians: Mapping[str, float], size: str) -> bool:
    """Return whether parameters and tokens, where both are known, are hardly in the same unit."""
    low, high = TOKENS_PER_PARAM
    return len(medians) == 2 and not low <= medians["tokens"] / medians[size] <= high


def _flops_per_param_token(
    columns: Mapping[str, Array], sizes: Mapping[str, Array], size: str
) -> float:
    """Return what training took per parameter and token, the median; NaN if it is unknown."""
    if len(sizes) < 2 or "flops" not in columns:
        return float("nan")
    ratio = columns["flops"] / (sizes[size] * sizes["tokens"])
    return float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else float("nan")


def _likeliest_units(
    medians: Mapping[str, float], small: set[str], size: str, cost: float
) -> dict[str, float]:
    """Return the unit of each size that makes the table most usual; small ones have one."""
    choices = [[u for u in UNITS if name not in small or u > 1] for name in medians]
    guesses = [dict(zip(medians, factors, strict=True)) for factors in product(*choices)]
    return min(guesses, key=lambda guess: _oddness(guess, medians, size, cost))


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
