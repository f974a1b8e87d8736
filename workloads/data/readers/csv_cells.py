"""Reader of CSV rows with the lines on which they begin."""

import csv
from collections.abc import Callable, Iterator

from workloads.data.readers.lines import InputFile, numbered_lines
from workloads.data.readers.problems import Problems


def csv_rows(
    path: InputFile, problems: Problems, log: Callable[[str], None]
) -> Iterator[tuple[int, list[str]]]:
    """Yield (1-based line on which a row begins, cells) of a file; blank lines have no cells."""
    yield from csv_cells(numbered_lines(path, problems), path, problems, log)


def csv_cells(
    lines: Iterator[tuple[int, str]],
    path: InputFile,
    problems: Problems,
    log: Callable[[str], None],
) -> Iterator[tuple[int, list[str]]]:
    """Yield the same of numbered lines; a line is taken when a row needs it.

    A quoted cell may hold line ends. `log` is told how many rows have them: a quote that is left
    open takes the rows up to the next quote into its cell. One that no later quote closes is a
    problem of the row's first line.
    """
    begin = end = 0

    def texts() -> Iterator[str]:
        nonlocal begin, end
        for end, text in lines:
            begin = begin or end
            yield f"{text}\n"

    reader = csv.reader(texts(), strict=True)
    several_lines: list[int] = []
    while True:
        begin = 0
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            up_to = f" and is read up to line {end:,}" if end > begin else ""
            problems.add(
                path,
                begin,
                f"the row that begins here{up_to} is not CSV ({error})",
                "close every quote, and double a quote that is part of a quoted text",
            )
            continue
        if end > begin:
            several_lines.append(begin)
        yield begin, cells
    if several_lines:
        log(
            f"{path.name}: rows of several lines: {len(several_lines):,}, the first begins on line "
            f"{several_lines[0]:,}; if their texts hold no line ends, a quote is left open there"
        )
