"""Compute-optimal frontier: best architecture, size, memory, tokens per budget.

For each architecture the loss is minimised at fixed cost: its own FLOPs or seconds per token times
tokens, not 6 N D. Which architecture wins is as uncertain as the laws are: `share` says in how many
of the draws each does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.result import LawFit
from analysis.fitting.verdict import FitVerdict, worst
from analysis.formatting import count
from analysis.scaling.architecture_laws import ArchitectureLaws, Curve
from analysis.scaling.cost_measures import CostMeasure, cost_measure

Array = NDArray[np.float64]

REACH = 1e3
"""How many times smaller and larger than the runs a model may be while the best one is searched."""

LEAST_SHARE = 0.01
"""Of the draws: the least that sentences, tables and figures say of draws without a best size."""

PER_E_FOLD = 8
"""Sizes that are tried per e-fold; a parabola through the best and its neighbours does the rest."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Allocation:
    """The best model of an architecture at given amounts, under each of k sets of coefficients.

    All arrays but the first are (k, m).
    """

    amount: Array
    """(m,)"""
    params: Array
    memory: Array
    tokens: Array
    """NaN where the law has none."""
    loss: Array
    """NaN where there is no best size (`at_edge`) or no size costs so little or so much."""
    at_edge: NDArray[np.bool_]
    """Where the smallest or largest size of the search is best: the law has no optimum there."""


def allocate(
    curve: Curve, measure: CostMeasure, amount: Array, tokens: float | None = None
) -> Allocation:
    """Return the best size and memory for each amount (m,), and tokens where they are free.

    Args:
        curve: One architecture.
        measure: What is spent.
        amount: How much.
        tokens: Trained on, the same for all; None spends the rest of a training budget on tokens.

    Raises:
        ValueError: If the tokens must be known and are not.
    """
    amount = np.asarray(amount, dtype=np.float64)
    if curve.has_tokens and tokens is None and not measure.with_tokens:
        raise ValueError(
            f"tokens: {measure.label} do not depend on them,"
            " so say how many both are trained on, as tokens=1e9"
        )
    free = curve.has_tokens and measure.with_tokens and tokens is None
    if free and curve.k > 1 and not curve.one_price(measure):
        each = [allocate(curve.row(i), measure, amount, tokens) for i in range(curve.k)]
        return Allocation(
            amount=amount, **{n: np.concatenate([getattr(e, n) for e in each]) for n in _PARTS}
        )
    found = [_along(curve, measure, amount, tokens, ratio) for ratio in curve.domain.ratios]
    losses = np.stack([np.where(np.isfinite(f.loss), f.loss, np.inf) for f in found])
    best = losses.argmin(axis=0)[None]
    return Allocation(
        amount=amount,
        **{
            n: np.take_along_axis(np.stack([getattr(f, n) for f in found]), best, axis=0)[0]
            for n in _PARTS
        },
    )


_PARTS = ("params", "memory", "tokens", "loss", "at_edge")


def _along(
    curve: Curve, measure: CostMeasure, amount: Array, tokens: float | None, ratio: float
) -> Allocation:
    """Return the best size at `ratio` memory per parameter.

    Where tokens are free, at one price for all sets of coefficients.
    """
    low, high = curve.domain.params
    n = int(PER_E_FOLD * np.log(high / low * REACH**2)) + 1
    log_N = np.linspace(np.log(low / REACH), np.log(high * REACH), n)
    if curve.has_tokens and measure.with_tokens and tokens is None:

        def price(at: Array) -> Array:
            N = np.exp(at)
            return curve.price(measure, N, curve.memory_at(N, ratio))

        return _best_on_grid(curve, price, amount, ratio, log_N)
    return _at_fixed_tokens(curve, measure, amount, tokens, ratio, log_N)


def _at_fixed_tokens(
    curve: Curve,
    measure: CostMeasure,
    amount: Array,
    tokens: float | None,
    ratio: float,
    log_N: Array,
) -> Allocation:
    """Return the size that costs each amount: costs grow with N, so there is one."""
    each = amount / tokens if measure.with_tokens and tokens is not None else amount
    sets = 1 if curve.one_price(measure) else curve.k
    shape = (curve.k, len(amount))

    def price(at: Array) -> Array:
        N = np.exp(at)  # (sets, ...)
        return curve.prices(measure, N, curve.memory_at(N, ratio))

    log_price = np.log(np.maximum.accumulate(price(np.tile(log_N, (sets, 1))), axis=1))
    wanted = np.log(each)
    at = np.stack([np.interp(wanted, row, log_N, left=np.nan, right=np.nan) for row in log_price])
    for _ in range(3):  # Newton in ln: the cost is nearly a straight line there
        slope = (np.log(price(at + 1e-4)) - np.log(price(at - 1e-4))) / 2e-4
        at = at + (wanted - np.log(price(at))) / np.maximum(slope, 1e-3)
    N = np.exp(at)
    M = curve.memory_at(N, ratio)
    D = np.full(len(amount), np.nan if tokens is None else tokens)
    loss = np.full(shape, np.nan)
    known = np.isfinite(at).all(axis=0)
    if sets == 1 and known.any():
        loss[:, known] = curve.loss(N[0, known], M[0, known], D[known])
    if sets > 1:
        loss = curve.loss_each(N, M, np.broadcast_to(D, shape))
    return Allocation(
        amount=amount,
        params=np.broadcast_to(N, shape),
        memory=np.broadcast_to(M, shape),
        tokens=np.broadcast_to(D, shape),
        loss=loss,
        at_edge=np.zeros(shape, dtype=bool),
    )


def _best_on_grid(
    curve: Curve, price: Callable[[Array], Array], amount: Array, ratio: float, log_N: Array
) -> Allocation:
    """Return the size of lowest loss, the rest of each amount spent on tokens.

    A parabola through the best size of the grid and its neighbours refines it.
    """
    n, shape = len(log_N), (curve.k, len(amount))
    N = np.broadcast_to(np.exp(log_N), (len(amount), n))
    losses = curve.loss(N, curve.memory_at(N, ratio), amount[:, None] / price(log_N))
    place = losses.argmin(axis=2)
    edge = (place == 0) | (place == n - 1)
    middle = np.clip(place, 1, n - 2)
    left, centre, right = (
        np.take_along_axis(losses, middle[:, :, None] + i, axis=2)[:, :, 0] for i in (-1, 0, 1)
    )
    bend = left - 2 * centre + right
    shift = 0.5 * (left - right) / np.where(bend > 0, bend, np.inf)
    best_at = np.where(edge, np.nan, log_N[middle] + (log_N[1] - log_N[0]) * shift)
    best_N = np.exp(best_at)
    return Allocation(
        amount=amount,
        params=best_N,
        memory=curve.memory_at(best_N, ratio),
        tokens=amount / price(best_at.ravel()).reshape(shape),
        loss=np.where(edge, np.nan, centre - 0.25 * (left - right) * shift),
        at_edge=edge,
    )


def beyond(curve: Curve, measure: CostMeasure, allocation: Allocation) -> Array:
    """Return the factor (m,) by which the first set's allocation lies outside the runs.

    1 is inside, 3 is three times as much or as little as the runs have.
    """
    factor = np.ones(len(allocation.amount))
    spans = [(allocation.params[0], curve.domain.params)]
    if curve.domain.tokens is not None:
        spans.append((allocation.tokens[0], curve.domain.tokens))
    if measure.name in curve.domain.amounts:
        spans.append((allocation.amount, curve.domain.amounts[measure.name]))
    for values, (low, high) in spans:
        factor = np.fmax(factor, np.fmax(values / high, low / values))
    return factor


@dataclass(frozen=True, kw_only=True, eq=False)
class OptimalAllocation:
    """The best model of one architecture for each budget (m,), with its band."""

    params: Array
    params_band: tuple[Array, Array]
    memory: Array
    tokens: Array
    tokens_band: tuple[Array, Array]
    loss: Array
    loss_band: tuple[Array, Array]
    share: Array
    """Of the draws in which it has the lowest loss; NaN without draws, and of one architecture
    alone. All shares add up to less than 1 where in some draws no architecture has a best size."""
    beyond: Array
    """Factor by which the best point lies outside the architecture's own runs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Frontier:
    """The best architectures of budgets."""

    measure: CostMeasure
    outcome: str
    budgets: Array
    """(m,)"""
    allocations: Mapping[str, OptimalAllocation]
    level: float
    left_out: Mapping[str, str]
    """Architectures that are not compared, and why."""
    fits: Mapping[str, LawFit]
    """Of all laws, by architecture."""

    def __repr__(self) -> str:
        names, n = ", ".join(self.allocations), len(self.budgets)
        return f"<Frontier of {names} at {n} budgets; see sentence(i), to_frame()>"

    @cached_property
    def verdict(self) -> FitVerdict:
        """What the laws are worth: the worst of them."""
        return worst({name: fit.verdict for name, fit in self.fits.items()})

    @property
    def compares(self) -> bool:
        """Whether there is a choice: one architecture alone has sizes and is the best of none."""
        return len(self.allocations) > 1

    @property
    def without(self) -> str:
        """Which architectures are not compared, and why; empty where all are."""
        return "; ".join(f"without {name}: {why}" for name, why in self.left_out.items())

    @property
    def best(self) -> list[str]:
        """The architecture of lowest loss at each budget; empty text where none has one."""
        names = list(self.allocations)
        losses = np.stack([c.loss for c in self.allocations.values()])
        finite = np.where(np.isfinite(losses), losses, np.inf)
        return [names[column.argmin()] if np.isfinite(column).any() else "" for column in finite.T]

    def sentence(self, i: int) -> str:
        """Return what to do with budget i, and what is not compared.

        Of laws that are not credible it says why there is no answer.
        """
        answer = f"{self.budgets[i]:.3g} {self.measure.label}: {self._answer(i)}"
        return f"{answer}; {self.without}" if self.without else answer

    def _answer(self, i: int) -> str:
        name = self.best[i]
        if not self.verdict.is_credible:
            return f"no size is to be relied on, {self.verdict}"
        if not name:
            return (
                "no architecture has a best size there; the laws fall with size alone"
                " or with tokens alone, so train other sizes at equal budgets"
            )
        best = self.allocations[name]
        text = f"{name} with {count(best.params[i])} parameters{_ends(best.params_band, i)}"
        if best.memory[i] > 0:
            text += f", {count(best.memory[i])} of memory"
        if np.isfinite(best.tokens[i]):
            text += f", {count(best.tokens[i])} tokens{_ends(best.tokens_band, i)}"
        loss = f"{best.loss[i]:.4g}{_ends(best.loss_band, i, show='{:.4g}'.format)}"
        text += f": {self.outcome} {loss}"
        if np.isfinite(best.share[i]):
            others = [f"{n} {c.share[i]:.0%}" for n, c in self.allocations.items() if n != name]
            text += f"; best in {best.share[i]:.0%} of draws"
            text += f" ({', '.join(others)})" if others else ""
            nobody = 1 - sum(c.share[i] for c in self.allocations.values())
            text += f", no best size in {nobody:.0%}" if nobody >= LEAST_SHARE else ""
        if best.beyond[i] > 1 + 1e-9:
            text += f"; extrapolated: {best.beyond[i]:.3g} times outside its runs"
        return text

    def to_frame(self) -> pd.DataFrame:
        """Return one row per budget and architecture."""
        best = self.best
        frames = []
        for name, of in self.allocations.items():
            columns = {
                self.measure.name: self.budgets,
                "architecture": name,
                "best": [self.compares and winner == name for winner in best],
                "share_of_draws": of.share,
                "loss": of.loss,
                "loss_low": of.loss_band[0],
                "loss_high": of.loss_band[1],
                "params": of.params,
                "params_low": of.params_band[0],
                "params_high": of.params_band[1],
                "memory_params": of.memory,
                "tokens": of.tokens,
                "tokens_low": of.tokens_band[0],
                "tokens_high": of.tokens_band[1],
                "times_outside_runs": of.beyond,
            }
            frames.append(pd.DataFrame(columns))
        order = [self.measure.name, "architecture"]
        return pd.concat(frames).sort_values(order, kind="stable", ignore_index=True)


def frontier(
    laws: ArchitectureLaws,
    *,
    measure: str = "flops",
    budgets: ArrayLike | None = None,
    tokens: float | None = None,
) -> Frontier:
    """Return which architecture is best at each budget, and its best size.

    Args:
        laws: Of `fit_families`.
        measure: Cost that the budget limits: flops or seconds; with `tokens` also bytes_moved,
            stored_bytes and the like.
        budgets: (m,); None takes 25 from the smallest run to ten times the largest.
        tokens: Trained on, the same for all; None lets every architecture choose.

    Raises:
        ValueError: If no architecture has the measure, or a budget is not positive.

    Example:
        >>> import numpy as np
        >>> from analysis import fit_families
        >>> N, D = (v.ravel() for v in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1e9, 4e9, 1.6e10]))
        >>> dense = 1.8 + 400 * N**-0.35 + 2000 * D**-0.37
        >>> memory = 1.8 + 400 * (2 * N) ** -0.35 + 2000 * D**-0.37  # as a dense one twice as large
        >>> runs = {"params": [*N, *N], "tokens": [*D, *D], "loss": [*dense, *memory]}
        >>> runs["architecture"] = ["dense"] * 12 + ["memory"] * 12
        >>> frontier(fit_families(runs, n_draws=0), budgets=[1e18]).sentence(0)
        '1e+18 training FLOPs: memory with 50.1 M parameters, 3.33 G tokens: loss 3.033'
    """
    # An architecture without this cost is left out with its reason; the others are compared.
    spent = cost_measure(measure)
    curves = laws.curves()
    unpriced, names = _priced(curves, spent)
    at = positive("budgets", budgets) if budgets is not None else _spanned(curves, names, measure)
    points = {name: allocate(curves[name], spent, at, tokens) for name in names}
    draws = points
    if laws.n_draws:
        drawn = laws.drawn()
        draws = {name: allocate(drawn[name], spent, at, tokens) for name in names}
    # Winners are counted within a draw: it is of the same resamples for all architectures, so what
    # they share cancels. One that has no loss at a budget does not win there, and one alone wins
    # nothing.
    contested = laws.n_draws > 0 and len(names) > 1
    losses = np.stack([np.where(np.isfinite(d.loss), d.loss, np.inf) for d in draws.values()])
    wins = np.where(np.isfinite(losses.min(axis=0)), losses.argmin(axis=0), -1)

    # A band of the point estimate alone would look like certainty.
    def ends(of: Array) -> tuple[Array, Array]:
        return band(of if laws.n_draws else of[:0], laws.drawn_level)

    return Frontier(
        measure=spent,
        fits={name: laws.named(name).fit for name in names},
        outcome=laws.outcome,
        budgets=at,
        allocations={
            name: OptimalAllocation(
                params=point.params[0],
                params_band=ends(draws[name].params),
                memory=point.memory[0],
                tokens=point.tokens[0],
                tokens_band=ends(draws[name].tokens),
                loss=point.loss[0],
                loss_band=ends(draws[name].loss),
                share=(wins == i).mean(axis=0) if contested else np.full(len(at), np.nan),
                beyond=beyond(curves[name], spent, point),
            )
            for i, (name, point) in enumerate(points.items())
        },
        level=laws.level,
        left_out={**laws.left_out, **unpriced},
    )


def _spanned(curves: Mapping[str, Curve], names: Sequence[str], measure: str) -> Array:
    """Return 25 budgets from the smallest run to ten times the largest."""
    spans = [curves[name].domain.amounts[measure] for name in names]
    return np.geomspace(min(s[0] for s in spans), 10 * max(s[1] for s in spans), 25)


def _priced(curves: Mapping[str, Curve], measure: CostMeasure) -> tuple[dict[str, str], list[str]]:
    """Return why architectures lack the measure, and the names of those that have it."""
    unpriced = {
        name: curve.domain.unpriced[measure.name]
        for name, curve in curves.items()
        if measure.name in curve.domain.unpriced
    }
    names = [n for n in curves if n not in unpriced]
    if not names:
        why = "; ".join(f"{name}: {reason}" for name, reason in unpriced.items())
        raise ValueError(f"measure: no architecture has {measure.label}; {why}")
    return unpriced, names


def positive(name: str, values: ArrayLike) -> Array:
    """Return numbers as an array (m,).

    Raises:
        ValueError: If one is not positive and finite.
    """
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    bad = array[~(np.isfinite(array) & (array > 0))]
    if len(bad):
        raise ValueError(f"{name}: must be positive and finite, got {bad[0]}")
    return array


def band(draws: Array, level: float) -> tuple[Array, Array]:
    """Return percentiles (m,) of draws (k, m).

    A draw without a value (NaN) counts as unbounded above, so an end may be infinite.
    """
    if not len(draws):
        nothing = np.full(draws.shape[1], np.nan)
        return nothing, nothing.copy()
    ordered = np.where(np.isnan(draws), np.inf, draws)
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(ordered, tails, axis=0, method="inverted_cdf")
    return low, high


def _ends(ends: tuple[Array, Array], i: int, *, show: Callable[[float], str] = count) -> str:
    low, high = ends[0][i], ends[1][i]
    return "" if np.isnan(low) else f" [{show(low)}, {show(high)}]"
