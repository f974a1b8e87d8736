"""Power law with an irreducible term, y = E + A x^-alpha: loss or answer NLL against one size.

Source: Hestness et al. 2017 (learning curves); Henighan et al. 2020, equation 1.1, where
(x0/x)^alpha stands for A x^-alpha.
"""

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log

Array = NDArray[np.float64]

ALPHA_RANGE = (0.01, 10.0)
"""Below, a power law is a straight line in log x and E is meaningless; above, it is a step."""


class PowerLaw(SumOfPowers):
    """y = E + A x^-alpha with E >= 0 and A >= 0."""

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return x = (A / (y - E))^(1 / alpha) of each curve (k, 3); inf where y is at or below E."""
        E, A, alpha = parameters.T
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_x = (np.log(A) - np.log(np.maximum(y - E, 0.0))) / alpha
            return np.where(y > E, np.exp(log_x), np.inf)


POWER = PowerLaw(
    name="power",
    equation="y = E + A·x^(-alpha)",
    source="Henighan et al. 2020, equation 1.1",
    inputs=("x",),
    terms=(Term("A", {"alpha": minus_log("x")}), Term("E")),
    exponents=(
        Parameter(
            "alpha",
            lower=ALPHA_RANGE[0],
            upper=ALPHA_RANGE[1],
            start=(0.02, 1.5),
            at_lower="over these sizes the curve is a straight line in log x",
            at_upper="only the smallest size differs from the rest",
        ),
    ),
    order=("E", "A", "alpha"),
    example={"E": 1.7, "A": 400.0, "alpha": 0.35},
    at_zero={"E": "these runs show no floor, do not extrapolate to one"},
)
