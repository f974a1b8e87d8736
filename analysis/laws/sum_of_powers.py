"""Sums of power-law terms, y = sum of amplitude x product of sizes to exponents.

Most scaling laws are of this kind (a posynomial in the sizes). In ln y the sum is a log-sum-exp,
which never overflows, and the derivatives are the shares of the terms. The amplitudes enter
linearly: for every choice of exponents the best non-negative ones have a closed form (variable
projection, Golub and Pereyra 1973), so starts are searched over the exponents alone.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter, spread_over

Array = NDArray[np.float64]
Feature = Callable[[Mapping[str, Array]], Array]
"""Inputs (n,) to what an exponent multiplies in ln(term), (n,): minus the logarithm of a size."""

_N_STARTS_1D, _N_STARTS_2D, _N_STARTS = 25, 8, 96


@dataclass(frozen=True)
class Term:
    """amplitude x exp(sum of exponent x feature)."""

    amplitude: str
    powers: Mapping[str, Feature] = field(default_factory=dict)


class SumOfPowers(Law):
    """A law given by its terms. Exponents may occur in several terms (tied)."""

    def __init__(
        self,
        *,
        name: str,
        equation: str,
        source: str,
        inputs: tuple[str, ...],
        terms: tuple[Term, ...],
        exponents: tuple[Parameter, ...],
        example: Mapping[str, float],
        order: tuple[str, ...] | None = None,
        at_zero: Mapping[str, str] | None = None,
        may_be_zero: tuple[str, ...] = (),
        outcome: str = "loss",
    ) -> None:
        self.name, self.equation, self.source = name, equation, source
        self.inputs, self.may_be_zero, self.terms = inputs, may_be_zero, terms
        self.example, self.outcome = example, outcome
        said = at_zero or {}
        amplitudes = {
            t.amplitude: Parameter(
                t.amplitude,
                amplitude=True,
                at_lower=said.get(t.amplitude, "these runs do not show this term"),
            )
            for t in terms
        }
        known = amplitudes | {p.name: p for p in exponents}
        names = order or tuple(known)
        for what, given in (("order", names), ("example", example)):
            if set(given) != set(known):
                raise ValueError(f"{name}: {what} must name {sorted(known)}, got {sorted(given)}")
        self.parameters = tuple(known[n] for n in names)
        place = {n: i for i, n in enumerate(names)}
        self._amplitude = [place[t.amplitude] for t in terms]
        self._powers = [[(place[n], f) for n, f in t.powers.items()] for t in terms]
        self._slots: list[list[tuple[int, int]]] = []
        """Per term: (parameter, feature row)."""
        count = itertools.count()
        for powers in self._powers:
            self._slots.append([(i, next(count)) for i, _ in powers])

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return one row per (term, exponent)."""
        rows = [f(inputs) for powers in self._powers for _, f in powers]
        n = len(next(iter(inputs.values())))
        return np.asarray(rows, dtype=np.float64).reshape(len(rows), n)

    def evaluate_each(self, inputs: Mapping[str, Array], parameters: Array) -> Array:
        """Return the outcome (k, n) at inputs (k, n), all rows at once."""
        flat = self.features({name: inputs[name].ravel() for name in self.inputs})
        features = flat.reshape(len(flat), *inputs[self.inputs[0]].shape)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.exp(self.log_values(features, self.internal(parameters))))

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return the log-sum-exp of the terms (B, n).

        Features are the same for all rows of theta (n_features, n), or each has its own
        (n_features, B, n).
        """
        logs = self._log_terms(features, theta)
        top = logs[0]
        for log in logs[1:]:
            top = np.maximum(top, log)
        total = np.exp(logs[0] - top)
        for log in logs[1:]:
            total += np.exp(log - top)
        return np.asarray(top + np.log(total))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return shares of terms, times features for exponents, (B, p, n)."""
        logs = self._log_terms(features, theta)
        top = logs[0]
        for log in logs[1:]:
            top = np.maximum(top, log)
        shares = [np.exp(log - top) for log in logs]
        scale = 1.0 / sum(shares[1:], start=shares[0])
        J = np.empty((len(theta), theta.shape[1], features.shape[1]))
        written = set()
        for amplitude, slots, share in zip(self._amplitude, self._slots, shares, strict=True):
            np.multiply(share, scale, out=J[:, amplitude])
            for parameter, row in slots:
                if parameter in written:
                    J[:, parameter] += J[:, amplitude] * features[row]
                else:
                    np.multiply(J[:, amplitude], features[row], out=J[:, parameter])
                    written.add(parameter)
        return J

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Return theta with every amplitude moved to feature zero."""
        moved = theta.copy()
        for amplitude, slots in zip(self._amplitude, self._slots, strict=True):
            for parameter, row in slots:
                moved[:, amplitude] -= theta[:, parameter] * centre[row]
        return moved

    def starts(self, problem: LawProblem) -> Array:
        """Return a grid over the exponents, each point with its best non-negative amplitudes."""
        exponents = [i for i, p in enumerate(self.parameters) if not p.amplitude]
        ranges = [self.parameters[i].start for i in exponents]
        if not exponents:
            grid = np.empty((1, 0))
        elif len(exponents) <= 2:
            n = _N_STARTS_1D if len(exponents) == 1 else _N_STARTS_2D
            axes = [np.linspace(*r, n) for r in ranges]
            grid = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)
        else:
            grid = spread_over([self.parameters[i] for i in exponents], _N_STARTS)
        theta = np.zeros((len(grid), len(self.parameters)))
        theta[:, exponents] = grid
        return self.project(problem, theta)

    def project(self, problem: LawProblem, theta: Array) -> Array:
        """Return theta (S, p) with the best amplitudes for its exponents, in relative error.

        This is variable projection.
        """
        shapes = theta.copy()
        shapes[:, self._amplitude] = 0.0
        columns = np.exp(
            np.stack(self._log_terms(problem.features, shapes), axis=1) - problem.log_y
        )  # (S, terms, n), in units of y: relative errors
        shapes[:, self._amplitude] = log_amplitudes(columns)
        return shapes

    def _log_terms(self, features: Array, theta: Array) -> list[Array]:
        n = features.shape[-1]
        logs = []
        for amplitude, slots in zip(self._amplitude, self._slots, strict=True):
            log = theta[:, amplitude, None]
            for parameter, row in slots:
                log = log + theta[:, parameter, None] * features[row]
            logs.append(log if slots else np.repeat(log, n, axis=1))
        return logs


def log_amplitudes(columns: Array) -> Array:
    """Return ln of the best amplitudes (S, k) of terms (S, k, n), each a share of the outcome.

    A vanished term would stay so, where its slope is nothing: it gets a little to come back from.
    """
    smallest = 1e-3 / np.maximum(columns.mean(axis=2), 1e-300)
    return np.asarray(np.log(np.maximum(non_negative_squares(columns), smallest)))


def non_negative_squares(columns: Array, target: Array | float = 1.0) -> Array:
    """Return the non-negative amplitudes (S, k) of columns (S, k, n) nearest to a target.

    Exact: the minimum is the best of the unconstrained ones over subsets of columns that come out
    non-negative (Lawson and Hanson 1974, theorem 23.4); k is at most 6 here, so all subsets are
    tried.

    Args:
        columns: What is summed.
        target: (n,), (S, 1, n), or one number for all.
    """
    n_sets, k, _ = columns.shape
    size = np.sqrt(np.einsum("skn,skn->sk", columns, columns))
    unit = columns / np.maximum(size, 1e-300)[:, :, None]
    gram = unit @ unit.transpose(0, 2, 1)
    products = (unit * target).sum(axis=2)
    best = np.zeros((n_sets, k))
    lowest = np.zeros(n_sets)  # relative to no column at all
    for subset in itertools.chain.from_iterable(
        itertools.combinations(range(k), r) for r in range(1, k + 1)
    ):
        chosen = np.asarray(subset)
        system = gram[:, chosen[:, None], chosen] + 1e-12 * np.eye(len(chosen))
        solution = np.linalg.solve(system, products[:, chosen, None])[:, :, 0]
        gain = -0.5 * np.einsum("sk,sk->s", solution, products[:, chosen])
        better = (solution >= 0).all(axis=1) & (gain < lowest)
        lowest = np.where(better, gain, lowest)
        filled = np.zeros((n_sets, k))
        filled[:, chosen] = solution
        best = np.where(better[:, None], filled, best)
    return np.asarray(best / np.maximum(size, 1e-300))


def minus_log(name: str) -> Feature:
    """Return the feature of a size to a negative power."""
    return _MinusLog(name)


@dataclass(frozen=True)
class _MinusLog:
    """A class, not a function inside one: fits are pickled with their law."""

    name: str

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        return np.asarray(-np.log(inputs[self.name]))
