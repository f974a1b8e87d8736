"""Power law with an irreducible term, y = E + A x^-alpha, against one size.

Source: Hestness et al. 2017 (learning curves); Henighan et al. 2020, equation 1.1, where
(x0/x)^alpha stands for A x^-alpha. POWER is fitted in relative error like the laws of several
sizes, `PowerLaw` in the units of the outcome, as curves of a sweep are.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import LawProblem, LinearScaleLaw, Parameter, grid_starts
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log, non_negative_squares

Array = NDArray[np.float64]

ALPHA_RANGE = (0.01, 10.0)
"""Below, a power law is a straight line in log x and E is meaningless; above, it is a step."""

_NO_FLOOR = "these runs show no floor, do not extrapolate to one"
_N_GRID, _N_MINIMA, _N_SPREAD = 97, 16, 8

POWER = SumOfPowers(
    name="power",
    equation="y = E + A/x^alpha",
    source="Henighan et al. 2020, equation 1.1",
    inputs=("x",),
    terms=(Term("A", {"alpha": minus_log("x")}), Term("E")),
    exponents=(Parameter("alpha", start=(0.02, 1.5), at_lower="the outcome does not fall with x"),),
    example={"A": 400.0, "E": 1.7, "alpha": 0.35},
    at_zero={"E": _NO_FLOOR},
)


class PowerLaw(LinearScaleLaw):
    """y = E + A x^-alpha with E >= 0 and A >= 0, in the units of y.

    E and A are fitted as they are: in their logarithms, the valley of a straight line in log x is
    too narrow to follow.
    """

    name = "power_law"
    equation = "y = E + A·x^(-alpha)"
    source = "Henighan et al. 2020, equation 1.1"
    inputs = ("x",)
    parameters = (
        Parameter("E", upper=np.inf, linear=True, at_lower=_NO_FLOOR),
        Parameter("A", upper=np.inf, linear=True, at_lower="the outcome does not fall with x"),
        Parameter(
            "alpha",
            lower=ALPHA_RANGE[0],
            upper=ALPHA_RANGE[1],
            at_lower="over these sizes the curve is a straight line in log x",
            at_upper="only the smallest size differs from the rest",
        ),
    )
    example = MappingProxyType({"E": 1.7, "A": 400.0, "alpha": 0.35})

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return -ln x."""
        return -np.log(inputs["x"])[None, :]

    def values(self, features: Array, theta: Array) -> Array:
        """Return E + A x^-alpha."""
        return np.asarray(theta[:, :1] + theta[:, 1:2] * np.exp(theta[:, 2:] * features[0]))

    def jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by E, A and alpha."""
        power = np.exp(theta[:, 2:] * features[0])
        return np.stack([np.ones_like(power), power, theta[:, 1:2] * power * features[0]], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move A to x = 1."""
        moved = theta.copy()
        moved[:, 1] *= np.exp(-theta[:, 2] * centre[0])
        return moved

    def evaluate(self, inputs: Mapping[str, Array], parameters: Array) -> Array:
        """Return E + A x^-alpha; logarithms are joined first, since x^-alpha alone underflows."""
        E, A, alpha = (np.asarray(parameters)[..., i, None] for i in range(3))
        with np.errstate(divide="ignore"):
            return np.asarray(E + np.exp(np.log(A) - alpha * np.log(inputs["x"])))

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return x = (A / (y - E))^(1 / alpha) of each curve (k, 3); inf where y is at most E."""
        E, A, alpha = parameters.T
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_x = (np.log(A) - np.log(np.maximum(y - E, 0.0))) / alpha
            return np.where(y > E, np.exp(log_x), np.inf)

    def starts(self, problem: LawProblem) -> Array:
        """Return points of a grid over alpha, each with its best E and A, not negative.

        Both enter linearly, so they have a closed form (variable projection, Golub and Pereyra
        1973).
        """
        alpha = np.geomspace(*ALPHA_RANGE, _N_GRID)
        power = np.exp(alpha[:, None] * problem.features[0])
        y = problem.y * problem.y_unit
        basis = np.stack([np.ones_like(power), power], axis=1)
        amplitudes = non_negative_squares(basis, y)
        loss = ((np.einsum("sk,skn->sn", amplitudes, basis) - y) ** 2).sum(axis=1)
        chosen = grid_starts(loss, _N_MINIMA, _N_SPREAD)
        return np.column_stack([amplitudes, alpha])[chosen]
