"""Validation of a table of runs: warnings about numbers that cannot all be right.

Each warning is one sentence with the rows and what to do, and none is acted on in silence.
`analysis.load` and the fits refuse a table whose units cannot be right (a number would come out,
and mean nothing); of the rest they fit all rows and repeat the sentence in the fit's own.
`accept={"units"}` says that somebody looked and that it is right.

    units          neighbouring sizes of one column lie a factor of GAP apart: millions beside ones;
                   parameters or tokens below 1
    small          parameters or tokens that are hardly counts, as 70 and 2.8: said, not refused
    flops          FLOPs per active parameter and token that no training costs
    embeddings     FLOPs of small models above that by what embeddings cost: said, not refused
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
WarningKind = Literal[
    "units", "small", "flops", "embeddings", "duplicates", "diverged", "architectures"
]

ALL_KINDS: tuple[str, ...] = get_args(WarningKind)

GAP = 1000.0
"""Factor between neighbouring sizes from which on units look mixed: the step from k to M to B."""

FLOPS_PER_PARAM_TOKEN = (1.0, 60.0)
"""What training can cost: 2 is a forward pass alone, 6 the usual count; small models with long
sequences or large vocabularies, counted without embeddings, come to some tens."""

DIVERGED = 1.5
"""Factor above the loss of a run with fewer parameters and fewer tokens."""

SEED_NOISE = 0.05
"""Relative difference of loss that no seed makes. Runs of equal sizes are not of one kind if they
are further apart, and five times further than most pairs of equal sizes (unless those are no seeds
either)."""

GROUP_DISTANCE = 6.5
"""Distance of two groups of residuals, in units of the spread inside them. Of 20 residuals of one
kind it is above 5.1 (normal) or 6.0 (uniform) once in 1,000 times; 30 runs and 10 others 3 % below
them are 12 apart."""

SMALLEST_OFFSET = 0.01
"""Relative distance of two groups below which nobody would fit them separately."""

FEWEST_FOR_GROUPS = 20
"""Runs below which residuals fall into groups by chance."""

MORE_IS_BETTER = frozenset({"params", "tokens", "n_active", "n_memory", "experts", "compute"})
SIZES = ("params", "tokens", "flops", "n_active", "active_params", "total_params")


@dataclass(frozen=True, kw_only=True)
class DataWarning:
    """One thing that is odd about a table of runs."""

    kind: WarningKind
    column: str
    """The column it is about."""
    rows: tuple[int, ...]
    """From 0; empty if it is about the whole column."""
    sentence: str


def refuse_bad_units(
    warnings: Sequence[DataWarning], *, where: str = "", accept: Collection[str] = ()
) -> None:
    """Raise for warnings about units that are not accepted.

    Raises:
        ValueError: With all their sentences.
    """
    fatal = [w for w in warnings if w.kind in ("units", "flops") and w.kind not in accept]
    if fatal:
        kinds = ", ".join(sorted({repr(w.kind) for w in fatal}))
        lead = f"{where}: " if where else ""
        raise ValueError(
            f"{lead}{'; '.join(w.sentence for w in fatal)}; "
            f"if it is right as it is, say accept={{{kinds}}}"
        )


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
    active = "active_params" if "active_params" in columns else "params"
    if not {active, "tokens", "flops"} <= set(columns):
        return found
    cost = check_flops(columns["flops"], columns[active], columns["tokens"], name=active, rows=rows)
    if (cost is None or cost.kind != "flops") and [w.column for w in found] == ["flops"]:
        # A flagship beside its small runs: what it costs is what its size and tokens say.
        found = []
    if found:
        return found  # with sizes of two units the FLOPs would be blamed for it
    return [] if cost is None else [cost]


def check_flops(
    flops: Array,
    params: Array,
    tokens: Array,
    *,
    within: tuple[float, float] = FLOPS_PER_PARAM_TOKEN,
    name: str = "params",
    rows: Rows | None = None,
) -> DataWarning | None:
    """Return a warning if FLOPs cannot be those of active parameters and tokens, else None.

    Args:
        flops: (n,), as the other two.
        params: Active parameters.
        tokens: Trained on.
        within: FLOPs per active parameter and token that can be.
        name: Column of the parameters.
        rows: What the rows are called (n,); None counts from 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = flops / (params * tokens)
    low, high = within
    bad = np.flatnonzero((ratio < low) | (ratio > high))
    if not len(bad):
        return None
    named = _named(rows, bad)
    left_out = flops / (6 * tokens) - params
    if low <= ratio.min() and _grows_like_width(left_out, params):
        return DataWarning(
            kind="embeddings",
            column="flops",
            rows=tuple(named.tolist()),
            sentence=f"flops: up to {ratio.max():.3g} per active parameter and token, as if {name} "
            f"left {left_out.min():.2g} to {left_out.max():.2g} out that every token passes "
            "(embeddings); Kaplan et al. 2020 fit N without them, Hoffmann et al. 2022 with them",
        )
    typical = float(np.exp(np.median(np.log(ratio[bad]))))
    every = len(bad) > 1 and len(bad) == int(np.isfinite(ratio).sum())
    which = f"all {len(bad)} rows" if every else in_words(named)
    reason = f"{name} may leave out parameters that every token passes"
    if typical < low:
        reason = f"{name} may hold total instead of active parameters"
    unit = _power_of_1000(6 / typical)
    if every and unit != 1:
        reason = f"with units={{'flops': {unit:g}}} it would be {typical * unit:.2g}; or {reason}"
    return DataWarning(
        kind="flops",
        column="flops",
        rows=tuple(named.tolist()),
        sentence=f"flops: {which} (row {named[0]} has {ratio[bad[0]]:.3g} FLOPs per active "
        "parameter and token, training takes about 6): the unit of flops, "
        f"{name} or tokens is wrong; {reason}",
    )


def check_runs(
    inputs: Mapping[str, Array],
    y: Array,
    *,
    outcome: str,
    seeds_named: bool = False,
    configurations: NDArray[np.int64] | None = None,
    rows: Rows | None = None,
) -> list[DataWarning]:
    """Return warnings about single runs: repeated ones, diverged ones, and those of another kind.

    Args:
        inputs: (n,) by name.
        y: Outcome (n,).
        outcome: Its name.
        seeds_named: Whether the caller said which rows are seeds of one configuration: equal rows
            are then no mistake.
        configurations: Which configuration each run is a seed of, where the caller knows (n,). Its
            seeds are of one kind, however far apart; only configurations of equal sizes may be of
            two.
        rows: What the rows are called (n,); None counts from 0.
    """
    if not len(y) or not inputs:
        return []
    places = equal_rows(*inputs.values())
    diverged = _far_above_smaller(inputs, y)
    found = [
        None if seeds_named or configurations is not None else _repeated(places, y, outcome, rows),
        _diverged(diverged, y, outcome, rows) if diverged else None,
        _unlike_runs(places, y, outcome, set(diverged), configurations, rows),
    ]
    return [w for w in found if w is not None]


def check_residual_groups(residuals: Array, *, rows: Rows | None = None) -> DataWarning | None:
    """Return a warning if relative residuals of a fit are those of two kinds of runs, else None.

    A curve goes through the larger group, and the smaller one lies off. Of two groups of one size
    it goes between: then runs of equal sizes tell (`check_runs`), or `check_mixture`.
    """
    n = len(residuals)
    if n < FEWEST_FOR_GROUPS:
        return None
    order = np.argsort(residuals, kind="stable")
    r = residuals[order]
    least = max(4, round(0.2 * n))
    # The squares inside two groups, for every cut of the sorted residuals at once.
    cuts = np.arange(least, n - least + 1)
    sums, squares = np.cumsum(r), np.cumsum(r**2)
    left, right = sums[cuts - 1] / cuts, (sums[-1] - sums[cuts - 1]) / (n - cuts)
    inside = squares[-1] - cuts * left**2 - (n - cuts) * right**2
    best = int(inside.argmin())
    spread = float(np.sqrt(max(inside[best], 0.0) / (n - 2)))
    distance = float(right[best] - left[best])
    if distance < SMALLEST_OFFSET or distance < GROUP_DISTANCE * spread:
        return None
    return _two_groups(np.sort(order[cuts[best] :]), n, distance, rows)


def check_mixture(
    residuals: Array,
    jacobian: Array,
    inputs: Mapping[str, Array],
    places: Rows,
    *,
    rows: Rows | None = None,
) -> DataWarning | None:
    """Return a warning if the curve goes between two kinds of runs at different sizes, else None.

    Args:
        residuals: Relative, of the fit (n,).
        jacobian: Of the fitted ln(loss) by its coefficients (n, p).
        inputs: Of the law (n,) by name.
        places: A number per run, the same for runs of equal inputs (n,).
        rows: What the rows are called (n,); None counts from 0.
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
    if found is None or found.offset < SMALLEST_OFFSET:
        return None
    return _two_groups(np.flatnonzero(found.upper[places]), len(residuals), found.offset, rows)


def check_architecture_names(
    architectures: Sequence[Any],
    told_by: Sequence[NDArray[Any]] = (),
    *,
    has_experts: bool = False,
) -> DataWarning | None:
    """Return a warning if runs of several named architectures would be fitted as one, else None.

    Args:
        architectures: Names (n,).
        told_by: Inputs of the law that are no sizes, as experts (n,). If each of their values is of
            one architecture, the law tells architectures apart.
        has_experts: Whether the table says how many experts its runs have.
    """
    names = [str(a) for a in architectures]
    kinds = list(dict.fromkeys(names))
    marks = list(zip(*(values.tolist() for values in told_by), strict=True)) or [()] * len(names)
    if len(kinds) < 2 or len(set(marks)) == len(set(zip(marks, names, strict=True))):
        return None
    together = (
        "a law of experts, analysis.laws.law_named('routed_joint')"
        if has_experts
        else "analysis.SharedCoefficients"
    )
    other = names.index(kinds[1])
    shown = ", ".join(kinds[:4]) + (f" and {len(kinds) - 4} more" if len(kinds) > 4 else "")
    return DataWarning(
        kind="architectures",
        column="architecture",
        rows=(other,),
        sentence=f"the runs are of {len(kinds)} architectures ({shown}; "
        f"row {other} is the first of {kinds[1]}); fit each on its own, or all with {together}",
    )


def _two_groups(upper: Rows, n: int, distance: float, rows: Rows | None) -> DataWarning:
    named = _named(rows, upper)
    return DataWarning(
        kind="architectures",
        column="loss",
        rows=tuple(named.tolist()),
        sentence=f"the runs fall into two groups {distance:.1%} of the loss apart "
        f"({in_words(named)} against the other {n - len(upper)}), as two architectures under one "
        "name do; fit each on its own, or both with analysis.SharedCoefficients",
    )


def _check_one_unit(name: str, values: Array, rows: Rows | None) -> DataWarning | None:
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
    named = _named(rows, odd)
    unit = _power_of_1000(float(np.median(values[large]) / np.median(values[small])))
    return DataWarning(
        kind="units",
        column=name,
        rows=tuple(named.tolist()),
        sentence=f"{name}: mixed units, {in_words(named)} (row {named[0]}: {values[odd[0]]:.4g}) "
        f"{'lies' if len(odd) == 1 else 'lie'} a factor of {steps[at]:.3g} "
        f"{'below' if below else 'above'} all others; "
        f"write every row in one unit (they differ by {unit:g}?)",
    )


def _grows_like_width(left_out: Array, params: Array) -> bool:
    """Return whether every model has what FLOPs count beyond `params`, growing with its width.

    Embeddings grow as the width does, more slowly than the size.
    """
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


def _repeated(places: Rows, y: Array, outcome: str, rows: Rows | None) -> DataWarning | None:
    """Return a warning about runs that are equal to an earlier one."""
    same = equal_rows(places.astype(np.float64), y)
    first = np.unique(same, return_index=True)[1][same]
    twice = np.flatnonzero(first != np.arange(len(y)))
    if not len(twice):
        return None
    again, earlier = _named(rows, twice), _named(rows, first[twice[:1]])
    one = len(twice) == 1
    return DataWarning(
        kind="duplicates",
        column=outcome,
        rows=tuple(again.tolist()),
        sentence=f"duplicate runs: {in_words(again)} {'repeats' if one else 'repeat'} an earlier "
        f"row to the last digit (row {again[0]} is row {earlier[0]} again); "
        f"take {'it' if one else 'them'} out, or name the configurations in clusters= "
        f"if {'it is a seed' if one else 'they are seeds'}",
    )


def _far_above_smaller(inputs: Mapping[str, Array], y: Array) -> dict[int, int]:
    """Return the runs far above one that is smaller in every way, each with that run."""
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


def _diverged(bad: Mapping[int, int], y: Array, outcome: str, rows: Rows | None) -> DataWarning:
    """Return a warning about runs (keys) far above a smaller one (values)."""
    n = len(bad)
    better = list(bad.values())
    one = max(set(better), key=better.count)
    if n > 2 and n > len(y) // 3 and better.count(one) > n // 2:
        # One run that is far too good makes all larger ones look bad: then that run is odd.
        name = int(_named(rows, np.asarray([one]))[0])
        return DataWarning(
            kind="diverged",
            column=outcome,
            rows=(name,),
            sentence=f"row {name}: {y[one]:.4g} is far below {n} larger runs; another unit "
            "(bits, per byte) or another evaluation? correct the row or take it out",
        )
    named = _named(rows, np.asarray(list(bad)))
    i, j = next(iter(bad.items()))
    more = f" (likewise {in_words(named[1:])})" if n > 1 else ""
    return DataWarning(
        kind="diverged",
        column=outcome,
        rows=tuple(named.tolist()),
        sentence=f"row {named[0]}: {y[i]:.4g} is far above the {y[j]:.4g} of row "
        f"{_named(rows, np.asarray([j]))[0]}, a run that is smaller in every way{more}; "
        "if it diverged, or is in another unit, take it out by its row",
    )


def _falls(sizes: Array, y: Array) -> bool:
    with np.errstate(divide="ignore"):
        log = np.log(np.maximum(sizes, 1.0)).sum(axis=0)
    if np.ptp(log) == 0 or np.ptp(y) == 0:
        return False
    # Ranks: one diverged run must not turn the sign.
    a, b = np.argsort(np.argsort(log)), np.argsort(np.argsort(y))
    return bool(np.corrcoef(a, b)[0, 1] < 0)


def _unlike_runs(
    places: NDArray[np.int64],
    y: Array,
    outcome: str,
    known: set[int],
    configurations: NDArray[np.int64] | None,
    rows: Rows | None,
) -> DataWarning | None:
    """Return a warning about runs of equal sizes that are further apart than seeds are.

    Where `configurations` are known, of these, by the means of their seeds.

    Args:
        places: A number per run, the same for runs of equal sizes (n,).
        y: Outcome (n,).
        outcome: Its name.
        known: Runs that diverged.
        configurations: Of which each run is a seed (n,).
        rows: What the rows are called (n,).
    """
    if configurations is not None:
        usable = np.asarray([i for i in range(len(y)) if i not in known], dtype=np.int64)
        pairs_of = np.stack([places[usable], configurations[usable]])
        _, first, of_run = np.unique(pairs_of, axis=1, return_index=True, return_inverse=True)
        of_run = of_run.ravel()
        means = np.bincount(of_run, weights=y[usable]) / np.bincount(of_run)
        firsts = usable[first]
        return _unlike_runs(
            places[firsts], means, f"mean {outcome}", set(), None, _named(rows, firsts)
        )
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
        column=outcome,
        rows=tuple(_named(rows, both).tolist()),
        sentence=f"rows {named[0]} and {named[1]} have equal sizes, and {outcome} is {y[low]:.4g} "
        f"and {y[high]:.4g}, {ratio:.0%} apart: two architectures or two recipes under one name, "
        "or a run that diverged; split them, or take the wrong one out",
    )
