"""Loss of mixtures of experts against size, tokens and sparsity S.

S is the share of parameters that a token does not touch.

    L = e + a/N^alpha + b/D^beta + c/(1-S)^lambda + d/((1-S)^delta N^gamma)

N counts all parameters. Ten coefficients: it interpolates and hardly extrapolates (its authors'
held-out sparsity missed ten times as far as the fitted ones). Source: Abnar et al. 2025, equation
6.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log

Array = NDArray[np.float64]


def _minus_log_active(inputs: Mapping[str, Array]) -> Array:
    return np.asarray(-np.log1p(-inputs["sparsity"]))


SPARSITY = SumOfPowers(
    name="sparsity",
    equation="L = e + a/N^alpha + b/D^beta + c/(1-S)^lambda + d/((1-S)^delta·N^gamma)",
    source="Abnar et al. 2025, equation 6",
    inputs=("params", "tokens", "sparsity"),
    may_be_zero=("sparsity",),
    terms=(
        Term("a", {"alpha": minus_log("params")}),
        Term("b", {"beta": minus_log("tokens")}),
        Term("c", {"lambda": _minus_log_active}),
        Term("d", {"delta": _minus_log_active, "gamma": minus_log("params")}),
        Term("e"),
    ),
    exponents=(
        Parameter("alpha"),
        Parameter("beta"),
        Parameter("lambda", lower=-3.0, upper=3.0, start=(-1.0, 1.0)),
        Parameter("delta", lower=-3.0, upper=3.0, start=(-1.0, 1.0)),
        Parameter("gamma"),
    ),
    example={
        "a": 480.0,
        "b": 2000.0,
        "c": 0.2,
        "d": 60.0,
        "e": 1.5,
        "alpha": 0.35,
        "beta": 0.37,
        "lambda": -0.3,
        "delta": 0.4,
        "gamma": 0.22,
    },
)
