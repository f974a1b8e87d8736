"""Status filter by states and settings: `model.n_keys=256,state=failed`."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.control.status import SweepStatus
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, TrialState
from orchestrator.records.varied_settings import flat_settings

FIELDS = ("trial_id", "architecture", "preset", "seed", "state", "attempt", "outcome")
"""Fields of a trial's status to filter by, beside the settings of its spec."""
_CLOSED: dict[str, tuple[str, ...]] = {
    "state": tuple(state.value for state in TrialState),
    "outcome": tuple(outcome.value for outcome in Outcome),
}
"""Fields whose values are known beforehand: that no trial has one of them yet is no mistake."""
_NAMES = ("architecture", "preset", "model.architecture", "model.preset")
"""Fields that take one of the values that the sweep's trials have."""


def parse_filter(text: str) -> dict[str, list[str]]:
    """Return the values wanted by key; a key that is written twice wants one of its values.

    Raises:
        ValueError: If a part is not `key=value`.
    """
    wanted: dict[str, list[str]] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not key or not equals:
            raise ValueError(f"must be key=value, with commas between, got {part.strip()!r}")
        wanted.setdefault(key, []).append(value)
    return wanted


def select(
    sweep: SweepDir, status: SweepStatus, wanted: Mapping[str, Sequence[str]]
) -> SweepStatus:
    """Return the status of the trials that have one of the wanted values under every key.

    Raises:
        ValueError: If no trial has such a key, or one that takes names has no such value.
    """
    facts: list[dict[str, Any]] = []
    for trial in status.trials:
        fact = {name: getattr(trial, name) for name in FIELDS}
        # A spec holds what a preset stands for; sweep files also name it under `model`.
        fact |= {"model.architecture": trial.architecture, "model.preset": trial.preset}
        if not wanted.keys() <= set(FIELDS):
            fact |= flat_settings(sweep.trial(trial.trial_id).spec())
        facts.append(fact)
    known = {*FIELDS, *(key for fact in facts for key in fact)}
    for key in wanted:
        if facts and key not in known:
            near = [name for name in sorted(known) if name.rpartition(".")[2] == key]
            near = near or difflib.get_close_matches(key, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"no trial has {key!r}; {guess}take a setting of the sweep file (model.n_keys, "
                f"train.lr) or one of {', '.join(FIELDS)}"
            )
        if facts:
            _require_known(key, wanted[key], facts)
    kept = tuple(
        trial
        for trial, fact in zip(status.trials, facts, strict=True)
        if all(
            any(_matches(fact.get(key), text) for text in texts) for key, texts in wanted.items()
        )
    )
    return replace(status, trials=kept, hidden=len(status.trials) - len(kept))


def _require_known(key: str, texts: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state, outcome, architecture or preset that there is not."""
    if key in _NAMES:
        values = list(dict.fromkeys(fact.get(key) for fact in facts))
    elif key in _CLOSED:
        values = [*_CLOSED[key], *([None] if key == "outcome" else [])]
    else:
        return
    for text in texts:
        if not any(_matches(value, text) for value in values):
            names = ["none" if value is None else str(value) for value in values]
            near = difflib.get_close_matches(text.lower(), names, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            takes = f"take one of {', '.join(names)}" if len(names) > 1 else f"all have {names[0]}"
            raise ValueError(f"no trial has {key}={text}; {guess}{takes}")


def _matches(value: Any, text: str) -> bool:
    """Whether a value is what the text says: 3e-3 is 0.003, and on is true."""
    if value is None:
        return text.lower() in ("", "none", "null")
    if isinstance(value, bool):
        return text.lower() in (("true", "on") if value else ("false", "off"))
    if isinstance(value, int | float):
        try:
            return float(text) == value
        except ValueError:
            return False
    return str(value) == text
