"""Farseer law of the loss, whose exponent in tokens changes with the size.

    L = exp(s·N^q + S) + exp(B·N^b + Q)·D^-exp(A·N^a + E)

At every size it is a power law in tokens with a floor; floor, amplitude and exponent each follow a
stretched exponential in the size. It has nine coefficients, and needs four sizes or more, with
several token counts each. N and D count in 1e9 here. Source: Li et al. 2025 (Predictable Scale II:
Farseer).

Each stretched exponential is fitted by its value h0, its slope h1 and its bend q in u = ln N
(a Box-Cox transform): h0 + h1 (e^(q u) - 1) / q. As q goes to zero it becomes a power law in N, and
nothing diverges.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter, latin_hypercube

Array = NDArray[np.float64]

UNIT = 1e9
"""Of parameters and tokens. That of tokens is part of the law: in another unit it has other curves
(in ones, the source's runs of 25e9 parameters are predicted with R2 0.93 instead of 0.98)."""

LOG_TOKENS = float(np.log(10.0))
"""Tokens (in UNIT) at which the falling part's value and slope are fitted: there they do not trade
off with the exponent's."""

SMALLEST_BEND = 1e-6
"""A bend closer to zero is a power law, and counts as this."""

_N_STARTS = 96


class Farseer(Law):
    """Internal parameters: value, slope and bend of floor, amplitude and exponent.

    The amplitude's value and slope are those of the falling part at 1e10 tokens.
    """

    name = "farseer"
    equation = "L = exp(s·N^q + S) + exp(B·N^b + Q)·D^-exp(A·N^a + E)"
    source = "Li et al. 2025, Predictable Scale II (Farseer)"
    inputs = ("params", "tokens")
    parameters = (
        Parameter("S", lower=-60.0, upper=60.0, coupled_to=("s", "q")),
        Parameter("s", lower=-3.0, upper=3.0, coupled_to=("q",)),
        Parameter("q", lower=-1.5, upper=1.5, start=(0.05, 0.8)),
        Parameter("Q", lower=-60.0, upper=60.0, coupled_to=("B", "b", "E", "A", "a")),
        Parameter("B", lower=-3.0, upper=3.0, coupled_to=("b", "E", "A", "a")),
        Parameter("b", lower=-1.5, upper=1.5, start=(-0.6, -0.03)),
        Parameter("E", lower=-6.0, upper=2.0, start=(-1.5, -0.5), coupled_to=("A", "a")),
        Parameter("A", lower=-2.0, upper=2.0, start=(-0.3, 0.05), coupled_to=("a",)),
        Parameter("a", lower=-1.5, upper=1.5, start=(0.05, 0.6)),
    )
    example = MappingProxyType(
        {"S": 7.25, "s": -8.06, "q": 0.0138}
        | {"Q": 1.685, "B": -3.171, "b": -0.0398}
        | {"E": -2.229, "A": 0.994, "a": -0.159}
    )

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return ln N and ln D, both in UNIT."""
        return np.stack([np.log(inputs["params"] / UNIT), np.log(inputs["tokens"] / UNIT)])

    def centre(self, features: Array) -> Array:
        """Return the mean of ln N; the unit of tokens stays."""
        return np.asarray([features[0].mean(), 0.0])

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return ln(floor + falling part)."""
        floor, falling, _, _ = self._parts(features, theta)
        return np.asarray(np.logaddexp(floor, falling))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by all nine."""
        floor, falling, exponent, bends = self._parts(features, theta)
        total = np.logaddexp(floor, falling)
        of_floor, of_falling = np.exp(floor - total), np.exp(falling - total)
        slopes = _with_tokens(theta)[:, [1, 4, 7], None]
        (x, by_q), (y, by_b), (z, by_a) = bends
        # The amplitude holds what the exponent does at LOG_TOKENS.
        at_centre = np.exp(theta[:, 6, None]) * LOG_TOKENS
        by_exponent = -exponent * features[1]
        columns = [
            *(of_floor, of_floor * x, of_floor * slopes[:, 0] * by_q),
            *(of_falling, of_falling * y, of_falling * slopes[:, 1] * by_b),
            of_falling * (by_exponent + at_centre * (1 + theta[:, 7, None] * y)),
            of_falling * (by_exponent * z + at_centre * y),
            of_falling * by_exponent * slopes[:, 2] * by_a,
        ]
        return np.stack(columns, axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move values and slopes to ln N = 0."""
        moved = _with_tokens(theta)
        for i in (0, 3, 6):
            slope, bend = moved[:, i + 1].copy(), theta[:, i + 2]
            moved[:, i] += slope * np.expm1(-bend * centre[0]) / bend
            moved[:, i + 1] = slope * np.exp(-bend * centre[0])
        return _with_tokens(moved, back=True)

    def external(self, theta: Array) -> Array:
        """Return the coefficients of the equation."""
        raw = _with_tokens(theta)
        for i in (0, 3, 6):
            raw[..., i + 1] /= theta[..., i + 2]
            raw[..., i] -= raw[..., i + 1]
        return raw

    def internal(self, parameters: Array) -> Array:
        """The reverse of `external`."""
        theta = np.array(parameters, dtype=np.float64)
        for i in (0, 3, 6):
            theta[..., i] += parameters[..., i + 1]
            theta[..., i + 1] *= parameters[..., i + 2]
        return _with_tokens(theta, back=True)

    def starts(self, problem: LawProblem) -> Array:
        """Return points spread over bends and exponents, with floors below the runs."""
        places = latin_hypercube(_N_STARTS, 9).T
        spread = [
            p.start[0] + (p.start[1] - p.start[0]) * place
            for p, place in zip(self.parameters, places, strict=True)
        ]
        lowest = float(problem.log_y.min())
        spread[0] = lowest - 0.05 - 0.5 * places[0]
        spread[1] = -0.1 * places[1]
        spread[3] = lowest - 0.3 - 2.0 * places[3]
        spread[4] = -0.3 + 0.4 * places[4]
        return np.stack(spread, axis=1)

    def _parts(
        self, features: Array, theta: Array
    ) -> tuple[Array, Array, Array, list[tuple[Array, Array]]]:
        """Return ln floor, ln of the falling part, its exponent; each bend and its derivative."""
        u, log_tokens = features
        plain = _with_tokens(theta)
        bends = [_box_cox(u, theta[:, i, None]) for i in (2, 5, 8)]
        floor, amplitude, log_exponent = (
            plain[:, 3 * i, None] + plain[:, 3 * i + 1, None] * bends[i][0] for i in range(3)
        )
        exponent = np.exp(np.minimum(log_exponent, 50.0))
        return floor, amplitude - exponent * log_tokens, exponent, bends


def _with_tokens(theta: Array, *, back: bool = False) -> Array:
    """Return theta (..., 9) with the amplitude at 1e9 tokens instead of 1e10; or back."""
    moved = np.array(theta, dtype=np.float64)
    added = np.exp(theta[..., 6]) * (-LOG_TOKENS if back else LOG_TOKENS)
    moved[..., 3] += added
    moved[..., 4] += added * theta[..., 7]
    return moved


def _box_cox(u: Array, bend: Array) -> tuple[Array, Array]:
    """Return (e^(bend u) - 1) / bend and its derivative by the bend, (B, n)."""
    bend = np.where(np.abs(bend) < SMALLEST_BEND, SMALLEST_BEND, bend)
    product = np.clip(bend * u, -300.0, 300.0)
    shape = np.expm1(product) / bend
    # The difference below loses its digits where the product is small; there, its series.
    by_bend = np.where(
        np.abs(product) < 1e-3,
        u**2 * (0.5 + product / 3),
        (u * np.exp(product) - shape) / bend,
    )
    return shape, by_bend


FARSEER = Farseer()
