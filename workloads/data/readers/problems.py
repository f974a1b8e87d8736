"""Errors in input files, collected with their places and raised together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

SHOWN = 20
"""Problems written out in a message; the rest is counted."""


class DataError(ValueError):
    """Input files that cannot be used.

    The message has one line per mistake: file:line: what; what to do.
    """

    def __init__(self, problems: Sequence[str], total: int | None = None) -> None:
        """Keep the first problems and how many there were in all."""
        self.problems = tuple(problems[:SHOWN])
        self.total = len(problems) if total is None else total
        lines = list(self.problems)
        if self.total > len(self.problems):
            lines.append(f"... and {self.total - len(self.problems):,} more, {self.total:,} in all")
        super().__init__("\n".join(lines))


class NetworkError(DataError):
    """Files of the hub that were not reached: what was read of them before is as good as ever."""


class Problems:
    """Collects mistakes while a file is read to its end."""

    def __init__(self) -> None:
        """Start without any."""
        self._shown: list[str] = []
        self._counts = Counter[str]()

    @property
    def total(self) -> int:
        """Mistakes so far."""
        return self._counts.total()

    def add(self, file: object, line: int | None, message: str, fix: str) -> None:
        """Note one mistake of a file; line is 1-based, None if the mistake has no line."""
        self._counts[str(file)] += 1
        if len(self._shown) < SHOWN:
            place = f"{file}:{line}" if line is not None else str(file)
            self._shown.append(f"{place}: {message}; {fix}")

    def add_damage(self, file: object, line: int, message: str) -> None:
        """Note that a file cannot be read on, in place of its other mistakes, which follow from it.

        A damaged stream gives lines of nonsense before its check sum is reached.
        """
        del self._counts[str(file)]
        self._shown = [one for one in self._shown if not one.startswith(f"{file}:")]
        self.add(file, line, message, "copy the file again")

    def raise_if_any(self) -> None:
        """Raise DataError if anything was added."""
        if self.total:
            raise DataError(self._shown, self.total)


def require_files(
    named: Mapping[str, Path | tuple[Path, ...]], expected: str, *, section: str = "data."
) -> None:
    """Raise DataError naming every file that does not exist, with the format that is expected.

    Args:
        named: Field of the data section -> files.
        expected: What the file should look like (`Config.FORMAT`).
        section: Before the field in a message; empty for an argument of a command.
    """
    problems = []
    for field, paths in named.items():
        for path in paths if isinstance(paths, tuple) else (paths,):
            if not path.is_file():
                what = "is a folder" if path.is_dir() else "does not exist"
                problems.append(f"{section}{field}: {path} {what}; expected: {expected}")
    if problems:
        raise DataError(problems)
