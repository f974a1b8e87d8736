"""Over-training law with one exponent, L = E + (a M^eta + b M^-eta) C^-eta.

The loss of models trained on more or fewer tokens than optimal. M = D/N is the token multiplier and
C = 6 N D the compute, so the two terms are a (6 N^2)^-eta and b (6 D^2)^-eta. This is the
Chinchilla form with equal exponents, in the coefficients of the paper. Source: Gadre et al. 2024,
equation 4 (scaling law for over-training).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term

Array = NDArray[np.float64]


def _params(inputs: Mapping[str, Array]) -> Array:
    return np.asarray(-np.log(6 * inputs["params"] ** 2))


def _tokens(inputs: Mapping[str, Array]) -> Array:
    return np.asarray(-np.log(6 * inputs["tokens"] ** 2))


OVERTRAINING = SumOfPowers(
    name="overtraining",
    equation="L = E + (a·M^eta + b·M^-eta)·C^-eta, M = D/N, C = 6·N·D",
    source="Gadre et al. 2024, equation 4",
    inputs=("params", "tokens"),
    terms=(Term("a", {"eta": _params}), Term("b", {"eta": _tokens}), Term("E")),
    exponents=(
        Parameter("eta", upper=2.5, start=(0.02, 0.6), at_lower="the loss falls with neither size"),
    ),
    order=("E", "a", "b", "eta"),
    example={"E": 1.83665, "a": 212.236, "b": 366.687, "eta": 0.136425},
    at_zero={"E": "these runs show no floor, do not extrapolate to one"},
)
