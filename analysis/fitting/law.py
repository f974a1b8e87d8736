"""What a law of several sizes is, and what the optimiser sees of it.

A law gives the logarithm of the outcome and its derivatives as a function of features (logarithms of the inputs, or
what else the equation is made of) that are centred on the runs, because raw amplitudes and exponents correlate near
one. Amplitudes are fitted as logarithms. Everything else (starts, bounds, resampling, status, intervals, hold-out) is
the same for every law: `analysis/fitting/multistart.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.objective import Objective

Array = NDArray[np.float64]

VANISHING = 16.0
"""An amplitude this many e-folds below the smallest outcome (1e-7 of it) counts as its bound, zero."""


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
    """Fitted as its logarithm without being an amplitude; lower, upper and start are then of the logarithm."""


class Law(ABC):
    """A family of surfaces; stateless, so one object serves all data."""

    name: str
    equation: str
    source: str
    inputs: tuple[str, ...]
    """Columns of the runs it needs, all positive unless `may_be_zero`."""
    may_be_zero: tuple[str, ...] = ()
    """Inputs that zero is a value of: memory of a dense model."""
    may_be_constant: tuple[int, ...] = ()
    """Feature rows that may be the same in all runs without leaving a parameter undetermined."""
    example: Mapping[str, float]
    """Coefficients to make synthetic runs with: those of the source, where it prints them."""
    parameters: tuple[Parameter, ...]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """In the order of the equation."""
        return tuple(p.name for p in self.parameters)

    @property
    def n_free(self) -> int:
        """Parameters that are fitted."""
        return sum(p.lower < p.upper or p.amplitude for p in self.parameters)

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
        """Return the internal parameters (B, p) of the same surface for features that are not shifted by `centre` (n_features,)."""

    def centre(self, features: Array) -> Array:
        """Return what is subtracted from each feature (n_features,)."""
        return np.asarray(features.mean(axis=1))

    def limits(self, features: Array, log_y: Array) -> tuple[Array, Array]:
        """Return the bounds (p,), (p,) of the internal parameters for centred features."""
        low, high = float(log_y.min()) - VANISHING, float(log_y.max()) + 1.0
        return (
            np.asarray([low if p.amplitude else p.lower for p in self.parameters]),
            np.asarray([high if p.amplitude else p.upper for p in self.parameters]),
        )

    def starts(self, problem: "LogProblem") -> Array:
        """Return starting points (S, p): spread over the starting ranges, every amplitude a like share of the outcome."""
        return spread_starts(self, problem, 64)

    def size(self, inputs: Mapping[str, Array]) -> Array:
        """Return what orders runs from small to large for a hold-out: the product of sizes, so 6 N D is in order of compute."""
        total = np.zeros(len(next(iter(inputs.values()))))
        for name in ("params", "tokens", "n_active", "compute"):
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

    def evaluate(self, inputs: Mapping[str, Array], parameters: Array) -> Array:
        """Return the outcome (..., n) at inputs (n,) for parameters (..., p)."""
        flat = np.atleast_2d(np.asarray(parameters, dtype=np.float64))
        with np.errstate(over="ignore", under="ignore"):
            curve = np.exp(self.log_values(self.features(inputs), self.internal(flat)))
        return np.asarray(curve.reshape(*np.shape(parameters)[:-1], curve.shape[1]))


class LogProblem:
    """A law on one data set, as `analysis/fitting/multistart.py` sees it: centred, with bounds."""

    def __init__(
        self, law: Law, inputs: Mapping[str, Array], y: Array, objective: Objective
    ) -> None:
        self.law = law
        raw = law.features(inputs)
        self._centre = law.centre(raw)
        self.features = raw - self._centre[:, None]
        self.log_y = np.log(y)
        self._of_log = objective.residual == "log"
        self.y_unit = 1.0 if self._of_log else float(np.exp(self.log_y.mean()))
        self.y = self.log_y if self._of_log else y / self.y_unit
        self.lower, self.upper = law.limits(self.features, self.log_y)

    def values(self, theta: Array) -> Array:
        """Return ln y, or y over its geometric mean, (B, n)."""
        log_values = self.law.log_values(self.features, theta)
        if self._of_log:
            return log_values
        curve: Array = np.exp(np.minimum(log_values, 700.0)) / self.y_unit
        return curve

    def jacobian(self, theta: Array) -> Array:
        """Return derivatives (B, n, p), a view of (B, p, n)."""
        slopes = self.law.log_jacobian(self.features, theta)
        if not self._of_log:
            slopes = slopes * self.values(theta)[:, None, :]
        return slopes.transpose(0, 2, 1)

    def starts(self) -> Array:
        """Return starting points (S, p), inside the bounds."""
        return np.clip(self.law.starts(self), self.lower, self.upper)

    def best_on_grid(self, weights: Array) -> Array | None:
        """Return None: a resample starts from the best of a pool that the engine keeps."""
        return None

    def unscale(self, theta: Array) -> Array:
        """Return parameters (B, p) in the units of the data; an amplitude at its lower bound is zero."""
        raw = self.law.external(self.law.uncentre(theta, self._centre))
        gone = [p.amplitude for p in self.law.parameters] & (theta <= self.lower)
        return np.where(gone, 0.0, raw)

    def scale(self, parameters: Array) -> Array:
        """Return internal, centred parameters (B, p), inside the bounds, of parameters in the units of the data."""
        return np.clip(
            self.law.uncentre(self.law.internal(parameters), -self._centre), self.lower, self.upper
        )

    def bounds_met(self, theta: Array) -> list[str]:
        """Return a phrase for every free parameter of theta (p,) that rests on its bound."""
        phrases = []
        for p, value, low, high in zip(
            self.law.parameters, theta, self.lower, self.upper, strict=True
        ):
            if low == high:
                continue
            slack = 1e-9 * max(1.0, high - low)
            if value <= low + slack:
                shown = 0.0 if p.amplitude else float(np.exp(low)) if p.log else low
                phrases.append(f"{p.name} is at its bound {shown:g}: {p.at_lower}")
            elif value >= high - slack:
                shown = float(np.exp(high)) if p.amplitude or p.log else high
                phrases.append(f"{p.name} is at its bound {shown:g}: {p.at_upper}")
        return phrases

    def constant_inputs(self) -> bool:
        """Whether a feature is the same for all runs, so that its parameter cannot be told from an amplitude."""
        constant = np.ptp(self.features, axis=1) <= 1e-12
        constant[list(self.law.may_be_constant)] = False
        return bool(constant.any())


def spread_starts(law: Law, problem: LogProblem, n_starts: int) -> Array:
    """Return `n_starts` points (S, p) over the starting ranges, the same for the same law (Latin hypercube, fixed seed)."""
    generator = np.random.default_rng(0)
    columns = []
    level = float(problem.log_y.mean())
    for p, low, high in zip(law.parameters, problem.lower, problem.upper, strict=True):
        place = (generator.permutation(n_starts) + generator.random(n_starts)) / n_starts
        if p.amplitude:
            columns.append(level - 0.3 - 2.5 * place)
        else:
            first, last = max(p.start[0], low), min(p.start[1], high)
            columns.append(first + (last - first) * place)
    return np.column_stack(columns)
