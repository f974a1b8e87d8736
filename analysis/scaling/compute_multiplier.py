"""Compute multipliers: the relative cost of a reference at equal loss.

At amount x of a measure (FLOPs, seconds, bytes) the candidate has its best loss L(x). The
reference reaches L at x':

    amount multiplier    x'(L) / x              2 means half the FLOPs, seconds or bytes do
    size multiplier      N_ref(x') / N_ref(x)   the reference's size at that loss over its size at x

Both are functions of x, not constants of an architecture: where only one architecture improves a
term of the law, they grow or fall with scale (Clark et al. 2022: expert models lose their
advantage at some size). So they come as curves with bands, and each point says whether it rests on
runs. Where the reference never gets there, there is no number but a sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.result import LawFit
from analysis.fitting.verdict import FitVerdict, worst
from analysis.scaling.architecture_laws import ArchitectureLaws, Curve
from analysis.scaling.cost_measures import CostMeasure, cost_measure
from analysis.scaling.frontier import Allocation, allocate, band, beyond, positive

Array = NDArray[np.float64]

SEARCHED = 1e3
"""Factor on the amounts of its own runs up to which the reference is searched for a loss.

Beyond it a loss counts as out of reach."""

N_REFERENCE = 192
"""Amounts at which the reference's best loss is worked out.

Between them ln x is interpolated in ln(L - floor), in which a power law is a straight line."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Multipliers:
    """A candidate against a reference, along amounts of one measure (m,)."""

    candidate: str
    reference: str
    measure: CostMeasure
    outcome: str
    tokens: Array
    """(m,) that both are trained on; NaN where each spends its budget as is best for it."""
    amount: Array
    """x: what the candidate takes."""
    loss: Array
    """Its best loss there."""
    multiplier: Array
    """x'(L) / x; NaN where `refusals` has a sentence."""
    low: Array
    high: Array
    """Band; inf where more draws than it leaves out never get there, NaN without draws."""
    size: Array
    """N_ref(x') / N_ref(x)."""
    size_low: Array
    size_high: Array
    share_reached: Array
    """Of the draws in which the reference reaches the candidate's loss; NaN without draws."""
    candidate_beyond: Array
    """Factor by which the candidate's point lies outside its runs; 1 inside."""
    reference_beyond: Array
    """The same of the reference's points, at x' and for the size multiplier at x.

    Infinite where it has no x'."""
    refusals: Mapping[int, str]
    level: float
    fits: Mapping[str, LawFit]
    """Of both laws, by architecture."""

    def __repr__(self) -> str:
        return (
            f"<Multipliers of {self.candidate} against {self.reference} at {len(self.amount)} "
            f"amounts of {self.measure.name}; see sentence(i), to_frame()>"
        )

    @cached_property
    def verdict(self) -> FitVerdict:
        """What the laws are worth: the worse of the two."""
        return worst({name: fit.verdict for name, fit in self.fits.items()})

    @property
    def extrapolated(self) -> NDArray[np.bool_]:
        """Where a point of either architecture lies outside its own runs."""
        return np.fmax(self.candidate_beyond, self.reference_beyond) > 1 + 1e-9

    def sentence(self, i: int) -> str:
        """Return point i in words; of laws that are not credible, why there is no answer."""
        tokens = "" if np.isnan(self.tokens[i]) else f" and {self.tokens[i]:.3g} tokens"
        where = f"at {self.amount[i]:.3g} {self.measure.label}{tokens}"
        if i in self.refusals:
            return f"{where}: {self.refusals[i]}"
        if not self.verdict.is_credible:
            return f"{where}: no multiplier is to be relied on, {self.verdict}"
        text = (
            f"{where} {self.candidate} has {self.outcome} {self.loss[i]:.4g};"
            f" {self.reference} needs {self.multiplier[i]:.3g}"
            f"{_ends(self.low[i], self.high[i])} times as much"
        )
        if np.isfinite(self.size[i]) and not self.measure.name.endswith("params"):
            band_text = _ends(self.size_low[i], self.size_high[i])
            text += f", at {self.size[i]:.3g}{band_text} times the size"
        outside = [
            f"{factor[i]:.3g} times outside the runs of {name}"
            for name, factor in (
                (self.candidate, self.candidate_beyond),
                (self.reference, self.reference_beyond),
            )
            if factor[i] > 1 + 1e-9
        ]
        note = f"extrapolated: {' and '.join(outside)}" if outside else "within the runs of both"
        return f"{text} ({note}; laws {self.verdict.status})"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per point."""
        return pd.DataFrame(
            {
                "candidate": self.candidate,
                "reference": self.reference,
                self.measure.name: self.amount,
                "tokens": self.tokens,
                "loss": self.loss,
                "multiplier": self.multiplier,
                "low": self.low,
                "high": self.high,
                "size_multiplier": self.size,
                "size_low": self.size_low,
                "size_high": self.size_high,
                "share_reached": self.share_reached,
                "extrapolated": self.extrapolated,
                "sentence": [self.sentence(i) for i in range(len(self.amount))],
            }
        )


def _ends(low: float, high: float) -> str:
    if np.isnan(low):
        return ""
    return f" [{low:.3g}, {'∞' if np.isinf(high) else format(high, '.3g')}]"


def multipliers(
    laws: ArchitectureLaws,
    candidate: str,
    *,
    reference: str = "dense",
    measure: str = "flops",
    amounts: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
) -> Multipliers:
    """Return the multipliers of a candidate over a reference.

    Args:
        laws: Of `fit_families`.
        candidate: Architecture.
        reference: Architecture that is asked to reach the candidate's loss.
        measure: What is held equal, of `analysis.scaling.cost_measures.COST_MEASURES`.
        amounts: x (m,); None takes 40 from the candidate's smallest run to ten times its largest.
        tokens: That both are trained on, one number or (m,); None lets each spend a training
            budget as is best for it. Bytes and parameters say nothing of training, so they need
            it, unless the law has no tokens.

    Raises:
        ValueError: If an architecture is missing or has no such measure, tokens are missing, or a
            number is not positive.

    Example:
        >>> import numpy as np
        >>> from analysis import fit_families
        >>> N, D = (v.ravel() for v in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1e9, 4e9, 1.6e10]))
        >>> dense = 1.8 + 400 * N**-0.35 + 2000 * D**-0.37
        >>> memory = 1.8 + 400 * (2 * N) ** -0.35 + 2000 * D**-0.37  # as a dense one twice as large
        >>> runs = {"params": [*N, *N], "tokens": [*D, *D], "loss": [*dense, *memory]}
        >>> runs["architecture"] = ["dense"] * 12 + ["memory"] * 12
        >>> laws = fit_families(runs, n_draws=0)
        >>> found = multipliers(laws, "memory", measure="active_params", amounts=3e7, tokens=4e9)
        >>> found.multiplier.round(3).tolist()
        [2.0]
    """
    # Refused as a whole, where otherwise every amount would be refused for the same reason.
    held = cost_measure(measure)
    laws.require_cost(held, (candidate, reference))
    curves = laws.curves()
    x, D = _places(curves[candidate], held, amounts, tokens)
    # The laws themselves decide where there is a number: draws that reach further give no band to
    # an amount without one.
    point = _between(curves[candidate], curves[reference], held, x, D)
    refused = np.isnan(point.multiplier[0])
    return Multipliers(
        candidate=candidate,
        reference=reference,
        measure=held,
        outcome=laws.outcome,
        tokens=D,
        amount=x,
        loss=point.at_x.loss[0],
        multiplier=point.multiplier[0],
        size=point.size[0],
        **_bands(laws, candidate, reference, held, x, D, refused),
        candidate_beyond=beyond(curves[candidate], held, point.at_x),
        # The size compares with the reference at the same amount, too.
        reference_beyond=np.where(
            refused,
            np.inf,
            np.fmax(
                beyond(curves[reference], held, point.at_loss),
                beyond(curves[reference], held, point.reference_at_x),
            ),
        ),
        refusals={
            int(i): _refusal(laws, candidate, reference, held, point, int(i))
            for i in np.flatnonzero(refused)
        },
        level=laws.level,
        fits={name: laws.named(name).fit for name in (candidate, reference)},
    )


def _bands(
    laws: ArchitectureLaws,
    candidate: str,
    reference: str,
    measure: CostMeasure,
    x: Array,
    D: Array,
    refused: NDArray[np.bool_],
) -> dict[str, Array]:
    """Return the ends of the bands (m,) of amounts and sizes, and the share of draws that reach."""
    # Without draws, bands of nothing: NaN.
    drawn_amount = drawn_size = np.empty((0, len(x)))
    reached = np.full(len(x), np.nan)
    if laws.n_draws:
        drawn = laws.drawn()
        draws = _between(drawn[candidate], drawn[reference], measure, x, D)
        drawn_amount, drawn_size = draws.multiplier, draws.size
        reached = np.isfinite(draws.multiplier).mean(axis=0)
    names = ("low", "high", "size_low", "size_high")
    ends = [*band(drawn_amount, laws.drawn_level), *band(drawn_size, laws.drawn_level)]
    found = {n: np.where(refused, np.nan, e) for n, e in zip(names, ends, strict=True)}
    return found | {"share_reached": reached}


def _places(
    candidate: Curve, measure: CostMeasure, amounts: ArrayLike | None, tokens: ArrayLike | None
) -> tuple[Array, Array]:
    """Return amounts and tokens (m,), checked; tokens are NaN where they are free."""
    low, high = candidate.domain.amounts[measure.name]
    x = np.geomspace(low, 10 * high, 40)
    if amounts is not None:
        x = np.atleast_1d(np.asarray(amounts, dtype=np.float64))
    if tokens is None:
        return positive("amounts", x), np.full(len(x), np.nan)
    if not candidate.has_tokens:
        raise ValueError(
            f"tokens: the law {candidate.law.name} does not know them; leave tokens out"
        )
    x, D = (v.copy() for v in np.broadcast_arrays(x, np.asarray(tokens, dtype=np.float64)))
    return positive("amounts", x), positive("tokens", D)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Between:
    """Both multipliers (k, m) under k sets of coefficients; NaN where the loss is out of reach."""

    multiplier: Array
    size: Array
    at_x: Allocation
    reference_at_x: Allocation
    at_loss: Allocation
    """The reference at the first set's x' (amounts NaN where there is none)."""
    lowest: Array
    """Lowest and highest loss (m,) of the reference in the search, first set."""
    highest: Array


def multipliers_of(
    candidate: Curve, reference: Curve, measure: CostMeasure, x: Array, tokens: float | None
) -> Array:
    """Return the amount multiplier (k, m); NaN where the reference does not get there."""
    D = np.full(len(x), np.nan if tokens is None else tokens)
    return _between(candidate, reference, measure, x, D).multiplier


def _between(
    candidate: Curve, reference: Curve, measure: CostMeasure, x: Array, D: Array
) -> _Between:
    low, high = reference.domain.amounts[measure.name]
    grid = np.geomspace(min(low, x.min()) / SEARCHED, max(high, x.max()) * SEARCHED, N_REFERENCE)
    multiplier, size = np.full((2, candidate.k, len(x)), np.nan)
    lowest, highest = np.full((2, len(x)), np.nan)
    rows_of, mine_of, here_of, there_of = [], [], [], []
    for value in np.unique(D):  # NaN is one value
        rows = np.flatnonzero(np.isnan(D) if np.isnan(value) else value == D)
        tokens = None if np.isnan(value) else float(value)
        mine = allocate(candidate, measure, x[rows], tokens)
        here = allocate(reference, measure, x[rows], tokens)
        theirs = allocate(reference, measure, grid, tokens)
        for i in range(candidate.k):
            amount, params = _reaching(grid, theirs.loss[i], theirs.params[i], mine.loss[i])
            multiplier[i, rows], size[i, rows] = amount / x[rows], params / here.params[i]
        reached = np.nan_to_num(multiplier[0, rows], nan=1.0) * x[rows]
        rows_of.append(rows)
        mine_of.append(mine)
        here_of.append(here)
        there_of.append(allocate(reference.row(0), measure, reached, tokens))
        known = theirs.loss[0][np.isfinite(theirs.loss[0])]
        if len(known):
            lowest[rows], highest[rows] = known.min(), known.max()
    order = np.argsort(np.concatenate(rows_of))
    return _Between(
        multiplier=multiplier,
        size=size,
        at_x=_joined(mine_of, order),
        reference_at_x=_joined(here_of, order),
        at_loss=_joined(there_of, order),
        lowest=lowest,
        highest=highest,
    )


def _reaching(amounts: Array, losses: Array, params: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the amount and the size (m,) at which a reference has each wanted loss.

    They are NaN where it has none.

    Args:
        amounts: (g,), increasing.
        losses: The reference's best loss for each (g,).
        params: The size that has it (g,).
        wanted: Losses (m,).
    """
    # Losses fall with the amount; a flat end, where only the floor is left, has no inverse.
    before = np.minimum.accumulate(np.where(np.isfinite(losses), losses, np.inf))
    falling = np.isfinite(losses) & (losses < np.append(np.inf, before[:-1]) - 1e-12)
    result = np.full((2, len(wanted)), np.nan)
    if falling.sum() < 2:
        return result[0], result[1]
    y = losses[falling][::-1]
    inside = np.isfinite(wanted) & (wanted >= y[0]) & (wanted <= y[-1])
    floor = y[0] - (y[1] - y[0])
    at = np.log(wanted[inside] - floor)
    for row, values in zip(result, (amounts, params), strict=True):
        row[inside] = np.exp(np.interp(at, np.log(y - floor), np.log(values[falling][::-1])))
    return result[0], result[1]


def _joined(parts: list[Allocation], order: NDArray[np.intp]) -> Allocation:
    names = ("params", "memory", "tokens", "loss", "at_edge")
    return Allocation(
        amount=np.concatenate([p.amount for p in parts])[order],
        **{n: np.concatenate([getattr(p, n) for p in parts], axis=1)[:, order] for n in names},
    )


def _refusal(
    laws: ArchitectureLaws,
    candidate: str,
    reference: str,
    measure: CostMeasure,
    point: _Between,
    i: int,
) -> str:
    """Return why there is no multiplier at point i, and what to do."""
    loss, lowest = point.at_x.loss[0, i], point.lowest[i]
    if not np.isfinite(loss):
        at_edge = point.at_x.at_edge[0, i]
        why = "its law has no best size there" if at_edge else "no size of it takes that much"
        return (
            f"no multiplier, because of {candidate}: {why};"
            " give amounts near its runs, or train other sizes"
        )
    if not np.isfinite(lowest):
        return (
            f"no multiplier, because the law of {reference} has no best size;"
            " train it at several sizes for equal budgets"
        )
    has = f"no multiplier: {candidate} has {laws.outcome} {loss:.4g}"
    if loss < lowest:
        limit = laws.named(reference).curve.domain.amounts[measure.name][1]
        return (
            f"{has}, which no {measure.label} of {reference} reach (it stays above {lowest:.4g}"
            f" up to {SEARCHED:g} times its largest run, {limit:.3g})"
        )
    return (
        f"{has}, worse than {reference} at any size searched ({point.highest[i]:.4g});"
        " give larger amounts"
    )
