"""Candidate of an experimental design: a trial that could be run next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A trial that could be run next."""

    name: str
    architecture: str
    inputs: Mapping[str, float]
    """The law's inputs, such as `{"params": 1e9, "tokens": 2e10}`."""
    gpu_hours: float
    """Of all its seeds; core-hours if `unit` says so."""
    n_seeds: int = 1
    n_seeds_done: int = 0
    """Seeds of the same configuration that are among the runs: this one adds to them."""
    trials: Sequence[Any] = ()
    """What it stands for, handed through: planned trials, one per seed."""
    unit: Literal["GPU-hours", "core-hours"] = "GPU-hours"
    """Of `gpu_hours`; the same for all candidates of a design."""

    def __post_init__(self) -> None:
        problem = None
        if not (math.isfinite(self.gpu_hours) and self.gpu_hours > 0):
            problem = f"gpu_hours must be positive, got {self.gpu_hours}"
        elif self.n_seeds < 1:
            problem = f"n_seeds must be at least 1, got {self.n_seeds}"
        elif self.n_seeds_done < 0:
            problem = f"n_seeds_done must not be negative, got {self.n_seeds_done}"
        if problem:
            raise ValueError(f"candidate {self.name}: {problem}")


def as_candidate(given: Candidate | Mapping[str, Any], number: int) -> Candidate:
    """Return a candidate, or the one whose fields are given.

    Args:
        given: A candidate, or a dict of its fields.
        number: Its place in the list, for messages.

    Raises:
        ValueError: If a field is missing or unknown; the message says what is needed.
    """
    if isinstance(given, Candidate):
        return given
    needed = [f.name for f in fields(Candidate) if f.default is MISSING]
    unknown = sorted(set(given) - {f.name for f in fields(Candidate)})
    missing = [name for name in needed if name not in given]
    problems = []
    if missing:
        problems.append(f"{', '.join(missing)} missing")
    if unknown:
        problems.append(f"{', '.join(unknown)} unknown")
    if not isinstance(given.get("inputs", {}), Mapping):
        problems.append(f"inputs must be a dict, got {given['inputs']!r}")
    if problems:
        sizes = ", ".join(f"{name!r}: {given[name]!r}" for name in unknown) or "'params': 1e9, …"
        raise ValueError(
            f"candidates, number {number} (from 0): {'; '.join(problems)}; give "
            f"{', '.join(needed)}, with the law's inputs in inputs={{{sizes}}}"
        )
    return Candidate(**given)
