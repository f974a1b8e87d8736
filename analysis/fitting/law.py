"""Interface of a scaling law, and a law on one set of runs.

A law gives the logarithm of the outcome and its derivatives as a function of features: the
logarithms of the inputs, or whatever else its equation is made of. Features are centred on the
runs, because raw amplitudes and exponents correlate near one. Amplitudes are fitted as logarithms.
An outcome that may be zero or negative (an accuracy) has a law on a linear scale. Everything else
(bounds, resampling, status, intervals, hold-out) is the same for every law.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.objective import SQUARED_ERROR, Objective

Array = NDArray[np.float64]

VANISHING = 16.0
"""An amplitude this many e-folds below the smallest outcome (1e-7 of it) counts as zero."""

SMALLEST_OUTCOME = 1e-6
"""Share of the largest outcome that stands in for a smaller one where only its logarithm's order of
magnitude is needed (starts and bounds of a fit in the units of the outcome)."""

N_STARTS = 64
"""Starting points of a law without a grid of its own."""

_MOST_LOG = 690.0
"""Logarithm of the largest amplitude and outcome that are computed with."""

_ROUNDING = 1e-9
"""How far a bound may lie beyond a parameter's range, where it was meant to be its end."""

_GIVEN = "the bound that was given, not the runs, decides it"


@dataclass(frozen=True)
class Parameter:
    """One number of a law."""

    name: str
    lower: float = 0.0
    upper: float = 5.0
    amplitude: bool = False
    """Positive, fitted as its logarithm, in the units of the outcome; zero is its lower bound."""
    start: tuple[float, float] = (0.05, 1.2)
    """Range that starts are spread over."""
    at_lower: str = "these runs show no such effect"
    """What resting on the lower bound means."""
    at_upper: str = "the runs change too abruptly for this law"
    log: bool = False
    """Fitted as its logarithm, without being an amplitude: lower, upper and start are
    logarithms."""
    linear: bool = False
    """In the units of the outcome, and fitted as it is: the optimiser divides it by `y_unit`."""
    coupled_to: tuple[str, ...] = ()
    """Parameters that its internal value depends on besides itself: it can be fixed or bounded only
    where they are fixed."""


COMPUTE_FACTORS = ("params", "tokens", "n_active", "compute")
"""Inputs whose product orders runs by compute."""


class Law(ABC):
    """A family of surfaces; stateless, so one object serves all data."""

    name: str
    equation: str
    source: str
    inputs: tuple[str, ...]
    """Columns of the runs it needs, all positive unless `may_be_zero`."""
    outcome = "loss"
    """What it explains: the column that `choose_law` looks for."""
    may_be_zero: tuple[str, ...] = ()
    """Inputs that zero is a value of: memory of a dense model."""
    may_be_constant: tuple[int, ...] = ()
    """Feature rows that may be the same in all runs without leaving a parameter undetermined."""
    example: Mapping[str, float]
    """Coefficients to make synthetic runs with: those of the source, where it prints them."""
    parameters: tuple[Parameter, ...]
    default_objective = Objective()
    """What is minimised unless the caller says otherwise."""
    min_spare = 2
    """Degrees of freedom from which on resampling says something about the error."""
    outcome_is_share = False
    """Whether the outcome lies in [0, 1]."""
    levels_are_shares = False
    """Whether the curve's levels lie in [0, 1]; a measured outcome may lie a little outside."""
    anchor: tuple[float, float] | None = None
    """Input and outcome of a point known beforehand that the curve passes near; a two-stage fit
    adds it to the runs of its link."""
    allow_singular = False
    """Whether a fit is usable when the runs do not tell its parameters apart: a curve can be well
    determined without them."""
    bounds: Mapping[str, tuple[float, float]] = MappingProxyType({})
    """Lowest and highest value of some parameters, given by `within`; equal ones fix it."""

    def within(self, bounds: Mapping[str, tuple[float, float]]) -> "Law":
        """Return this law with some parameters kept between bounds, in the units of the data.

        Raises:
            ValueError: If there is no such parameter, or it cannot have such values, or those that
                it is coupled to are not fixed.
        """
        for name in bounds:
            if name not in self.parameter_names:
                names = ", ".join(self.parameter_names)
                raise ValueError(f"bounds: {self.name} has no parameter {name}; it has {names}")
        kept = object.__new__(type(self))  # copy.copy gives a registered law back as it is
        vars(kept).update(vars(self))
        given = {name: (float(low), float(high)) for name, (low, high) in bounds.items()}
        kept.bounds = MappingProxyType({**self.bounds, **given})
        _check_bounds(kept)
        return kept

    def internal_bounds(self) -> Array:
        """Return `bounds` in internal parameters, lowest and highest (2, p); NaN without bounds."""
        given = np.ones((2, len(self.parameters)))
        bounded = [name in self.bounds for name in self.parameter_names]
        for i, name in enumerate(self.parameter_names):
            given[:, i] = self.bounds.get(name, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(bounded, np.sort(self.internal(given), axis=0), np.nan)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickle a law of `analysis/laws` by its name."""
        registered = importlib.import_module("analysis.laws.registry").all_laws()
        if registered.get(self.name) is self:
            return as_law, (self.name,)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        """Return what else is pickled; views of dicts cannot be."""
        return without_views(vars(self))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """In the order of the equation."""
        return tuple(p.name for p in self.parameters)

    @property
    def n_free(self) -> int:
        """Parameters that are fitted."""
        fixed = {name for name, (low, high) in self.bounds.items() if low == high}
        return sum(
            (p.lower < p.upper or p.amplitude) and p.name not in fixed for p in self.parameters
        )

    @abstractmethod
    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return (n_features, n) from inputs (n,) in their own units."""

    @abstractmethod
    def log_values(self, features: Array, theta: Array) -> Array:
        """Return ln y (B, n) for internal parameters (B, p)."""

    @abstractmethod
    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return d ln y / d theta (B, p, n)."""

    @abstractmethod
    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Return the same surface's internal parameters (B, p) for features without the shift.

        `centre` (n_features,) is what was subtracted from each feature.
        """

    def centre(self, features: Array) -> Array:
        """Return what is subtracted from each feature (n_features,)."""
        return np.asarray(features.mean(axis=1))

    def values(self, features: Array, theta: Array) -> Array:
        """Return y (B, n) for internal parameters (B, p)."""
        values: Array = np.exp(np.minimum(self.log_values(features, theta), 700.0))
        return values

    def jacobian(self, features: Array, theta: Array) -> Array:
        """Return dy / d theta (B, p, n)."""
        slopes = self.log_jacobian(features, theta)
        return slopes * self.values(features, theta)[:, None, :]

    def limits(self, features: Array, log_y: Array) -> tuple[Array, Array]:
        """Return the bounds (p,), (p,) of the internal parameters for centred features."""
        low, high = float(log_y.min()) - VANISHING, float(log_y.max()) + 1.0
        return (
            np.asarray([low if p.amplitude else p.lower for p in self.parameters]),
            np.asarray([high if p.amplitude else p.upper for p in self.parameters]),
        )

    def reaches(self, parameter: str, features: Array, y: Array) -> bool:
        """Return whether runs show a parameter to be at its upper bound.

        Args:
            parameter: Its name.
            features: (n_features, n).
            y: (n,) outcomes.
        """
        return False

    def starts(self, problem: "LawProblem") -> Array:
        """Return starting points (S, p), spread over the starting ranges.

        Every amplitude is a like share of the outcome.
        """
        return spread_starts(self, problem)

    def size(self, inputs: Mapping[str, Array]) -> Array:
        """Return what orders runs for a hold-out: the log of the product of sizes, as compute."""
        total = np.zeros(len(next(iter(inputs.values()))))
        for name in COMPUTE_FACTORS:
            if name in self.inputs:
                total = total + np.log(inputs[name])
        return total if total.any() else np.log(inputs[self.inputs[0]])

    def internal(self, parameters: Array) -> Array:
        """Return internal (log) parameters (..., p) of parameters in the units of the data."""
        logs = [p.amplitude or p.log for p in self.parameters]
        with np.errstate(divide="ignore"):
            return np.where(
                logs, np.log(np.where(logs, np.maximum(parameters, 0.0), 1.0)), parameters
            )

    def external(self, theta: Array) -> Array:
        """Return parameters in the units of the data of internal ones."""
        logs = [p.amplitude or p.log for p in self.parameters]
        return np.where(logs, np.exp(np.where(logs, theta, 0.0)), theta)

    def uncentred_external(self, theta: Array, centre: Array) -> Array:
        """Return parameters (B, p) in the units of the data of internal, centred ones."""
        return self.external(self.uncentre(theta, centre))

    def centred_internal(self, parameters: Array, centre: Array) -> Array:
        """Return internal, centred parameters (B, p) of those in the units of the data."""
        return self.uncentre(self.internal(parameters), -centre)

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return the input (k,) at which each curve of one size (k, p) reaches y (k,).

        Raises:
            ValueError: If this law has no inverse.
        """
        raise ValueError(f"{self.name}: no inverse; only curves of one size have one")

    def evaluate(self, inputs: Mapping[str, Array], parameters: Array) -> Array:
        """Return the outcome (..., n) at inputs (n,) for parameters (..., p)."""
        flat = np.atleast_2d(np.asarray(parameters, dtype=np.float64))
        with np.errstate(over="ignore", under="ignore"):
            curve = np.exp(self.log_values(self.features(inputs), self.internal(flat)))
        return np.asarray(curve.reshape(*np.shape(parameters)[:-1], curve.shape[1]))

    def evaluate_each(self, inputs: Mapping[str, Array], parameters: Array) -> Array:
        """Return the outcome (k, n) at inputs (k, n) for parameters (k, p), row i for row i.

        NaN where an input is.
        """
        known = np.asarray(np.isfinite([inputs[name] for name in self.inputs]).all(axis=0))
        found = np.full(known.shape, np.nan)
        for i, here in enumerate(known):
            if here.any():
                row = {name: inputs[name][i, here] for name in self.inputs}
                found[i, here] = self.evaluate(row, parameters[[i]])[0]
        return found


def _check_bounds(law: Law) -> None:
    """Raise unless the bounds of a law are values that its parameters can have."""
    fixed = {name for name, (low, high) in law.bounds.items() if low == high}
    internal = law.internal_bounds()
    for i, p in enumerate(law.parameters):
        if p.name not in law.bounds:
            continue
        if p.lower == p.upper and not p.amplitude:
            raise ValueError(f"{p.name}: this {law.name} knows it already; leave it out")
        free = [name for name in p.coupled_to if name not in fixed]
        if free:
            alone = [other.name for other in law.parameters if not other.coupled_to]
            raise ValueError(
                f"{p.name}: {law.name} can hold it only where {', '.join(free)} "
                f"{'is' if len(free) == 1 else 'are'} fixed, too; add {', '.join(free)} to fixed, "
                f"or hold one of {', '.join(alone)} instead"
            )
        ends = internal.copy()
        ends[:, i] = (-np.inf, np.inf) if p.amplitude else (p.lower, p.upper)
        with np.errstate(over="ignore", invalid="ignore"):
            lowest, highest = sorted(law.external(ends)[:, i].tolist())
        _check_range(p, law.bounds[p.name], internal[:, i], ends[:, i], (lowest, highest))


def _check_range(
    p: Parameter,
    given: tuple[float, float],
    internal: Array,
    ends: Array,
    allowed: tuple[float, float],
) -> None:
    """Raise unless given bounds, in internal values (2,) too, lie between a parameter's ends (2,).

    `allowed` are the ends in the units of the data.
    """
    (low, high), (lowest, highest) = given, allowed
    within = (
        low <= high
        and ends[0] - _ROUNDING <= internal[0]
        and internal[1] <= ends[1] + _ROUNDING
        and not (p.amplitude and (low < 0 or high == 0))
    )
    if low == high or np.isnan([low, high]).all():
        if not within or not np.isfinite([low, *internal]).all():
            words = f"from {lowest:g} to {highest:g}"
            if (lowest, highest) == (0.0, np.inf) and (p.amplitude or p.log):
                words = "greater than 0"
            elif np.isinf(highest):
                words = "a finite number" if np.isinf(lowest) else f"at least {lowest:g}"
            raise ValueError(f"{p.name}: must be {words} to be fixed, got {low:g}")
    elif not within:
        raise ValueError(
            f"{p.name}: bounds must be ascending and within {lowest:g}..{highest:g}, "
            f"got {low:g}..{high:g}"
        )


def without_views(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with dicts in place of read-only views, which cannot be pickled."""
    return {k: dict(v) if isinstance(v, MappingProxyType) else v for k, v in state.items()}


def as_law(law: Law | str) -> Law:
    """Return a law, or the one of that name in `analysis/laws`.

    Raises:
        ValueError: If there is none of that name; the message lists them.
    """
    if isinstance(law, Law):
        return law
    # By name: laws import this folder.
    found: Law = importlib.import_module("analysis.laws.registry").law_named(law)
    return found


class LinearScaleLaw(Law):
    """A law of an outcome that may be zero or negative, fitted in the outcome's own units."""

    default_objective = SQUARED_ERROR
    min_spare = 1
    allow_singular = True

    @abstractmethod
    def values(self, features: Array, theta: Array) -> Array:
        """Return y (B, n) for internal parameters (B, p)."""

    @abstractmethod
    def jacobian(self, features: Array, theta: Array) -> Array:
        """Return dy / d theta (B, p, n)."""

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return ln y; an outcome of zero or less has none and counts as the smallest number."""
        return np.asarray(np.log(np.maximum(self.values(features, theta), 1e-300)))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return d ln y / d theta."""
        values = np.maximum(self.values(features, theta), 1e-300)
        return np.asarray(self.jacobian(features, theta) / values[:, None, :])

    def evaluate(self, inputs: Mapping[str, Array], parameters: Array) -> Array:
        """Return the outcome (..., n) at inputs (n,) for parameters (..., p)."""
        flat = np.atleast_2d(np.asarray(parameters, dtype=np.float64))
        curve = self.values(self.features(inputs), self.internal(flat))
        return np.asarray(curve.reshape(*np.shape(parameters)[:-1], curve.shape[1]))


class LawProblem:
    """A law on one data set, as the optimiser sees it: centred, with bounds, the outcome scaled.

    Attributes:
        y: (n,) outcomes to explain: their logarithms, or the outcomes over `y_unit`.
        y_unit: Units of the residuals per scaled unit.
        lower: (p,) of the internal parameters.
        upper: (p,).
        features: (n_features, n), centred.
        weights: (n,) how much each run counts.
        log_y: (n,) logarithms of the outcomes, for starts and bounds.
    """

    def __init__(
        self,
        law: Law,
        inputs: Mapping[str, Array],
        y: Array,
        objective: Objective,
        weights: Array | None = None,
    ) -> None:
        self.law = law
        self.weights = np.ones(len(y)) if weights is None else weights
        raw = law.features(inputs)
        self._centre = law.centre(raw)
        moved = bool(law.bounds) and self._centring_moves(law.bounds)
        if moved:
            # A bound of such a parameter would be a bent surface in centred ones.
            self._centre = np.zeros_like(self._centre)
        self.features = raw - self._centre[:, None]
        self._of_log = objective.residual == "log"
        self._offset = objective.offset
        if self._of_log and not self._offset:
            self.log_y = np.log(y)
            self.y_unit, self.y = 1.0, self.log_y
        elif self._of_log:
            self.log_y = np.log(np.maximum(y, 1e-3 * self._offset))
            self.y_unit, self.y = 1.0, np.log(y + self._offset)
        else:
            self.log_y = np.log(np.maximum(y, max(SMALLEST_OUTCOME * float(y.max()), 1e-300)))
            # Divided, never shifted: an amplitude that must not be negative stays so.
            self.y_unit = float(np.ptp(y)) or 1.0
            self.y = y / self.y_unit
        units = [self.y_unit if p.linear else 1.0 for p in law.parameters]
        self._units: Array = np.asarray(units, dtype=np.float64)
        lower, upper = law.limits(self.features, self.log_y)
        if moved:
            upper = np.where([p.amplitude for p in law.parameters], _MOST_LOG, upper)
        self.lower, self.upper = lower / self._units, upper / self._units
        self._restrict()

    def _centring_moves(self, names: Collection[str]) -> bool:
        """Return whether a parameter of these depends on where the features are centred."""
        ones = np.ones((1, len(self.law.parameters)))
        moves = self.law.uncentre(ones, self._centre)[0] != 1.0
        return any(m and p.name in names for p, m in zip(self.law.parameters, moves, strict=True))

    def _restrict(self) -> None:
        """Narrow `lower` and `upper` to the bounds of the law."""
        for i, (low, high) in enumerate((self.law.internal_bounds() / self._units).T):
            if low == high or low > self.upper[i] or high < self.lower[i]:
                # Where the runs alone would have the parameter elsewhere, what is given counts.
                self.lower[i] = high - VANISHING if np.isinf(low) else low
                self.upper[i] = low + VANISHING if np.isinf(high) else high
            elif not np.isnan(low):
                self.lower[i], self.upper[i] = max(self.lower[i], low), min(self.upper[i], high)

    def values(self, theta: Array) -> Array:
        """Return predictions (B, n), scaled as `y`."""
        if self._of_log:
            logs = self.law.log_values(self.features, theta)
            if not self._offset:
                return logs
            return np.log(np.exp(np.minimum(logs, _MOST_LOG)) + self._offset)
        return self.law.values(self.features, theta * self._units) / self.y_unit

    def jacobian(self, theta: Array) -> Array:
        """Return derivatives (B, n, p), a view of (B, p, n)."""
        if self._of_log:
            slopes = self.law.log_jacobian(self.features, theta)
            if self._offset:
                values = np.exp(np.minimum(self.law.log_values(self.features, theta), _MOST_LOG))
                slopes = slopes * (values / (values + self._offset))[:, None, :]
            return slopes.transpose(0, 2, 1)
        slopes = self.law.jacobian(self.features, theta * self._units)
        return (slopes * (self._units / self.y_unit)[:, None]).transpose(0, 2, 1)

    def log_jacobian(self, theta: Array) -> Array:
        """Return derivatives (n, p) of ln y at theta (p,)."""
        theta = theta * self._units
        slopes = self.law.log_jacobian(self.features, theta[None, :])[0]
        return np.asarray(slopes.T * self._units)

    def starts(self) -> Array:
        """Return starting points (S, p), inside the bounds."""
        return np.clip(self.law.starts(self) / self._units, self.lower, self.upper)

    def unscale(self, theta: Array) -> Array:
        """Return parameters (B, p) in the units of the data; an amplitude at its bound is zero."""
        raw = self.law.uncentred_external(theta * self._units, self._centre)
        given = {name for name, (low, _) in self.law.bounds.items() if low > 0}
        may_vanish = [p.amplitude and p.name not in given for p in self.law.parameters]
        gone = may_vanish & (theta <= self.lower)
        return np.where(gone, 0.0, raw)

    def scale(self, parameters: Array) -> Array:
        """Return internal, centred parameters (B, p), inside the bounds: `unscale` reversed."""
        theta = self.law.centred_internal(parameters, self._centre) / self._units
        return np.clip(theta, self.lower, self.upper)

    def bounds_met(self, theta: Array) -> list[str]:
        """Return a phrase for every free parameter of theta (p,) that rests on its bound.

        Not for a bound that the runs reach.
        """
        phrases = []
        reported = self.unscale(theta[None, :])[0]
        for p, value, shown, low, high in zip(
            self.law.parameters, theta, reported, self.lower, self.upper, strict=True
        ):
            if low == high:
                continue
            given = np.isclose(shown, self.law.bounds.get(p.name, ()), rtol=1e-9, atol=0.0).any()
            slack = 1e-9 * max(1.0, high - low if np.isfinite(high - low) else 1.0)
            if value <= low + slack:
                phrases.append(
                    f"{p.name} is at its bound {shown:g}: {_GIVEN if given else p.at_lower}"
                )
            elif value >= high - slack:
                if not given and self.law.reaches(p.name, self.features, np.exp(self.log_y)):
                    continue
                phrases.append(
                    f"{p.name} is at its bound {shown:g}: {_GIVEN if given else p.at_upper}"
                )
        return phrases

    def constant_inputs(self) -> bool:
        """Whether a feature never varies: its parameter could not be told from an amplitude."""
        constant = np.ptp(self.features, axis=1) <= 1e-12
        constant[list(self.law.may_be_constant)] = False
        return bool(constant.any())


def spread_starts(law: Law, problem: LawProblem) -> Array:
    """Return N_STARTS points (S, p) over the starting ranges, the same for the same law."""
    columns = []
    level = float(problem.log_y.mean())
    places = latin_hypercube(N_STARTS, len(law.parameters)).T
    for p, place, low, high in zip(
        law.parameters, places, problem.lower, problem.upper, strict=True
    ):
        if p.amplitude:
            columns.append(level - 0.3 - 2.5 * place)
        else:
            first, last = max(p.start[0], low), min(p.start[1], high)
            columns.append(first + (last - first) * place)
    return np.column_stack(columns)


def grid_starts(loss: Array, n_minima: int, n_spread: int) -> NDArray[np.int64]:
    """Return the places on a grid to start from, flat: its lowest local minima, and an even spread.

    Args:
        loss: On the grid, any number of dimensions.
        n_minima: Most minima; a plateau of equal values would count every cell as one.
        n_spread: Places from end to end of the flat grid.
    """
    lowest = loss  # of each cell and its neighbours, corners too
    for axis in range(loss.ndim):
        line = np.pad(np.moveaxis(lowest, axis, -1), [(0, 0)] * (loss.ndim - 1) + [(1, 1)])
        line[..., 0] = line[..., -1] = np.inf
        nearest = np.fmin(np.fmin(line[..., :-2], line[..., 1:-1]), line[..., 2:])
        lowest = np.moveaxis(nearest, -1, axis)
    minima = np.flatnonzero(loss == lowest)
    chosen = minima[np.argsort(loss.ravel()[minima])][:n_minima]
    spread = np.linspace(0, loss.size - 1, n_spread).round().astype(int)
    return np.unique(np.concatenate([chosen, spread]))


def spread_over(parameters: Sequence[Parameter], n_points: int) -> Array:
    """Return points (n_points, p), evenly spread over the parameters' starting ranges."""
    low, high = np.asarray([p.start for p in parameters]).T
    return np.asarray(low + (high - low) * latin_hypercube(n_points, len(low)))


def latin_hypercube(n_points: int, n_dimensions: int) -> Array:
    """Return points (n_points, n_dimensions) of the unit cube, evenly spread on every axis.

    The seed is fixed, so that equal data give equal starts.
    """
    generator = np.random.default_rng(0)
    columns = [
        (generator.permutation(n_points) + generator.random(n_points)) / n_points
        for _ in range(n_dimensions)
    ]
    return np.stack(columns, axis=1) if columns else np.empty((n_points, 0))
