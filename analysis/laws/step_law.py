"""Best learning rate and batch by size, eta = c/N^a·D^b and B = k·D^m (Step Law).

The outcome is the setting that gave the lowest loss of its size (`outcome="lr"` or
`outcome="batch_tokens"`), one row per size and number of tokens. Source: Li et al. 2025
(Predictable Scale I: Step Law), whose coefficients are the examples. They hold for its models and
its schedule; the exponents are what other sweeps may compare.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log

Array = NDArray[np.float64]


def _log_tokens(inputs: Mapping[str, Array]) -> Array:
    return np.log(inputs["tokens"])


LEARNING_RATE = SumOfPowers(
    name="learning_rate",
    equation="eta = c·N^-a·D^b",
    source="Li et al. 2025, Predictable Scale I (Step Law)",
    inputs=("params", "tokens"),
    terms=(Term("c", {"a": minus_log("params"), "b": _log_tokens}),),
    exponents=(
        Parameter("a", lower=-3.0, upper=3.0, start=(0.0, 1.0)),
        Parameter("b", lower=-3.0, upper=3.0, start=(-0.5, 0.5)),
    ),
    outcome="lr",
    example={"c": 1.79, "a": 0.713, "b": 0.307},
)

BATCH_TOKENS = SumOfPowers(
    name="batch_tokens",
    equation="B = k·D^m",
    source="Li et al. 2025, Predictable Scale I (Step Law)",
    inputs=("tokens",),
    terms=(Term("k", {"m": _log_tokens}),),
    exponents=(Parameter("m", lower=-3.0, upper=3.0, start=(0.0, 1.0)),),
    outcome="batch_tokens",
    example={"k": 0.58, "m": 0.571},
)
