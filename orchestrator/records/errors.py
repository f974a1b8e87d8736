"""The errors that memscale raises on purpose.

    ExperimentError            anything the user can act on; the CLI prints it without a traceback
    ├── ConfigError            a sweep file is wrong: holds one ConfigProblem each      exit code 2
    ├── UsageError             a command was asked for what cannot be done               exit code 2
    ├── StoreError             the state of record or the tracker is unreadable          exit code 1
    │   └── NotFoundError      no sweep, trial or attempt is called so                   exit code 2
    ├── BusyError              somebody else's controller holds this sweep               exit code 3
    └── MovedError             the sweep's folder was moved or removed while it ran      exit code 4

A bad value of a config field is a `workloads.field_error.FieldError`, any other bad argument a
plain ValueError; `sweep/parsing/validation.py` turns the former into a ConfigProblem with file,
line and column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class ExperimentError(Exception):
    """Something the user can act on. The message says where, what is wrong and what to do."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class ConfigProblem:
    """One mistake in a sweep file."""

    file: Path
    line: int | None
    """1-based; None when the mistake has no place in the file (an unreadable file)."""
    column: int | None
    key: str
    """Dotted path of the key as written, e.g. `trials[1].grid.model.knn`."""
    message: str
    """What is wrong and the value that was met."""
    fix: str
    """What to write instead."""

    def __str__(self) -> str:
        place = str(self.file)
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        where = f"{place}: {self.key}" if self.key else place
        # The key ends in the field that a rule begins with: `train.lr: must be positive`.
        field = self.key.rpartition(".")[2].partition("[")[0]
        said = self.message.removeprefix(f"{field} ")
        message = said if field and said.startswith("must ") else self.message
        return f"{where}: {message}; {self.fix}" if self.fix else f"{where}: {message}"


class ConfigError(ExperimentError):
    """A sweep file holds mistakes; every one of them is in `problems`."""

    exit_code = 2

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        """Keep the problems in file order."""
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(ExperimentError):
    """A command was asked for what cannot be done."""

    exit_code = 2


class StoreError(ExperimentError):
    """The state of record or the tracker cannot be read or written."""


class NotFoundError(StoreError):
    """There is no sweep, trial, attempt or tracker of the name that was given."""

    exit_code = 2


class BusyError(ExperimentError):
    """Another live controller holds the sweep."""

    exit_code = 3


class MovedError(ExperimentError):
    """The folder of a sweep was moved or removed while its controller ran."""

    exit_code = 4


def not_installed(error: ModuleNotFoundError, extra: str) -> UsageError:
    """Return the error that names a missing package and the extra that brings it."""
    return UsageError(
        f"the Python package {error.name!r} is not installed; pip install 'memscale[{extra}]'"
    )
