"""Overfitting law of the loss: Chinchilla's and a penalty for repeated tokens.

    L = E + A/N^alpha + B/D^beta + P·r^delta·(N/U)^kappa

U is the number of unique tokens, and r = D/U - 1 how often they are repeated. The penalty grows
with repetitions and with parameters per unique token, so more training may raise the loss, which it
cannot in `data_constrained`. After Lovelace et al. 2026 (arXiv 2605.01640), who add a penalty that
is a power law of these two. With tokens that are never repeated it is Chinchilla's law.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log

Array = NDArray[np.float64]

FEWEST_REPETITIONS = 1e-9
"""Stands for none, so that there is a logarithm."""


@dataclass(frozen=True)
class _LogRepetitions:
    """ln r; a class, since fits are pickled with their law."""

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        repetitions = inputs["tokens"] / inputs["unique_tokens"] - 1
        return np.asarray(np.log(np.maximum(repetitions, FEWEST_REPETITIONS)))


@dataclass(frozen=True)
class _LogParamsPerToken:
    """ln(N/U)."""

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        return np.asarray(np.log(inputs["params"] / inputs["unique_tokens"]))


OVERFITTING = SumOfPowers(
    name="overfitting",
    equation="L = E + A/N^alpha + B/D^beta + P·r^delta·(N/U)^kappa, r = D/U - 1",
    source="after Lovelace et al. 2026",
    inputs=("params", "tokens", "unique_tokens"),
    terms=(
        Term("A", {"alpha": minus_log("params")}),
        Term("B", {"beta": minus_log("tokens")}),
        Term("E"),
        Term("P", {"delta": _LogRepetitions(), "kappa": _LogParamsPerToken()}),
    ),
    exponents=(
        Parameter("alpha", at_lower="the loss does not fall with parameters"),
        Parameter("beta", at_lower="the loss does not fall with tokens"),
        Parameter("delta", lower=0.1, start=(0.2, 1.5), at_lower="no growth with repetitions"),
        Parameter("kappa", start=(0.2, 1.5), at_lower="no growth with parameters per token"),
    ),
    example={
        "A": 406.4,
        "B": 410.7,
        "E": 1.69,
        "P": 0.05,
        "alpha": 0.34,
        "beta": 0.28,
        "delta": 0.5,
        "kappa": 0.7,
    },
    at_zero={"P": "repeated tokens are not overfitted"},
)
