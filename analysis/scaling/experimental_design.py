"""The next run: which of several candidate trials narrows the interval of a stated target most per GPU-hour.

Every fit is, near its optimum, a linear regression on the Jacobian J of ln(loss). With the covariance S of the
coefficients, a target's gradient g, a candidate's own row j and the variance v of what it will measure,

    variance of the target now           g S g
    variance once the candidate has run  g S g - (g S j)^2 / (v + j S j)

(Bayesian linear design: Chaloner and Verdinelli 1995, section 2; the update is Sherman and Morrison's). S is
(sum j j / v)^-1 over the configurations that are there: a configuration's mean has the variance between
configurations plus that between seeds over their number, and a Huber fit gets from normal errors of scale s only what
s^2 / efficiency tells it. `by="draws"` takes covariances over the resamples instead, which knows no linearity.

Variance alone asks for extremes: the most telling run is often far from all others, where the law itself is least sure.
So every candidate comes with its tokens per parameter and how far outside the runs it lies.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.objective import MAD_TO_SIGMA
from analysis.fitting.result import LawFit
from analysis.scaling.architecture_laws import SIZE_INPUTS, ArchitectureLaw, ArchitectureLaws, Curve
from analysis.scaling.compute_multiplier import multipliers_of
from analysis.scaling.cost_measures import cost_measure

Array = NDArray[np.float64]

FAR = 4.0
"""A candidate this many times outside the runs in some size is marked: there the law is a guess."""

WORTH = 0.02
"""Share of the target's variance that a run has to remove by itself to be chosen: the cheapest runs are the best per
GPU-hour, and bring nothing."""

STEP = 1e-4
"""Of a central difference, in standard deviations of a coefficient's log or exponent."""


class Target(Protocol):
    """A number that one wants to know better."""

    @property
    def description(self) -> str:
        """As a sentence names it."""

    def values(self, curves: Mapping[str, Curve]) -> Array:
        """Return ln(target) (k,) under every set of coefficients; NaN where there is none."""


@dataclass(frozen=True, kw_only=True)
class LossAt:
    """The loss of an architecture at sizes and tokens."""

    architecture: str
    inputs: Mapping[str, float]
    """The law's inputs."""

    @property
    def description(self) -> str:
        """As a sentence names it."""
        at = ", ".join(f"{k}={v:g}" for k, v in self.inputs.items())
        return f"loss of {self.architecture} at {at}"

    def values(self, curves: Mapping[str, Curve]) -> Array:
        """Return ln(loss) (k,)."""
        curve = _of(curves, self.architecture)
        return np.asarray(_log_loss(curve.law, self.inputs, curve.parameters)[:, 0])


@dataclass(frozen=True, kw_only=True)
class MultiplierAt:
    """How many times a candidate's amount a reference needs for the same loss (`analysis/scaling/compute_multiplier.py`)."""

    candidate: str
    reference: str
    amount: float
    measure: str = "flops"
    tokens: float | None = None

    @property
    def description(self) -> str:
        """As a sentence names it."""
        tokens = "" if self.tokens is None else f" and tokens={self.tokens:g}"
        return f"{self.measure} multiplier of {self.candidate} over {self.reference} at {self.measure}={self.amount:g}{tokens}"

    def values(self, curves: Mapping[str, Curve]) -> Array:
        """Return ln(multiplier) (k,)."""
        pair = [_of(curves, n) for n in (self.candidate, self.reference)]
        measure = cost_measure(self.measure)
        for name, curve in zip((self.candidate, self.reference), pair, strict=True):
            if measure.name in curve.domain.unpriced:
                raise ValueError(f"target: {measure.label} of {name}: {curve.domain.unpriced[measure.name]}")  # fmt: skip
        found = multipliers_of(pair[0], pair[1], measure, np.asarray([self.amount]), self.tokens)
        return np.asarray(np.log(found[:, 0]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A trial that could be run next."""

    name: str
    architecture: str
    inputs: Mapping[str, float]
    """The law's inputs."""
    gpu_hours: float
    """Of all its seeds; hours of whatever trains, where there is no GPU."""
    n_seeds: int = 1
    n_seeds_done: int = 0
    """Seeds of the same configuration that are among the runs: this one adds to them."""
    trial: Any = None
    """What it stands for, handed through: a planned trial."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gpu_hours) and self.gpu_hours > 0):
            raise ValueError(f"candidate {self.name}: gpu_hours must be positive, got {self.gpu_hours}")  # fmt: skip
        if self.n_seeds < 1:
            raise ValueError(f"candidate {self.name}: n_seeds must be at least 1, got {self.n_seeds}")  # fmt: skip
        if self.n_seeds_done < 0:
            raise ValueError(f"candidate {self.name}: n_seeds_done must not be negative, got {self.n_seeds_done}")  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedCandidate:
    """A candidate and what it would do."""

    candidate: Candidate
    width: float
    """Width of the target's interval once it has run, over the width now."""
    per_gpu_hour: float
    """Share of the target's variance that it removes, 1 - width^2, per GPU-hour."""
    outside: float
    """Largest factor by which a size lies outside the architecture's runs; 1 inside."""

    @property
    def tokens_per_param(self) -> float:
        """D/N, NaN where the law has no tokens."""
        inputs = self.candidate.inputs
        size = next(inputs[n] for n in SIZE_INPUTS if n in inputs)
        return inputs["tokens"] / size if "tokens" in inputs else math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentalDesign:
    """Candidates in order, and the runs to make."""

    target: Target
    value: float
    """Of the target, by the runs that are there."""
    sd: float
    """Standard deviation of its logarithm now."""
    ranked: Sequence[RankedCandidate]
    """All candidates by what each alone does per GPU-hour, best first."""
    chosen: Sequence[RankedCandidate]
    """In the order chosen. `width` is against now, all before it included; `per_gpu_hour` is what it adds to those."""
    by: str
    level: float
    notes: Sequence[str] = field(default=())

    @property
    def sentence(self) -> str:
        """What to run and what it brings."""
        z = _normal_quantile(self.level)
        now = f"{self.target.description} is {self.value:.4g}, known to a factor of {math.exp(z * self.sd):.4f} ({self.level:.0%})"  # fmt: skip
        if not self.chosen:
            return f"{now}; no candidate that fits removes enough of its variance to be worth a run; give larger ones, or other tokens per parameter"
        last = self.chosen[-1]
        hours = sum(r.candidate.gpu_hours for r in self.chosen)
        return f"{now}; {'1 run' if len(self.chosen) == 1 else f'{len(self.chosen)} runs'} of {hours:.3g} GPU-hours would narrow that to {math.exp(z * self.sd * last.width):.4f} ({last.width:.0%} of the width)"

    def to_frame(self) -> pd.DataFrame:
        """Return all candidates, best first."""
        order = {id(r.candidate): i + 1 for i, r in enumerate(self.chosen)}
        return pd.DataFrame(
            [
                {
                    "candidate": r.candidate.name, "architecture": r.candidate.architecture,
                    **r.candidate.inputs, "tokens_per_param": r.tokens_per_param,
                    "gpu_hours": r.candidate.gpu_hours, "width": r.width,
                    "per_gpu_hour": r.per_gpu_hour, "times_outside_runs": r.outside,
                    "chosen": order.get(id(r.candidate)),
                }
                for r in self.ranked
            ]
        )  # fmt: skip


def next_runs(
    families: ArchitectureLaws,
    candidates: Sequence[Candidate],
    target: Target,
    *,
    n_runs: int = 3,
    gpu_hours: float | None = None,
    far: float | None = None,
    worth: float = WORTH,
    by: Literal["information", "draws"] = "information",
) -> ExperimentalDesign:
    """Return the candidates in order, and which to run.

    Args:
        families: Of `fit_families`.
        candidates: To choose from, each at most once.
        target: What to know better.
        n_runs: Most runs to choose.
        gpu_hours: Most GPU-hours to spend; None is no limit.
        far: Leave out of the choice what lies further outside the runs than this factor; None leaves nothing out.
        worth: Leave out of the choice what would remove a smaller share of the variance than this.
        by: information: linearised, exact for a linear fit. draws: covariances over the resamples.

    Raises:
        ValueError: If there is no candidate, one cannot be placed on its law, the target has no value, or there are
            too few runs to know how uncertain it is.
    """
    if not candidates:
        raise ValueError("candidates: none; give trials that are not in the runs yet")
    names = sorted({c.architecture for c in candidates})
    for name in names:
        families.named(name)
    value = float(target.values(families.curves())[0])
    if not math.isfinite(value):
        raise ValueError(f"target: {target.description} has no value; the reference never gets to that loss, or has no best size there")  # fmt: skip
    covariance = {"information": _by_information, "draws": _by_draws}[by](families, candidates, target)  # fmt: skip
    noise = np.asarray([_noise_of(families, c) for c in candidates])
    if not covariance[0, 0] > 0:
        raise ValueError(f"target: {target.description} has no uncertainty that runs could narrow")
    hours = np.asarray([c.gpu_hours for c in candidates])
    outside = [_outside(families.named(c.architecture), c) for c in candidates]
    now = float(covariance[0, 0])

    def ranked(i: int, left: float) -> RankedCandidate:
        return RankedCandidate(
            candidate=candidates[i],
            width=math.sqrt(max(left, 0.0) / now),
            per_gpu_hour=float((1 - left / now) / hours[i]),
            outside=outside[i],
        )

    alone = now - _removed(covariance, noise)
    everyone = sorted((ranked(i, left) for i, left in enumerate(alone)), key=lambda r: -r.per_gpu_hour)  # fmt: skip
    limit = math.inf if gpu_hours is None else gpu_hours
    free = np.ones(len(candidates), dtype=bool) if far is None else np.asarray(outside) <= far
    plans = [
        _greedy(covariance, noise, hours, free=free, n_runs=n_runs, gpu_hours=limit, least=worth * now, per_hour=per_hour)
        # Within a limit, many small runs or one large one may be better; without, it is the return that counts.
        for per_hour in ((True,) if gpu_hours is None else (True, False))
    ]  # fmt: skip
    best = min(plans, key=lambda plan: plan[-1][1] if plan else now)
    chosen: list[RankedCandidate] = []
    before = now
    for i, left in best:
        gain = (before - left) / now / hours[i]
        chosen.append(replace(ranked(i, left), per_gpu_hour=float(gain)))
        before = left
    return ExperimentalDesign(
        target=target,
        value=math.exp(value),
        sd=math.sqrt(now),
        ranked=everyone,
        chosen=chosen,
        by=by,
        level=families.level,
        notes=[*_notes(chosen), *_untold(families, candidates)],
    )


def _greedy(
    covariance: Array, noise: Array, hours: Array, *, free: NDArray[np.bool_], n_runs: int,
    gpu_hours: float, least: float, per_hour: bool,
) -> list[tuple[int, float]]:  # fmt: skip
    """Return (candidate, variance left) in order: always the one of largest gain, per GPU-hour or by itself, that fits."""
    given, free = covariance.copy(), free.copy()
    plan: list[tuple[int, float]] = []
    while len(plan) < n_runs:
        gain = _removed(given, noise)
        good = free & (hours <= gpu_hours * (1 + 1e-12)) & (gain >= least)
        if not good.any():
            break
        i = int(np.where(good, gain / hours if per_hour else gain, -np.inf).argmax())
        column = given[:, i + 1]
        given = given - np.outer(column, column) / (noise[i] + column[i + 1])
        free[i] = False
        gpu_hours -= hours[i]
        plan.append((i, float(given[0, 0])))
    return plan


def parse_target(text: str, families: ArchitectureLaws) -> Target:
    """Read `memory: params=1e8, tokens=2e9` (loss) or `memory/dense: flops=1e18` (multiplier).

    The architecture may be left out where there is one.

    Raises:
        ValueError: If it is neither; the message shows both.
    """
    head, colon, tail = text.rpartition(":")
    pairs = [part.partition("=") for part in re.split(r"[,\s]+", tail.strip()) if part]
    try:
        values = {key.strip(): float(number) for key, _, number in pairs}
    except ValueError:
        values = {}
    names = list(families.by_name)
    usage = "write an architecture and the inputs of its law, as in 'memory_plus: params=1e8, tokens=2e9', or two and an amount, as in 'memory_plus/dense: flops=1e18'"
    if not values or (not colon and len(names) > 1):
        raise ValueError(f"target: cannot read {text!r}; {usage}; there are {', '.join(names)}")
    who = head.strip() or names[0]
    if "/" in who:
        candidate, reference = (w.strip() for w in who.split("/", 1))
        for name in (candidate, reference):
            families.named(name)
        tokens = values.pop("tokens", None)
        if len(values) != 1:
            raise ValueError(f"target: a multiplier is at one amount, got {text!r}; {usage}")
        ((measure, amount),) = values.items()
        cost_measure(measure)
        return MultiplierAt(candidate=candidate, reference=reference, amount=amount, measure=measure, tokens=tokens)  # fmt: skip
    law = families.named(who).curve.law
    if set(values) != set(law.inputs):
        raise ValueError(f"target: the law {law.name} takes {', '.join(law.inputs)}, got {', '.join(values)}; {usage}")  # fmt: skip
    return LossAt(architecture=who, inputs={n: values[n] for n in law.inputs})


def _by_information(
    families: ArchitectureLaws, candidates: Sequence[Candidate], target: Target
) -> Array:
    """Return the covariance (1 + c, 1 + c) of the target and of every candidate's ln(loss), linearised."""
    total = np.zeros((len(candidates) + 1, len(candidates) + 1))
    curves = families.curves()
    for fit in families.fits:
        problem = fit.problem()
        vector = np.asarray(list(fit.parameters.values()))[None, :]
        theta = problem.scale(vector)[0]
        free = (theta > problem.lower + 1e-9) & (theta < problem.upper - 1e-9)
        J = problem.law.log_jacobian(problem.features, theta[None, :])[0][free].T
        weight, members = _configurations(fit, families.fits)
        mean = np.asarray([J[m].mean(axis=0) for m in members])
        size = np.maximum(np.linalg.norm(mean, axis=0), 1e-300)
        scaled = mean / size
        S = np.linalg.pinv((scaled.T * weight) @ scaled, hermitian=True) / np.outer(size, size)
        step = STEP * np.sqrt(np.diag(S))
        moved = np.repeat(theta[None, :], 2 * len(step), axis=0)
        at = np.flatnonzero(free)
        moved[np.arange(len(at)), at] += step
        moved[len(at) + np.arange(len(at)), at] -= step
        here = {
            name: family.with_parameters(problem.unscale(moved))
            for name, family in families.by_name.items()
            if family.fit is fit
        }
        whole = {name: _repeated(curve, len(moved)) for name, curve in curves.items()} | here
        rows = [target.values(whole)]
        for c in candidates:
            near = here.get(c.architecture)
            rows.append(
                np.zeros(len(moved))
                if near is None
                else _log_loss(near.law, c.inputs, near.parameters)[:, 0]
            )
        values = np.stack(rows)
        slopes = (values[:, : len(at)] - values[:, len(at) :]) / (2 * step)
        if not np.isfinite(slopes).all():
            raise ValueError(f"target: {target.description} ends close to where the runs put it, so it has no interval to narrow; ask nearer to the runs")  # fmt: skip
        total += slopes @ S @ slopes.T
    return total


def _by_draws(families: ArchitectureLaws, candidates: Sequence[Candidate], target: Target) -> Array:
    """Return the same covariance over the resamples; draws without a value of the target are left out."""
    if families.n_draws < 50:
        raise ValueError(f"by: draws needs at least 50 resamples, got {families.n_draws}; fit with n_draws=500, or use by='information'")  # fmt: skip
    drawn = families.drawn()
    rows = [target.values(drawn)]
    for c in candidates:
        curve = drawn[c.architecture]
        rows.append(_log_loss(curve.law, c.inputs, curve.parameters)[:, 0])
    values = np.stack(rows)
    return np.atleast_2d(np.cov(values[:, np.isfinite(values).all(axis=0)]))


def _removed(covariance: Array, noise: Array) -> Array:
    """Return how much of the target's variance each candidate (c,) removes."""
    with_target = covariance[0, 1:]
    return np.asarray(with_target**2 / (noise + np.diag(covariance)[1:]))


def noise_variances(fit: LawFit, others: Sequence[LawFit] = ()) -> tuple[float, float]:
    """Return the variance of ln(outcome) between configurations, and between seeds of one, as a Huber fit feels them.

    The total is the residuals' robust scale squared, n / (n - p) times (their mean square for least squares); the part
    between seeds is pooled over configurations that have several, those of `others` where the fit has none. It is 0
    where none has (`seeds_known`). Both are divided by the efficiency of the objective for normal errors (Huber 1981,
    section 4.5: 2 / pi for the absolute error).
    """
    r = _log_residuals(fit)
    spare = max(len(r) - fit.n_free, 1)
    scale = math.sqrt(float(np.mean(r**2)))
    if fit.huber is not None:
        robust = MAD_TO_SIGMA * float(np.median(np.abs(r)))
        scale = robust if robust > 0 else scale
    total = scale**2 * len(r) / spare
    squares, freedom = _between_seeds(fit)
    if not freedom:
        squares, freedom = (sum(v) for v in zip(*map(_between_seeds, others), strict=True)) if others else (0.0, 0)  # fmt: skip
    within = min(squares / freedom if freedom else 0.0, total)
    efficiency = _efficiency(math.inf if fit.huber is None else fit.huber / max(scale, 1e-300))
    return (total - within) / efficiency, within / efficiency


def seeds_known(families: ArchitectureLaws) -> bool:
    """Return whether some configuration has two seeds: without, nothing says how much of the noise another seed takes away."""
    return any(_between_seeds(fit)[1] for fit in families.fits)


def _between_seeds(fit: LawFit) -> tuple[float, int]:
    """Return the sum of squares of ln(outcome) around the mean of its configuration, and its degrees of freedom."""
    _, members = _configurations_of(fit)
    groups = [_log_residuals(fit)[m] for m in members if len(m) > 1]
    return sum(float(((g - g.mean()) ** 2).sum()) for g in groups), sum(len(g) - 1 for g in groups)


def _log_residuals(fit: LawFit) -> Array:
    return fit.residuals if fit.objective_of.residual == "log" else fit.residuals / fit.y


def _configurations(fit: LawFit, others: Sequence[LawFit]) -> tuple[Array, list[NDArray[np.int64]]]:
    """Return 1 / variance of every configuration's mean residual, and its rows."""
    between, within = noise_variances(fit, others)
    counts, members = _configurations_of(fit)
    return 1.0 / np.maximum(between + within / counts, 1e-300), members


def _configurations_of(fit: LawFit) -> tuple[Array, list[NDArray[np.int64]]]:
    labels = np.asarray(fit.clusters)
    # Runs of one label that differ in their inputs (checkpoints) are places of their own.
    keys = np.stack([np.asarray(v) for v in fit.inputs.values()], axis=1)
    place = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    named = np.unique(labels, return_inverse=True)[1].reshape(-1)
    member = np.unique(np.stack([named, place], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    members = [np.flatnonzero(member == i) for i in range(int(member.max()) + 1)]
    return np.asarray([len(m) for m in members], dtype=float), members


def _noise_of(families: ArchitectureLaws, candidate: Candidate) -> float:
    """Return the variance of what a candidate will tell about ln(outcome) at its place; inf where it tells nothing."""
    between, within = noise_variances(families.named(candidate.architecture).fit, families.fits)
    n = candidate.n_seeds_done
    after = max(between + within / (n + candidate.n_seeds), 1e-300)
    if not n:
        return after
    before = between + within / n
    return before * after / (before - after) if before > after else math.inf


def _untold(families: ArchitectureLaws, candidates: Sequence[Candidate]) -> list[str]:
    n = sum(c.n_seeds_done > 0 for c in candidates)
    if not n or seeds_known(families):
        return []
    return [f"what further seeds bring cannot be told for {n} {'candidate' if n == 1 else 'candidates'}: no configuration has two seeds; train one with a second seed"]  # fmt: skip


def _efficiency(k: float) -> float:
    """Return (E psi')^2 / E psi^2 of Huber's psi with threshold k standard deviations, for normal errors."""
    from scipy.special import ndtr

    if math.isinf(k):
        return 1.0
    if k < 1e-4:
        return 2 / math.pi
    inside = 2 * float(ndtr(k)) - 1
    density = math.exp(-0.5 * k * k) / math.sqrt(2 * math.pi)
    square = inside - 2 * k * density + k * k * (1 - inside)
    return inside**2 / square


def _log_loss(law: Any, inputs: Mapping[str, float], parameters: Array) -> Array:
    """Return ln(loss) (k, 1)."""
    missing = [n for n in law.inputs if not (n in inputs and math.isfinite(inputs[n]) and inputs[n] >= 0)]  # fmt: skip
    if missing:
        raise ValueError(f"{', '.join(missing)}: the law {law.name} needs it, positive; got {dict(inputs)}")  # fmt: skip
    at = {n: np.asarray([float(inputs[n])]) for n in law.inputs}
    return np.asarray(np.log(law.evaluate(at, parameters)))


def _repeated(curve: Curve, k: int) -> Curve:
    return replace(
        curve,
        parameters=np.repeat(curve.parameters, k, axis=0),
        costs={n: np.repeat(v, k, axis=0) for n, v in curve.costs.items()},
    )


def _of(curves: Mapping[str, Curve], name: str) -> Curve:
    if name not in curves:
        raise ValueError(f"target: no architecture {name!r}; there are {', '.join(curves)}")
    return curves[name]


def _outside(family: ArchitectureLaw, candidate: Candidate) -> float:
    factor = 1.0
    domain = family.curve.domain
    for name, value in candidate.inputs.items():
        span = domain.tokens if name == "tokens" else domain.params if name in SIZE_INPUTS else None
        if span is not None:
            factor = max(factor, value / span[1], span[0] / value)
    return factor


def _notes(chosen: Sequence[RankedCandidate]) -> list[str]:
    return [
        f"{r.candidate.name} lies {r.outside:.3g} times outside the runs ({r.tokens_per_param:.3g} tokens per parameter), where the law is least sure: a run between is safer"
        for r in chosen
        if r.outside > FAR
    ]


def _normal_quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))
