"""Power law with an irreducible term, y = E + A x^-alpha: loss or answer NLL against parameters or FLOPs.

Source of the form: Hestness et al. 2017 (learning curves); Henighan et al. 2020, equation 1.1 (their (x0/x)^alpha is A x^-alpha).
E and A enter linearly, so for every alpha the best pair has a closed form (variable projection, Golub and Pereyra
1973): the search for starts is over alpha alone, and the polish over all three has exact derivatives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.curve import CurveFit
from analysis.fitting.curve_fit import fit_curve

Array = NDArray[np.float64]

ALPHA_RANGE = (0.01, 10.0)
"""Below, a power law is a straight line in log x and E is meaningless; above, it is a step."""

_N_GRID = 97
_N_SPREAD_STARTS = 8


@dataclass(frozen=True)
class PowerLaw:
    """y = E + A x^-alpha with E >= 0 and A >= 0."""

    name: str = "power_law"
    equation: str = "y = E + A·x^(-alpha)"
    parameter_names: tuple[str, ...] = ("E", "A", "alpha")
    n_free: int = 3

    def evaluate(self, x: Array, parameters: Array) -> Array:
        """Return E + A x^-alpha."""
        E, A, alpha = (parameters[..., i, None] for i in range(3))
        # exp(log A - alpha log x): A alone overflows nothing, but x^-alpha of 1e20 FLOPs underflows.
        with np.errstate(divide="ignore"):
            curve: Array = E + np.exp(np.log(A) - alpha * np.log(x))
        return curve

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return x = (A / (y - E))^(1 / alpha); inf where y is at or below E."""
        E, A, alpha = parameters[:, 0], parameters[:, 1], parameters[:, 2]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            x: Array = np.where(
                y > E, np.exp((np.log(A) - np.log(np.maximum(y - E, 0.0))) / alpha), np.inf
            )
        return x

    def scaled(self, x: Array, y: Array) -> "_Scaled":
        """Return the law with x over its geometric mean and y over its spread."""
        return _Scaled(x, y)


class _Scaled:
    def __init__(self, x: Array, y: Array) -> None:
        log_x = np.log(x)
        self._log_unit = float(log_x.mean())
        self._log_u = log_x - self._log_unit
        # E >= 0 in the units of the data must stay E >= 0 here: y is divided, never shifted.
        self.y_unit = float(np.ptp(y))
        self.y = y / self.y_unit
        self.lower = np.asarray([0.0, 0.0, ALPHA_RANGE[0]])
        self.upper = np.asarray([np.inf, np.inf, ALPHA_RANGE[1]])
        self._alphas = np.geomspace(*ALPHA_RANGE, _N_GRID)
        self._basis = np.exp(-self._alphas[:, None] * self._log_u)  # (grid, n)

    def values(self, theta: Array) -> Array:
        curve: Array = theta[:, :1] + theta[:, 1:2] * np.exp(-theta[:, 2:] * self._log_u)
        return curve

    def jacobian(self, theta: Array) -> Array:
        power = np.exp(-theta[:, 2:] * self._log_u)
        return np.stack([np.ones_like(power), power, -theta[:, 1:2] * power * self._log_u], axis=-1)

    def starts(self) -> Array:
        loss, amplitudes = self._profile(np.ones((1, len(self.y))))
        padded = np.concatenate([[np.inf], loss[0], [np.inf]])
        minima = np.flatnonzero((padded[1:-1] <= padded[:-2]) & (padded[1:-1] <= padded[2:]))
        spread = np.linspace(0, _N_GRID - 1, _N_SPREAD_STARTS).round().astype(int)
        chosen = np.unique(np.concatenate([minima, spread]))
        return np.column_stack([amplitudes[0, chosen], self._alphas[chosen]])

    def best_on_grid(self, weights: Array) -> Array:
        loss, amplitudes = self._profile(weights)
        best = loss.argmin(axis=1)
        return np.column_stack([amplitudes[np.arange(len(best)), best], self._alphas[best]])

    def unscale(self, theta: Array) -> Array:
        E, A, alpha = theta[:, 0], theta[:, 1], theta[:, 2]
        return np.column_stack(
            [E * self.y_unit, A * self.y_unit * np.exp(alpha * self._log_unit), alpha]
        )

    def bounds_met(self, theta: Array) -> list[str]:
        phrases = []
        if theta[0] <= 1e-9 * float(self.y.max()):
            phrases.append(
                "E is at its bound 0: these runs show no floor, do not extrapolate to one"
            )
        if theta[2] <= ALPHA_RANGE[0] * (1 + 1e-9):
            phrases.append(
                f"alpha is at its bound {ALPHA_RANGE[0]}: over these sizes the curve is a straight line in log x"
            )
        if theta[2] >= ALPHA_RANGE[1] * (1 - 1e-9):
            phrases.append(
                f"alpha is at its bound {ALPHA_RANGE[1]}: only the smallest size differs from the rest"
            )
        return phrases

    def _profile(self, weights: Array) -> tuple[Array, Array]:
        """Return sum of squares (B, grid) and the best E, A >= 0 (B, grid, 2) for every alpha of the grid."""
        phi = self._basis / self._basis.max(
            axis=1, keepdims=True
        )  # keeps the sums in range; undone at the end
        s0 = weights.sum(axis=1)[:, None]
        s1, s2 = weights @ phi.T, weights @ (phi**2).T
        t0, t1 = (weights @ self.y)[:, None], weights @ (phi * self.y).T
        determinant = s0 * s2 - s1**2
        safe = np.where(determinant > 1e-14 * s0 * s2, determinant, np.inf)
        E, A = (s2 * t0 - s1 * t1) / safe, (s0 * t1 - s1 * t0) / safe
        # Non-negative least squares in two unknowns: the corner cases in order.
        no_floor = np.maximum(t1 / s2, 0.0)
        no_slope = np.broadcast_to(np.maximum(t0 / s0, 0.0), A.shape)
        candidates = np.stack(
            [
                np.stack(
                    [
                        np.where((E >= 0) & (A >= 0), E, no_slope),
                        np.where((E >= 0) & (A >= 0), A, 0.0),
                    ]
                ),
                np.stack([np.zeros_like(A), no_floor]),
                np.stack([no_slope, np.zeros_like(A)]),
            ]
        )
        e, a = candidates[:, 0], candidates[:, 1]
        loss = e**2 * s0 + 2 * e * a * s1 + a**2 * s2 - 2 * e * t0 - 2 * a * t1
        pick = loss.argmin(axis=0)[None]
        chosen_e, chosen_a = (np.take_along_axis(part, pick, axis=0)[0] for part in (e, a))
        amplitudes = np.stack([chosen_e, chosen_a / self._basis.max(axis=1)], axis=-1)
        return np.take_along_axis(loss, pick, axis=0)[0], amplitudes


def fit_power_law(
    x: ArrayLike,
    y: ArrayLike,
    *,
    clusters: Sequence[Any] | None = None,
    huber: float | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    hold_out: bool = True,
) -> CurveFit:
    """Fit y = E + A x^-alpha, E and A not negative. Arguments and errors: `analysis.fitting.curve_fit.fit_curve`."""
    return fit_curve(
        PowerLaw(),
        x,
        y,
        clusters=clusters,
        huber=huber,
        n_draws=n_draws,
        seed=seed,
        level=level,
        hold_out=hold_out,
    )
