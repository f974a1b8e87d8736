"""Greedy experimental designs: one run after the other, by variance removed.

Several criteria count equally: a run's gain is the mean, over them, of the share of a variance that
it removes. So one wrong model cannot spend the whole budget (model-robust design: Läuter 1974, a
mean of criteria over candidate models). A criterion may ask for the variance at the targets, or for
that at all candidates, which fills the space (I-optimality: Box and Draper 1959, the mean variance
over a region).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LARGEST_SHARE = 2 / 3
"""Most of what is left of the budget that one run may take, as long as any run is that cheap. So
runs are of many sizes: the first is large, and what is left buys smaller and smaller ones."""

COST_POWER = 0.25
"""Gains are divided by this power of the cost. With 1 the cheapest runs win, which lie furthest
from the target; with 0 what is spent does not count. Chosen by trial (docs/analysis.md)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DesignModel:
    """What one model of ln(loss) holds of targets and candidates, jointly."""

    covariance: Array
    """(m + c, m + c): targets first."""
    noise: Array
    """(c,) variance of what each candidate adds; inf where it adds nothing."""
    over_candidates: bool = False
    """Whether it is the candidates' variance that runs have to remove, not the targets'."""

    @property
    def n_targets(self) -> int:
        """Targets; their variances are added up."""
        return len(self.covariance) - len(self.noise)

    @property
    def variance(self) -> float:
        """Sum over the targets, or over the candidates."""
        return float(np.diag(self.covariance)[self._asked].sum())

    @property
    def _asked(self) -> slice:
        m = self.n_targets
        return slice(m, None) if self.over_candidates else slice(m)

    def removed(self) -> Array:
        """Return how much of its variance each candidate (c,) removes."""
        m = self.n_targets
        spread = self.noise + np.diag(self.covariance)[m:]
        squares = (self.covariance[self._asked, m:] ** 2).sum(axis=0)
        return np.asarray(squares / np.maximum(spread, 1e-300))

    def after(self, i: int) -> "DesignModel":
        """Return the model once candidate i has run (Sherman and Morrison's update)."""
        m = self.n_targets
        column = self.covariance[:, m + i]
        update = np.outer(column, column) / max(self.noise[i] + column[m + i], 1e-300)
        return replace(self, covariance=self.covariance - update)


Plan = list[tuple[int, float]]
"""Candidates in order, each with the share of the targets' variance that is left after it."""


def spread_plan(
    models: Sequence[DesignModel],
    costs: Array,
    *,
    budget: float = math.inf,
    n_runs: int,
    n_later: float = 0,
    least: float = 0.0,
    weights: Array | float = 1.0,
    allowed: NDArray[np.bool_] | None = None,
) -> Plan:
    """Return a plan of runs of many sizes, by what they bring under all models.

    Args:
        models: Equally credible. Those over candidates say which run comes first among those that
            the others find worth their while.
        costs: (c,) of the candidates.
        budget: Most to spend, in units of the costs.
        n_runs: Most runs.
        n_later: Runs for which the budget has to last besides, chosen another time; inf where
            their number has no limit.
        least: Share of the variance that a run has to remove.
        weights: (c,) by which gains are multiplied (`analysis/scaling/local_weights.py`).
        allowed: (c,) which candidates may be chosen.
    """
    start = [model.variance for model in of_targets(models)]
    free = np.ones(len(costs), dtype=bool) if allowed is None else allowed.copy()
    plan: Plan = []
    while len(plan) < n_runs:
        removed = mean_removed(of_targets(models), start)
        good = free & (costs <= budget * (1 + 1e-12)) & (removed >= least)
        if not good.any():
            break
        cheap = good & (costs <= LARGEST_SHARE * budget)
        good = cheap if cheap.any() else good
        # By what is left of each model's variance, so that the better known one still counts.
        now = [model.variance for model in models]
        # A run below its even share of the budget is not better for being cheaper still: what it
        # saves, no other run can spend.
        n_left = n_runs + n_later - len(plan)
        even_share = 0.0 if math.isinf(budget) else budget / n_left
        gain = weights * mean_removed(models, now)
        worth = gain / np.maximum(costs, even_share) ** COST_POWER
        i = int(np.where(good, worth, -np.inf).argmax())
        models = [model.after(i) for model in models]
        free[i] = False
        budget -= costs[i]
        plan.append((i, _share_left(of_targets(models), start)))
    return plan


def greedy_plan(
    model: DesignModel,
    costs: Array,
    *,
    budget: float = math.inf,
    n_runs: int,
    least: float = 0.0,
    allowed: NDArray[np.bool_],
) -> Plan:
    """Return the plan that leaves the least variance by one model; arguments of `spread_plan`.

    Candidates are added by their gain per cost; within a budget by the gain itself, too, because
    one large run may be better than many small ones.
    """

    def one(per_cost: bool) -> Plan:
        given, free, left, start = model, allowed.copy(), budget, [model.variance]
        plan: Plan = []
        while len(plan) < n_runs:
            gain = mean_removed([given], start)
            good = free & (costs <= left * (1 + 1e-12)) & (gain >= least)
            if not good.any():
                break
            i = int(np.where(good, gain / costs if per_cost else gain, -np.inf).argmax())
            given = given.after(i)
            free[i] = False
            left -= costs[i]
            plan.append((i, _share_left([given], start)))
        return plan

    plans = [one(True)] if math.isinf(budget) else [one(True), one(False)]
    return min(plans, key=lambda plan: plan[-1][1] if plan else 1.0)


def of_targets(models: Sequence[DesignModel]) -> list[DesignModel]:
    """Return the models that say what is left of the targets' variance."""
    return [model for model in models if not model.over_candidates]


def mean_removed(models: Sequence[DesignModel], variances: Sequence[float]) -> Array:
    """Return what each candidate (c,) removes, in shares of the variances, averaged over models."""
    shares = [
        m.removed() / max(variance, 1e-300) for m, variance in zip(models, variances, strict=True)
    ]
    return np.asarray(np.mean(shares, axis=0))


def _share_left(models: Sequence[DesignModel], start: Sequence[float]) -> float:
    left = [m.variance / max(s, 1e-300) for m, s in zip(models, start, strict=True)]
    return max(float(np.mean(left)), 0.0)
