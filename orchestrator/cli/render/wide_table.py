"""Tables wider than the terminal: cut into blocks, so that nothing is shortened."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

LONG = 40
"""Characters from which on a cell of text is prose, which may wrap."""

KEY_SHARE = 0.6
"""Most of a line that is kept for the columns that name the row."""

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
        room_of_keys = int(KEY_SHARE * options.max_width)
        if sum(least[: self._keys]) > room_of_keys:  # long names wrap, so that others have room
            each = max(1, room_of_keys // self._keys)
            least = [min(w, each) if i < self._keys else w for i, w in enumerate(least)]
        for number, block in enumerate(blocks(least, options.max_width, keys=self._keys)):
            part = Table(
                title=self._table.title if number == 0 else None,
                title_justify=self._table.title_justify,
                title_style=self._table.title_style,
                box=None,
                pad_edge=False,
            )
            whole = [_whole_width(columns[i]) for i in block]
            widths = fitted([least[i] for i in block], whole, options.max_width)
            for i, width in zip(block, widths, strict=True):
                part.add_column(
                    columns[i].header,
                    justify=columns[i].justify,
                    style=columns[i].style,
                    width=width,
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


def fitted(least: Sequence[int], whole: Sequence[int], room: int) -> list[int]:
    """Return widths of a block's columns that fill no more than a line.

    Columns get what they need, then from left to right up to their whole width. Where there is
    no room, the last one has what is left.
    """
    widths = list(least)
    spare = room - sum(widths) - GAP * (len(widths) - 1)
    if spare < 0:
        widths[-1] = max(1, widths[-1] + spare)
    for i, wanted in enumerate(whole):
        more = min(max(wanted - widths[i], 0), max(spare, 0))
        widths[i] += more
        spare -= more
    return widths


def _whole_width(column: Column) -> int:
    """Return the characters of a column's longest line."""
    texts = [
        str(column.header),
        *(c.plain if isinstance(c, Text) else str(c) for c in column.cells),
    ]
    return max(len(line) for text in texts for line in text.splitlines() or [""])


def _least_width(column: Column) -> int:
    """Return the characters that a column needs: whole numbers and names, prose by its words."""
    heading = max((len(word) for word in str(column.header).split()), default=0)
    texts = [cell.plain if isinstance(cell, Text) else str(cell) for cell in column.cells]
    longest = max((len(line) for text in texts for line in text.splitlines()), default=0)
    return max(heading, min(longest, LONG))
