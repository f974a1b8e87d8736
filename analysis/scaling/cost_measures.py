"""Cost measures of training and decoding, each a fitted function of model size.

A cost is a sum of non-negative powers of the sizes, fitted in relative error to the runs' own
column: per token of training for FLOPs and seconds, per model for bytes and parameters. An output
head grows with the square root of N, blocks with N, the keys of a memory with the square root of
M. So an architecture is priced by what its runs took, not by C = 6 N D. The coefficients are not
negative, so the cost never falls with size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.laws.sum_of_powers import non_negative_squares

Array = NDArray[np.float64]


TRACE = 1e-6
"""Share of every run's cost below which a term is none."""


@dataclass(frozen=True, kw_only=True)
class CostMeasure:
    """A quantity in which architectures are held equal."""

    name: str
    column: str
    """Of the table of runs."""
    label: str
    """For axes and sentences."""
    with_tokens: bool
    """Whether it grows with training tokens, or is a property of the model."""


_ALL = (
    # name, column, label, with_tokens
    ("flops", "training_flops", "training FLOPs", True),
    ("seconds", "train_seconds", "measured training seconds", True),
    ("bytes_moved", "bytes_read_per_token", "bytes read per decoded token", False),
    ("stored_bytes", "stored_bytes", "stored bytes", False),
    ("active_params", "active_params", "active parameters", False),
    ("total_params", "total_params", "stored parameters", False),
)
COST_MEASURES: Mapping[str, CostMeasure] = MappingProxyType(
    {
        name: CostMeasure(name=name, column=column, label=label, with_tokens=with_tokens)
        for name, column, label, with_tokens in _ALL
    }
)

COST_ERROR = 0.5
"""Relative error of a fitted cost from which on it says nothing about other sizes."""

BYTES_PER_PARAM = 2.0
"""Of a stored weight (bf16), where a table has stored parameters and no stored bytes."""

POWERS = ((0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (0.0, 0.5), (0.0, 1.0))
"""Of N and M in the terms of a cost."""


def cost_measure(name: str) -> CostMeasure:
    """Return the measure of that name.

    Raises:
        ValueError: If there is none; the message lists them.
    """
    if name not in COST_MEASURES:
        raise ValueError(f"measure: no {name!r}; there are {', '.join(COST_MEASURES)}")
    return COST_MEASURES[name]


def cost_terms(params: Array, memory: Array) -> Array:
    """Return the terms of a cost (5, ...) at sizes N and M of one shape."""
    return np.stack([params**p * memory**q for p, q in POWERS])


def fit_cost(params: Array, memory: Array, amount: Array, weights: Array) -> Array:
    """Return non-negative coefficients (k, 5) of the cost nearest in relative error.

    Args:
        params: N of each run (n,).
        memory: M of each run (n,), zero without one.
        amount: What a run took (n,), per token if it grows with tokens.
        weights: (k, n) how often each run counts in each of k fits.
    """
    columns = cost_terms(params, memory) / amount
    root = np.sqrt(weights)[:, None, :]
    found = non_negative_squares(columns * root, root)
    # A trace of a term, left by rounding, would make a constant cost grow.
    return np.where((found[:, :, None] * columns).max(axis=2) < TRACE, 0.0, found)


def cost_at(coefficients: Array, params: Array, memory: Array) -> Array:
    """Return the cost of sizes N and M of one shape."""
    return np.asarray(np.tensordot(coefficients, cost_terms(params, memory), axes=1))


def largest_error(coefficients: Array, params: Array, memory: Array, amount: Array) -> float:
    """Return the largest relative error of a fitted cost (5,) among the runs (n,)."""
    return float(np.abs(cost_at(coefficients, params, memory) / amount - 1).max())


def why_rough(name: str, error: float) -> str | None:
    """Return why a cost of that largest error cannot be held equal, None where it can."""
    if error <= COST_ERROR:
        return None
    return (
        f"what sizes of {name} take is no smooth function of size in these runs"
        f" (off by {error:.0%} at most)"
    )
