"""Correction of p-values for multiple comparisons: Holm's step-down procedure.

Source: Holm 1979, "A simple sequentially rejective multiple test procedure". It needs no
independence, and rejects whatever Bonferroni's correction does.
"""

from collections.abc import Iterable, Sequence

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
    """Return Holm's p-value of each difference that has a p-value, None for the others.

    The correction is for all that have several seeds. Were those left out whose seeds do not
    differ, results would decide how many comparisons there are.
    """
    adjusted = iter(holm([1.0 if d.p is None else d.p for d in differences if _counts(d)]))
    corrected = [next(adjusted) if _counts(d) else None for d in differences]
    return [None if d.p is None else p for d, p in zip(differences, corrected, strict=True)]


def n_corrected(differences: Iterable[MeanEstimate]) -> int:
    """Return for how many comparisons `holm_corrected` corrects; 0 where none has a p-value."""
    counted = [d for d in differences if _counts(d)]
    return len(counted) if any(d.p is not None for d in counted) else 0


def _counts(difference: MeanEstimate) -> bool:
    return difference.p is not None or min(difference.n_seeds, default=1) > 1
