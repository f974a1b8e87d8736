"""Correction of p-values for multiple comparisons: Holm's step-down procedure.

Source: Holm 1979, "A simple sequentially rejective multiple test procedure". It needs no
independence, and rejects whatever Bonferroni's correction does.
"""

from collections.abc import Sequence

from analysis.fitting.bootstrap import MeanEstimate


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given.

    The i-th smallest of m becomes the largest of (m - j + 1) p_(j) over j up to i, at most 1. All
    comparisons with an adjusted value below alpha together hold a false one with a probability of
    alpha at most.

    Raises:
        ValueError: If a value is no probability.
    """
    for p in p_values:
        if not 0 <= p <= 1:
            raise ValueError(f"p_values: must lie in 0..1, got {p}")
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = reached
    return adjusted


def holm_corrected(differences: Sequence[MeanEstimate]) -> list[float | None]:
    """Return Holm's p-value of each difference among all that have one, None for the others."""
    adjusted = iter(holm([d.p for d in differences if d.p is not None]))
    return [None if d.p is None else next(adjusted) for d in differences]
