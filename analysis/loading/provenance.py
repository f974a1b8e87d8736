"""Provenance of trials: facts of their environments, counted where they differ."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_VALUES = 4
"""More different values than this (process ids, times) are only counted."""

MOST_CHARACTERS = 200
"""A diff of the code belongs into environment.json, not into a table."""


def common_facts(environments: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return every fact of the environment.json files once, keys joined by dots.

    Where trials differ, each value comes with the number of trials.
    """
    values: dict[str, dict[str, int]] = {}
    for environment in environments:
        for name, value in _leaves(environment):
            counts = values.setdefault(name, {})
            counts[value] = counts.get(value, 0) + 1
    return {name: _in_words(counts) for name, counts in values.items()}


def _in_words(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return _shortened(next(iter(counts)))
    if len(counts) > MOST_VALUES:
        return f"{len(counts)} different values"
    parts = [
        f"{_shortened(v)} ({n} {'trial' if n == 1 else 'trials'})"
        for v, n in sorted(counts.items())
    ]
    return "; ".join(parts)


def _shortened(value: str) -> str:
    return (
        value
        if len(value) <= MOST_CHARACTERS
        else f"{value[:MOST_CHARACTERS]}… ({len(value):,} characters)"
    )


def _leaves(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", _counted(value)
        elif value is not None:
            yield f"{prefix}{key}", str(value)


def _counted(values: Sequence[Any]) -> str:
    """Return the values, or of devices each name once: `2 x NVIDIA H100 80GB HBM3`."""
    if not all(isinstance(value, Mapping) and "name" in value for value in values):
        return ", ".join(map(str, values))
    counts = Counter(str(value["name"]) for value in values)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counts.items())
