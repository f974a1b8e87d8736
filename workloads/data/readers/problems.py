"""Errors in input files, collected with their places and raised together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

SHOWN = 20
"""Problems written out in a message; the rest is counted."""
LINES = 5
"""Lines named of a problem that many lines have."""


class DataError(ValueError):
    """Input files that cannot be used.

    The message has one line per mistake: file:line: what; what to do.
    """

    def __init__(
        self, problems: Sequence[str], total: int | None = None, *, repeated: int = 0
    ) -> None:
        """Keep the first problems, how many there were in all, and how many of them say the same.

        Those are not written out.
        """
        self.problems = tuple(problems[:SHOWN])
        self.total = len(problems) if total is None else total
        lines = list(self.problems)
        more = self.total - repeated - len(self.problems)
        if more:
            lines.append(f"... and {more:,} more, {self.total:,} in all")
        super().__init__("\n".join(lines))


class NetworkError(DataError):
    """Files of the hub that were not reached: what was read of them before is as good as ever."""


class Problems:
    """Collects mistakes while a file is read to its end."""

    def __init__(self) -> None:
        """Start without any."""
        self._shown: dict[tuple[str, str, str], list[int | None]] = {}
        """File, mistake and fix -> the first lines that have it."""
        self._lines = Counter[tuple[str, str, str]]()
        """How many have it."""
        self._counts = Counter[str]()

    @property
    def total(self) -> int:
        """Mistakes so far."""
        return self._counts.total()

    def add(self, file: object, line: int | None, message: str, fix: str) -> None:
        """Note one mistake of a file; line is 1-based, None if the mistake has no line."""
        self._counts[str(file)] += 1
        key = (str(file), message, fix)
        if key in self._shown or len(self._shown) < SHOWN:
            self._lines[key] += 1
            if self._lines[key] <= LINES:
                self._shown.setdefault(key, []).append(line)

    def add_damage(self, file: object, line: int, message: str) -> None:
        """Note that a file cannot be read on, in place of its other mistakes, which follow from it.

        A damaged stream gives lines of nonsense before its check sum is reached.
        """
        del self._counts[str(file)]
        for key in [key for key in self._shown if key[0] == str(file)]:
            del self._shown[key], self._lines[key]
        self.add(file, line, message, "copy the file again")

    def raise_if_any(self) -> None:
        """Raise DataError if anything was added."""
        if self.total:
            repeated = sum(self._lines[key] - 1 for key in self._shown)
            written = [_problem(*key, of, self._lines[key]) for key, of in self._shown.items()]
            raise DataError(written, self.total, repeated=repeated)


def _problem(file: str, message: str, fix: str, lines: Sequence[int | None], n_lines: int) -> str:
    place = file if lines[0] is None else f"{file}:{lines[0]}"
    also = ", ".join(map(str, lines[1:])) + ", …" * (n_lines > LINES)
    again = f" (in {n_lines:,} lines, also {also})" if n_lines > 1 else ""
    return f"{place}: {message}{again}; {fix}"


def refuse_trained_on(
    train: Mapping[str, str],
    held_out: Mapping[str, str],
    *,
    fields: tuple[str, str] = ("data.path", "data.valid_path"),
) -> None:
    """Raise DataError naming every held-out file that is trained on, too.

    Args:
        train: Name of each file to train on -> what tells its content from others.
        held_out: The same of the held-out files.
        fields: What names the former and the latter, for a message.
    """
    trained = {content: name for name, content in train.items()}
    problems = []
    for name, content in held_out.items():
        other = trained.get(content)
        if other is not None:
            copy = f", as {other}" if other != name else ""
            problems.append(
                f"{fields[1]}: {name} is trained on too{copy}; name the files of {fields[0]} "
                "without it, or move it elsewhere"
            )
    if problems:
        raise DataError(problems)


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
