"""Reader of CSV rows with the lines on which they begin."""

import csv
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from workloads.data.readers.lines import MAX_LINE_BYTES, InputFile
from workloads.data.readers.problems import Problems

# Of the process: only a cell of several lines can be longer than any line.
csv.field_size_limit(MAX_LINE_BYTES)


def csv_cells(
    lines: Iterator[tuple[int, str]],
    path: InputFile,
    problems: Problems,
    log: Callable[[str], None],
) -> Iterator[tuple[int, list[str]]]:
    """Yield (1-based line on which a row begins, cells) of numbered lines.

    Blank lines have no cells. A line is taken when a row needs it. A quoted cell may hold line
    ends. A quote that is never closed is a problem of the line on which its row begins. `log` is
    told how many rows are read although a quote may be wrong: those of several lines, since an open
    quote takes the rows up to the next quote into its cell, and those with text after a closing
    quote.
    """
    taken: list[tuple[int, str]] = []
    """Lines of the row."""
    is_open = False
    """Whether the last row is not over when the file is."""

    def texts() -> Iterator[str]:
        nonlocal is_open
        for number, text in lines:
            taken.append((number, f"{text}\n"))
            yield taken[-1][1]
        is_open = bool(taken)

    source = texts()
    reader = csv.reader(source, strict=True)
    several_lines: list[int] = []
    after_quote: list[int] = []
    while True:
        taken.clear()
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error:
            try:
                cells = next(csv.reader(chain([text for _, text in taken], source)))
                is_wrong = is_open
            except csv.Error:
                is_wrong = True
            if is_wrong:
                problems.add(path, taken[0][0], *_fault(taken, is_open=is_open))
                continue
            after_quote.append(taken[0][0])
        begin = taken[0][0]
        if len(taken) > 1:
            several_lines.append(begin)
        yield begin, cells
    if several_lines:
        log(
            f"{path.name}: rows of several lines: {len(several_lines):,}, the first begins on line "
            f"{several_lines[0]:,}; if their texts hold no line ends, a quote is left open there"
        )
    if after_quote:
        log(
            f"{path.name}: rows with text after a closing quote: {len(after_quote):,}, the first "
            f"begins on line {after_quote[0]:,}; quotes around part of a cell are dropped, double "
            "those that belong to the text"
        )


def _fault(taken: Sequence[tuple[int, str]], *, is_open: bool) -> tuple[str, str]:
    """Return what is wrong with the lines of a row, and what to do."""
    row = "the row that begins here"
    if len(taken) > 1:
        row += f" and is read up to line {taken[-1][0]:,}"
    close = "close every quote, and double a quote that is part of a quoted text"
    if is_open:
        return f"{row} has a quote that is never closed", close
    limit = csv.field_size_limit()
    if sum(len(text) for _, text in taken) > limit:
        return f"{row} has a cell of more than {limit:,} characters", close
    fix = "delete it, or put quotes around its cell"
    return rf"{row} has a carriage return (\r) in a cell without quotes", fix
