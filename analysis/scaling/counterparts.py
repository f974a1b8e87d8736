"""Counterparts: configurations that `match` made equal to each other.

The table says of each trial what `match` held equal, to what, and what it solved for:
`match.step_time`, `match.solve`. The cost that was reached stands there only where it is counted.
"""

import math
from collections.abc import Sequence
from typing import Any

from analysis.scaling.configuration_costs import Configuration
from analysis.scaling.cost_measures import CostMeasure
from orchestrator.records.varied_settings import SIZES

STEP_TIME = CostMeasure(
    name="step_time",
    column="training_flops",
    label="step time (matched within 5 %)",
    with_tokens=True,
)
"""Held equal when the sweep was planned, within 1 % or the uncertainty of at most 5 %.

No column has it; sizes are ordered by training FLOPs."""

TRAINING_TIME = CostMeasure(
    name="training_time",
    column="training_flops",
    label="training time (matched within 5 %)",
    with_tokens=True,
)
"""Step time times steps, where `match` solved for the tokens."""

TIMED = (STEP_TIME, TRAINING_TIME)

QUANTITIES = {
    "flops": "training_flops",
    "active_params": "active_params",
    "total_params": "total_params",
    "bytes_moved": "bytes_per_token",
    "step_time": "step_time",
    "training_time": "step_time",
}
"""Cost measure to the key of `match` that holds it equal."""


MOST_GAP = math.log(1.5)
"""Where there are several lengths: measured seconds of counterparts differ by less, ln, though GPUs
are shared. Without it a trial whose counterpart is missing would get that of another length."""


def held_to(one: Configuration, measure: CostMeasure) -> str | None:
    """Return the model or number to which `match` made a cost equal, None if it did not.

    A model is `dense`, or, where the sweep file writes its section, `dense 3m; d_ff 512`.
    """
    if measure in TIMED and one.solved_tokens != (measure == TRAINING_TIME):
        return None
    return one.match.get(QUANTITIES.get(measure.name, ""))


def architecture_of(held: str) -> str:
    """Return the architecture of the model that a cost was held equal to."""
    return held.partition(";")[0].partition(" ")[0]


def is_counterpart(one: Configuration, other: Configuration, measure: CostMeasure) -> bool:
    """Return whether `match` made one equal to the other in a cost, or both to the same."""
    mine, theirs = held_to(one, measure), held_to(other, measure)
    if mine is not None and mine == theirs:
        # An architecture alone means that of the trial's own size.
        alone = mine == architecture_of(mine) and not _is_number(mine)
        matched = [one, other] if not alone or _same_size(one, other) else []
    else:
        matched = [
            first
            for first, second in ((one, other), (other, one))
            if _names(held_to(first, measure), first, second)
        ]
    same_length = one.tokens == other.tokens
    return bool(matched) and (same_length or any(c.solved_tokens for c in matched))


def _names(held: str | None, one: Configuration, other: Configuration) -> bool:
    """Return whether what one was held equal to is the other, before a match of its own."""
    if held is None or other.match or architecture_of(held) != other.architecture:
        return False
    if held == other.architecture:
        return _same_size(one, other)
    named, *fields = held.split("; ")
    _, _, preset = named.partition(" ")
    # What all configurations share stands in no column.
    written = {f"model.{key}": value for key, _, value in (f.partition(" ") for f in fields)}
    return preset in ("", other.preset) and all(
        _equal(other.settings.get(key), value)
        for key, value in written.items()
        if key in other.columns
    )


def _equal(cell: Any, written: str) -> bool:
    """Return whether a cell has a written value; its whole numbers may be floats."""
    try:
        return float(cell) == float(written)
    except (TypeError, ValueError):
        return str(list(cell) if isinstance(cell, tuple) else cell) == written


def counterpart(
    one: Configuration, there: Sequence[Configuration], measure: CostMeasure
) -> Configuration | None:
    """Return the counterpart in a cost that no column has, None if it is not there."""
    found = [c for c in there if is_counterpart(one, c, measure)]
    if len({c.tokens for c in found}) > 1:
        found = [c for c in found if _gap(one, c) < MOST_GAP]

    # It is the same trial but for its architecture. Others may have its preset and another width,
    # or better rates. Where several tokens were matched, seconds of training say which are whose.
    def distance(c: Configuration) -> tuple[int, int, float, str]:
        differing = _differing(one, c)
        return len(differing & SIZES), len(differing), _gap(one, c), c.name

    return min(found, key=distance, default=None)


def _same_size(one: Configuration, other: Configuration) -> bool:
    if one.preset is not None or other.preset is not None:
        return one.preset == other.preset
    both = one.settings.keys() & other.settings.keys()
    return not _differing(one, other) & SIZES & both


def _differing(one: Configuration, other: Configuration) -> set[str]:
    """Return the settings that differ, without those that `match` solved for."""
    keys = (one.settings.keys() | other.settings.keys()) - _solved(one) - _solved(other)
    return {key for key in keys if one.settings.get(key) != other.settings.get(key)}


def _solved(one: Configuration) -> set[str]:
    solved = one.match.get("solve")
    return {"train.tokens"} if one.solved_tokens else {f"model.{solved}"}


def _gap(one: Configuration, other: Configuration) -> float:
    """Return how far measured seconds are apart, in ln; 0 if not known."""
    pair = [c.costs.get("train_seconds", math.nan) for c in (one, other)]
    return abs(math.log(pair[0] / pair[1])) if all(second > 0 for second in pair) else 0.0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
