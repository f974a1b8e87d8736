"""Outcomes of a sweep: which it is about, and which way is better."""

import pandas as pd

from analysis.fitting.bootstrap import MeanEstimate
from analysis.loading.schema import OUTCOMES

LEAST_RECALL = 0.01
"""Range of factual recall among all runs below which it compares nothing: all know none, or all."""


def main_outcome(table: pd.DataFrame) -> str | None:
    """Return the outcome that a sweep is about: the first that every run has, and that differs."""
    order = ("factual_recall", "answer_nll", "loss", *OUTCOMES)
    there = [o for o in order if len(table) and o in table and table[o].notna().all()]
    recall = table["factual_recall"] if "factual_recall" in there else None
    if recall is not None and len(there) > 1 and recall.max() - recall.min() < LEAST_RECALL:
        there = there[1:]
    return next(iter(there), None)


def higher_is_better(outcome: str) -> bool:
    """Whether a larger value is a better model."""
    return outcome in {"factual_recall", "bits_per_param"}


def told_apart(difference: MeanEstimate, p_holm: float | None, outcome: str, level: float) -> str:
    """Return `better`, `worse`, `not told apart`, or `no interval` without a p-value."""
    if p_holm is None:
        return "no interval"
    if p_holm > 1 - level:
        return "not told apart"
    return "better" if (difference.value > 0) == higher_is_better(outcome) else "worse"
