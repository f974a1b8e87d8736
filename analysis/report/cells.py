"""Cells of tables: labels of outcomes and sizes, means with intervals, p-values."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from analysis.fitting.bootstrap import MeanEstimate
from analysis.formatting import Column, decimals

OUTCOME_LABELS = {
    "factual_recall": "factual recall",
    "answer_nll": "answer NLL (nats)",
    "bits_per_param": "bits per param",
    "loss": "loss (nats/token)",
}

SIZED_OUTCOMES = ("factual_recall", "answer_nll", "loss")
"""Outcomes with a curve against size; stored bits per parameter has none."""

X_LABELS = {
    "total_params": "total params",
    "training_flops": "training FLOPs",
    "active_params": "active params",
    "memory_params": "memory params",
}


def value_column(
    heading: str,
    name: str,
    show: Callable[[Any], str],
    *,
    get: Callable[[Any], Any] | None = None,
    numeric: bool = True,
) -> Column:
    """Return the column of one value, a dash where it is None or NaN.

    Args:
        heading: Of the column.
        name: Of the value in files.
        show: Value to its text.
        get: Item to the value; None: its attribute of that name.
        numeric: Whether to align right.
    """
    value_of = attrgetter(name) if get is None else get

    def cell(item: Any) -> str:
        value = value_of(item)
        return "–" if value is None or value != value else show(value)

    return Column(heading, cell, numeric, lambda item: {name: value_of(item)})


def estimate(value: MeanEstimate | None, *, interval: bool = True, signed: bool = False) -> str:
    """Return `0.412 [0.401, 0.423]`, to as many decimals as the interval bears."""
    if value is None:
        return "–"
    sign = "+" if signed else ""
    if value.low is None or value.high is None or not interval:
        return format(value.value, f"{sign}.{decimals(value.value)}f")
    # Bounds at a level of detail below 1 % of the width would pretend to know more.
    width = value.high - value.low
    digits = decimals(width, significant=2) if width > 0 else decimals(value.value)
    digits = min(digits, decimals(value.value, significant=4))
    ends = f"[{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"
    return f"{value.value:{sign}.{digits}f} {ends}"


def estimate_fields(name: str, value: MeanEstimate | None) -> dict[str, Any]:
    """Return an estimate and its interval by names."""
    found = (None, None, None) if value is None else (value.value, value.low, value.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))


def p_value(p: float | None) -> str:
    """Return a p-value as it is read."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"
