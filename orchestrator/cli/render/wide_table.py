"""Tables that are wider than the terminal: cut into blocks, so that nothing is shortened."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

LONG = 40
"""Characters from which on a cell of text is prose, which may wrap."""

GAP = 2
"""Characters between columns."""


class WideTable:
    """A table in blocks of columns that fit; each begins with the columns that name the row."""

    def __init__(self, table: Table, *, keys: int) -> None:
        """Wrap a table of plain cells whose first `keys` columns name the row."""
        self._table, self._keys = table, keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its blocks one below the other."""
        columns = self._table.columns
        least = [_least_width(column) for column in columns]
        for number, block in enumerate(blocks(least, options.max_width, keys=self._keys)):
            part = Table(
                title=self._table.title if number == 0 else None,
                title_justify=self._table.title_justify,
                title_style=self._table.title_style,
                box=None,
                pad_edge=False,
            )
            for i in block:
                part.add_column(
                    columns[i].header,
                    justify=columns[i].justify,
                    style=columns[i].style,
                    min_width=min(least[i], options.max_width),
                    overflow="fold",
                )
            cells = [list(columns[i].cells) for i in block]
            for row in zip(*cells, strict=True):
                part.add_row(*row)
            yield part


def blocks(widths: Sequence[int], room: int, *, keys: int) -> list[list[int]]:
    """Return the columns of each block: the keys, and as many others as there is room for.

    Args:
        widths: Characters that each column needs.
        room: Characters of a line.
        keys: How many columns, the first ones, are in every block.
    """
    names = list(range(min(keys, len(widths))))
    found = [names.copy()]
    taken = named = sum(widths[i] + GAP for i in names)
    for i in range(len(names), len(widths)):
        if len(found[-1]) > len(names) and taken + widths[i] > room:
            found.append(names.copy())
            taken = named
        found[-1].append(i)
        taken += widths[i] + GAP
    return found


def _least_width(column: Column) -> int:
    """Return the characters that a column needs: whole numbers and names, prose by its words."""
    heading = max((len(word) for word in str(column.header).split()), default=0)
    texts = [cell.plain if isinstance(cell, Text) else str(cell) for cell in column.cells]
    longest = max((len(line) for text in texts for line in text.splitlines()), default=0)
    return max(heading, min(longest, LONG))
