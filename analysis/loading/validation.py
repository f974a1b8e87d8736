"""What makes a table doubtful although every number in it could be: each doubt is one sentence with the rows and what to do.

A doubt is never acted on in silence. `analysis.load` and the fits refuse a table whose units cannot be right (a number
would come out, and mean nothing); of the rest they fit all rows and repeat the sentence in the fit's own.
`accept={"units"}` says that somebody looked and that it is right.

    units          neighbouring sizes of one column lie a factor of GAP apart: millions beside single parameters
    flops          FLOPs per active parameter and token outside FLOPS_PER_PARAM_TOKEN: no training costs that
    embeddings     FLOPs of small models above that by what embeddings cost: N is without them; said, not refused
    duplicates     the same run twice: equal sizes and an equal loss to the last digit
    diverged       a loss far above that of a run that is smaller in every way
    architectures  losses or FLOPs that fall into two groups, where one name says one architecture
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from analysis.loading.columns import equal_rows, in_words

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
WarningKind = Literal["units", "flops", "embeddings", "duplicates", "diverged", "architectures"]

ALL_KINDS: tuple[str, ...] = get_args(WarningKind)

GAP = 1000.0
"""Factor between neighbouring sizes from which on a column is held for one of mixed units: the step from k to M to B."""

FLOPS_PER_PARAM_TOKEN = (1.0, 60.0)
"""What training can cost: 2 is a forward pass alone, 6 the usual count; small models with long sequences or large
vocabularies, counted without embeddings, come to some tens."""

DIVERGED = 1.5
"""Factor above the loss of a run with fewer parameters and fewer tokens."""

SEED_NOISE = 0.05
"""Relative difference of loss that no seed makes: runs of equal sizes further apart, and five times further than most
pairs of equal sizes unless these are no seeds either, are not of one kind."""

APART = 6.5
"""Distance of two groups of residuals, in units of the spread inside them. Of 20 residuals of one kind it is above 5.1
(normal) or 6.0 (uniform) once in 1,000 times; 30 runs and 10 others 3 % below them are 12 apart."""

LEAST_APART = 0.01
"""Relative distance of two groups below which nobody would fit them apart."""

FEWEST_FOR_GROUPS = 20
"""Runs below which residuals fall into groups by chance."""

MORE_IS_BETTER = frozenset({"params", "tokens", "n_active", "n_memory", "experts", "compute"})
SIZES = ("params", "tokens", "flops", "n_active", "active_params", "total_params")


@dataclass(frozen=True, kw_only=True)
class DataWarning:
    """One thing that is odd."""

    kind: WarningKind
    rows: tuple[int, ...]
    """From 0; empty if it is about the whole column."""
    sentence: str


def refuse_bad_units(
    doubts: Sequence[DataWarning], *, where: str = "", accept: Collection[str] = ()
) -> None:
    """Raise for doubts about units that are not accepted.

    Raises:
        ValueError: With all their sentences.
    """
    fatal = [d for d in doubts if d.kind in ("units", "flops") and d.kind not in accept]
    if fatal:
        kinds = ", ".join(sorted({repr(d.kind) for d in fatal}))
        lead = f"{where}: " if where else ""
        raise ValueError(
            f"{lead}{'; '.join(d.sentence for d in fatal)}; if it is right as it is, say accept={{{kinds}}}"
        )


def check_size_units(
    columns: Mapping[str, Array], *, rows: Rows | None = None
) -> list[DataWarning]:
    """Return doubts about the units of sizes: columns (n,) by name, NaN where a row has none.

    Args:
        columns: Those of SIZES that are there; `active_params` goes before `params` where FLOPs are checked.
        rows: What the rows are called (n,), where the source has others too; None counts them from 0.
    """
    found = []
    for name in SIZES:
        if name in columns and (doubt := _mixed_units(name, columns[name], rows)) is not None:
            found.append(doubt)
    active = "active_params" if "active_params" in columns else "params"
    if not {active, "tokens", "flops"} <= set(columns):
        return found
    doubt = check_flops(
        columns["flops"], columns[active], columns["tokens"], name=active, rows=rows
    )
    if (
        (doubt is None or doubt.kind != "flops")
        and len(found) == 1
        and found[0].sentence.startswith("flops:")
    ):
        found = []  # a flagship beside its small runs: what it costs is what its size and tokens say
    if found:
        return found  # with sizes of two units the FLOPs would be blamed for it
    return [] if doubt is None else [doubt]


def check_flops(
    flops: Array,
    params: Array,
    tokens: Array,
    *,
    within: tuple[float, float] = FLOPS_PER_PARAM_TOKEN,
    name: str = "params",
    rows: Rows | None = None,
) -> DataWarning | None:
    """Return the doubt that FLOPs and active parameters x tokens are not of one unit, None if they can be."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = flops / (params * tokens)
    low, high = within
    bad = np.flatnonzero((ratio < low) | (ratio > high))
    if not len(bad):
        return None
    left_out = flops / (6 * tokens) - params
    if low <= ratio.min() and _grows_like_width(left_out, params):
        return DataWarning(
            kind="embeddings",
            rows=tuple(_named(rows, bad).tolist()),
            sentence=f"flops: up to {ratio.max():.3g} per active parameter and token, as if {name} left {left_out.min():.2g} to {left_out.max():.2g} out that every token passes (embeddings); Kaplan et al. 2020 fit N without them, Hoffmann et al. 2022 with them",
        )
    typical = float(np.exp(np.median(np.log(ratio[bad]))))
    every = len(bad) > 1 and len(bad) == int(np.isfinite(ratio).sum())
    named = _named(rows, bad)
    where = (
        f"all {len(bad)} rows (row {named[0]}" if every else f"{in_words(named)} (row {named[0]}"
    )
    if typical < low:
        reason = f"{name} may hold total instead of active parameters"
    else:
        reason = f"{name} may leave out parameters that every token passes"
    unit = _power_of_1000(6 / typical)
    if every and unit != 1:
        reason = f"with units={{'flops': {unit:g}}} it would be {typical * unit:.2g}; or {reason}"
    return DataWarning(
        kind="flops",
        rows=tuple(named.tolist()),
        sentence=f"flops: {where} has {ratio[bad[0]]:.3g} FLOPs per active parameter and token, training takes about 6): the unit of flops, {name} or tokens is wrong; {reason}",
    )


def check_runs(
    inputs: Mapping[str, Array],
    y: Array,
    *,
    outcome: str,
    seeds_named: bool = False,
    rows: Rows | None = None,
) -> list[DataWarning]:
    """Return doubts about single runs: those that stand there twice, that diverged, or that are of another kind.

    Args:
        inputs: (n,) by name.
        y: Outcome (n,).
        outcome: Its name.
        seeds_named: Whether the caller said which rows are seeds of one configuration: equal rows are then no mistake.
        rows: What the rows are called (n,); None counts them from 0.
    """
    found: list[DataWarning] = []
    if not len(y) or not inputs:
        return found
    places = equal_rows(*inputs.values())
    same = equal_rows(places.astype(np.float64), y)
    first = np.unique(same, return_index=True)[1][same]
    twice = np.flatnonzero(first != np.arange(len(y)))
    if len(twice) and not seeds_named:
        again = _named(rows, twice)
        one = len(twice) == 1
        found.append(
            DataWarning(
                kind="duplicates",
                rows=tuple(again.tolist()),
                sentence=f"duplicate runs: {in_words(again)} {'repeats' if one else 'repeat'} an earlier row to the last digit (row {again[0]} is row {_named(rows, first[twice[:1]])[0]} again); take {'it' if one else 'them'} out, or name the configurations in clusters= if {'it is a seed' if one else 'they are seeds'}",
            )
        )
    bad = _far_above_smaller(inputs, y)
    if bad:
        found.append(_told(bad, y, rows))
    apart = _unlike_seeds(places, y, outcome, set(bad), rows)
    if apart is not None:
        found.append(apart)
    return found


def check_residual_groups(residuals: Array, *, rows: Rows | None = None) -> DataWarning | None:
    """Return the doubt that relative residuals of a fit are those of two kinds of runs.

    A curve goes through the larger group, and the smaller one lies off; of two groups of one size it goes between:
    then runs of equal sizes tell (`check_runs`), or `check_mixture`.
    """
    n = len(residuals)
    if n < FEWEST_FOR_GROUPS:
        return None
    order = np.argsort(residuals, kind="stable")
    r = residuals[order]
    least = max(4, round(0.2 * n))
    cuts = np.arange(least, n - least + 1)
    sums, squares = np.cumsum(r), np.cumsum(r**2)
    left, right = sums[cuts - 1] / cuts, (sums[-1] - sums[cuts - 1]) / (n - cuts)
    inside = squares[-1] - cuts * left**2 - (n - cuts) * right**2
    best = int(inside.argmin())
    spread = float(np.sqrt(max(inside[best], 0.0) / (n - 2)))
    distance = float(right[best] - left[best])
    if distance < LEAST_APART or distance < APART * spread:
        return None
    return _groups(np.sort(order[cuts[best] :]), n, distance, rows)


def check_mixture(
    residuals: Array,
    jacobian: Array,
    inputs: Mapping[str, Array],
    places: Rows,
    *,
    rows: Rows | None = None,
) -> DataWarning | None:
    """Return the doubt that the curve goes between two kinds of runs at sizes of their own (`analysis/loading/mixture_test.py`).

    Args:
        residuals: Relative, of the fit (n,).
        jacobian: Of the fitted ln(loss) by its coefficients (n, p).
        inputs: Of the law (n,) by name.
        places: A number per run, the same for runs of equal inputs (n,).
        rows: What the rows are called (n,); None counts them from 0.
    """
    from analysis.loading.mixture_test import find_mixture

    counts = np.bincount(places)
    first = np.unique(places, return_index=True)[1]
    sizes = np.log(np.maximum(np.stack([v[first] for v in inputs.values()], axis=1), 1.0))
    found = find_mixture(
        np.bincount(places, weights=residuals) / counts,
        np.stack([np.bincount(places, weights=c) / counts for c in jacobian.T], axis=1),
        sizes,
    )
    if found is None or found.offset < LEAST_APART:
        return None
    return _groups(np.flatnonzero(found.upper[places]), len(residuals), found.offset, rows)


def _groups(upper: Rows, n: int, distance: float, rows: Rows | None) -> DataWarning:
    named = _named(rows, upper)
    return DataWarning(
        kind="architectures",
        rows=tuple(int(i) for i in named),
        sentence=f"the runs fall into two groups {distance:.1%} of the loss apart ({in_words(named)} against the other {n - len(upper)}), as two architectures under one name do; fit each on its own, or both with analysis.laws.shared_coefficients.SharedCoefficients",
    )


def check_architecture_names(architectures: Sequence[Any]) -> DataWarning | None:
    """Return the doubt that runs of several named architectures are about to be fitted as one."""
    names = [str(a) for a in architectures]
    kinds = list(dict.fromkeys(names))
    if len(kinds) < 2:
        return None
    other = names.index(kinds[1])
    shown = ", ".join(kinds[:4]) + (f" and {len(kinds) - 4} more" if len(kinds) > 4 else "")
    return DataWarning(
        kind="architectures",
        rows=(other,),
        sentence=f"the runs are of {len(kinds)} architectures ({shown}; row {other} is the first of {kinds[1]}); fit each on its own, or all with analysis.laws.shared_coefficients.SharedCoefficients",
    )


def _mixed_units(name: str, values: Array, rows: Rows | None) -> DataWarning | None:
    known = np.flatnonzero(np.isfinite(values) & (values > 0))
    if len(known) < 3:
        return None
    order = known[np.argsort(values[known], kind="stable")]
    v = values[order]
    steps = v[1:] / v[:-1]
    at = int(steps.argmax())
    if steps[at] < GAP:
        return None
    few, many = np.sort(order[: at + 1]), np.sort(order[at + 1 :])
    below = len(few) <= len(many)
    odd = few if below else many
    named = _named(rows, odd)
    unit = _power_of_1000(float(np.median(values[many]) / np.median(values[few])))
    return DataWarning(
        kind="units",
        rows=tuple(named.tolist()),
        sentence=f"{name}: mixed units, {in_words(named)} (row {named[0]}: {values[odd[0]]:.4g}) {'lies' if len(odd) == 1 else 'lie'} a factor of {steps[at]:.3g} {'below' if below else 'above'} all others; write every row in one unit (they differ by {unit:g}?)",
    )


def _grows_like_width(left_out: Array, params: Array) -> bool:
    """Whether what FLOPs count beyond `params` is there in every model and grows as its width does, not as its size."""
    sizes = np.unique(params)
    if len(sizes) < 3 or not np.isfinite(left_out).all() or left_out.min() <= 0:
        return False
    each = np.asarray([np.median(left_out[params == size]) for size in sizes])
    steady = bool((each[1:] > 0.9 * each[:-1]).all())
    return steady and float(np.ptp(np.log(left_out))) < 0.75 * float(np.log(sizes[-1] / sizes[0]))


def _power_of_1000(factor: float) -> float:
    return float(1000.0 ** round(np.log(factor) / np.log(1000.0)))


def _named(rows: Rows | None, which: NDArray[np.int64]) -> Rows:
    return which if rows is None else rows[which]


def _far_above_smaller(inputs: Mapping[str, Array], y: Array) -> dict[int, int]:
    """Return the runs whose loss is DIVERGED times that of a run smaller in every way, each with that run."""
    if not set(inputs) <= MORE_IS_BETTER or not 3 <= len(y) <= 3000:
        return {}
    sizes = np.stack(list(inputs.values()))
    if not _falls(sizes, y):
        return {}
    found = {}
    for i in range(len(y)):
        beaten = np.all(sizes <= sizes[:, [i]] * (1 + 1e-9), axis=0) & (y * DIVERGED < y[i])
        if beaten.any():
            found[i] = int(np.flatnonzero(beaten)[y[beaten].argmin()])
    return found


def _told(bad: Mapping[int, int], y: Array, rows: Rows | None) -> DataWarning:
    n = len(bad)
    better = list(bad.values())
    one = max(set(better), key=better.count)
    if n > 2 and n > len(y) // 3 and better.count(one) > n // 2:
        # One run that is far too good makes all larger ones look bad: then it is that run that is odd.
        name = int(_named(rows, np.asarray([one]))[0])
        return DataWarning(
            kind="diverged",
            rows=(name,),
            sentence=f"row {name}: {y[one]:.4g} is far below {n} larger runs; another unit (bits, per byte) or another evaluation? correct the row or take it out",
        )
    named = _named(rows, np.asarray(list(bad)))
    i, j = next(iter(bad.items()))
    more = f" (likewise {in_words(named[1:])})" if n > 1 else ""
    return DataWarning(
        kind="diverged",
        rows=tuple(named.tolist()),
        sentence=f"row {named[0]}: {y[i]:.4g} is far above the {y[j]:.4g} of row {_named(rows, np.asarray([j]))[0]}, a run that is smaller in every way{more}; if it diverged, or is in another unit, take it out by its row",
    )


def _falls(sizes: Array, y: Array) -> bool:
    with np.errstate(divide="ignore"):
        log = np.log(np.maximum(sizes, 1.0)).sum(axis=0)
    if np.ptp(log) == 0 or np.ptp(y) == 0:
        return False
    # Ranks: one diverged run must not turn the sign.
    a, b = np.argsort(np.argsort(log)), np.argsort(np.argsort(y))
    return bool(np.corrcoef(a, b)[0, 1] < 0)


def _unlike_seeds(
    places: NDArray[np.int64], y: Array, outcome: str, known: set[int], rows: Rows | None
) -> DataWarning | None:
    """Runs of equal sizes further apart than seeds are."""
    order = np.lexsort((y, places))
    pairs: list[tuple[float, int, int]] = []
    for group in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
        usable = np.asarray([i for i in group if int(i) not in known])
        if len(usable) < 2:
            continue
        low, high = int(usable[0]), int(usable[-1])
        pairs.append((float(y[high] / y[low]) - 1, low, high))
    if not pairs:
        return None
    usual = float(np.median([p[0] for p in pairs])) if len(pairs) > 2 else 0.0
    wide = [p for p in pairs if p[0] > SEED_NOISE and (usual > SEED_NOISE or p[0] > 5 * usual)]
    if not wide:
        return None
    ratio, low, high = max(wide)
    named = _named(rows, np.asarray([low, high]))
    both = np.asarray(sorted({i for _, *pair in wide for i in pair}))
    return DataWarning(
        kind="architectures",
        rows=tuple(_named(rows, both).tolist()),
        sentence=f"rows {named[0]} and {named[1]} have equal sizes and a {outcome} of {y[low]:.4g} and {y[high]:.4g}, {ratio:.0%} apart: two architectures or two recipes under one name, or a run that diverged; split them, or take the wrong one out",
    )
