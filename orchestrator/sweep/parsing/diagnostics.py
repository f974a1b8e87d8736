"""Diagnostics of a sweep file: one per place and subject, counted over its trials."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.records.errors import ConfigError, ConfigProblem

Kind = Literal["value", "missing", "combination"]
"""value: what is written there is wrong, whatever the trial. missing: something that should be in
the mapping written there. combination: wrong together with the trial's other values."""

Place = tuple[int | None, int | None, Kind, str, str]


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One mistake, before the file's name is known."""

    line: int | None
    column: int | None
    key: str
    message: str
    fix: str
    kind: Kind = "value"
    about: str = ""
    """The architecture, where several in one place make a mistake each."""

    def of(self, architecture: str) -> "Diagnostic":
        """Return the same, said of this architecture alone."""
        return replace(self, message=f"{architecture}: {self.message}", about=architecture)


class InvalidError(Exception):
    """A part of a sweep file is wrong."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        """Keep everything that is wrong with the part."""
        super().__init__(*diagnostics)
        self.diagnostics = diagnostics


@contextmanager
def collecting(wrong: list[Diagnostic]) -> Iterator[None]:
    """Append the diagnostics of an InvalidError to `wrong`, and go on after the block."""
    try:
        yield
    except InvalidError as error:
        wrong += error.diagnostics


class Diagnostics:
    """The diagnostics of one file: the first of each place, kind and subject; others are counted.

    A wrong value in the base of a sweep meets every trial. Its reader wants to hear of it once.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._first: dict[Place, tuple[Diagnostic, str]] = {}
        self._met: dict[Place, int] = {}

    def add(self, diagnostics: Iterable[Diagnostic], *, trial: str = "") -> None:
        """Keep what is new; `trial` says which entry of the sweep met it."""
        for diagnostic in diagnostics:
            # Several things may be missing in one place; a written value is wrong once.
            missing = diagnostic.key if diagnostic.kind == "missing" else ""
            place = (
                diagnostic.line,
                diagnostic.column,
                diagnostic.kind,
                missing,
                diagnostic.about,
            )
            self._first.setdefault(place, (diagnostic, trial))
            self._met[place] = self._met.get(place, 0) + bool(trial)

    def error(self, file: Path, *, trials: int) -> ConfigError:
        """Return everything in file order; a combination says how many of the trials meet it."""
        problems = []
        for place, (diagnostic, trial) in self._first.items():
            message = diagnostic.message
            if diagnostic.kind == "combination" and trial and self._met[place] < trials:
                message += f" (in {self._met[place]} of {trials} trials, first {trial})"
            problems.append(
                ConfigProblem(
                    file=file,
                    line=diagnostic.line,
                    column=diagnostic.column,
                    key=diagnostic.key,
                    message=message,
                    fix=diagnostic.fix,
                )
            )
        return ConfigError(sorted(problems, key=lambda p: (p.line or 0, p.column or 0)))
