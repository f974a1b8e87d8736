"""Rendering of result tables, checks of the machine, and next steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.render.command_name import command
from orchestrator.cli.render.wide_table import WideTable
from orchestrator.diagnostics import Check, Severity

if TYPE_CHECKING:
    from analysis.formatting import Table as ResultTable
    from analysis.report.answer import SweepAnswer

MOST_KEYS = 3
"""Columns that name a row, those of text before the first number."""


def printed(tables: "Sequence[ResultTable]") -> RenderableType:
    """Return tables of text cells; one without rows is its notes, or nothing."""
    parts: list[RenderableType] = []
    for given in tables:
        if not given.rows and not given.notes:
            continue
        table = Table(
            title=given.title, title_justify="left", title_style="bold", box=None, pad_edge=False
        )
        for column, numeric in zip(given.columns, given.numeric, strict=True):
            table.add_column(column, justify="right" if numeric else "left")
        for row in given.rows:
            table.add_row(*(Text(cell) for cell in row))
        numbers = [i for i, numeric in enumerate(given.numeric) if numeric]
        keys = min(numbers[0] if numbers else len(given.columns), MOST_KEYS)
        parts += [
            WideTable(table, keys=keys),
            *(Text(note, style="dim") for note in given.notes),
            Text(""),
        ]
    return Group(*parts)


def answered(question: str | None, answer: "SweepAnswer", advice: Sequence[str]) -> RenderableType:
    """Return the question of a sweep, its answer, and what to run next."""
    parts: list[RenderableType] = []
    if question:
        parts.append(Text(f"Question: {question}"))
    parts.append(Text(f"Answer: {answer.status}", style="bold"))
    parts += [Text(sentence) for sentence in answer.sentences]
    parts.append(Text(answer.rests_on, style="dim"))
    parts += [Text(f"Next: {sentence}") for sentence in advice]
    return Group(*parts, Text(""))


def next_steps(
    page: Path, figures: Sequence[Path], *, sweep: str, runs_option: str
) -> RenderableType:
    """Return where the results are and the commands to try next."""
    memscale = command()
    commands = {
        f"{memscale} ui {sweep}{runs_option}": "the MLflow page with every run",
        f"{memscale} status {sweep}{runs_option}": "what became of each trial",
        f"{memscale} plan --show quickstart > my_sweep.yaml": (
            f"edit it, then: {memscale} plan my_sweep.yaml"
        ),
    }
    width = max(len(command) for command in commands) + 3
    lines = [f"report:  {page}", *_figure_lines(figures)]
    lines += [
        f"tables:  {page.parent / 'tables'} (.csv, .tex), all in report.json",
        "",
        "Try next:",
    ]
    lines += [f"  {command.ljust(width)}{what}" for command, what in commands.items()]
    return Text("\n".join(lines))


def _figure_lines(figures: Sequence[Path]) -> list[str]:
    """Return one line for all figures, each of which has the same kinds of files."""
    if not figures:
        return []
    stems, kinds = dict.fromkeys(f.stem for f in figures), dict.fromkeys(f.suffix for f in figures)
    return [f"figures: {figures[0].parent} ({', '.join(stems)}; each {', '.join(kinds)})"]


def doctor_table(checks: Sequence[Check]) -> RenderableType:
    """Return the doctor's report."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    style = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "red"}
    for check in checks:
        found = Text(check.found)
        if check.fix:
            found.append(f"\n→ {check.fix}", style=style[check.severity])
        table.add_row(Text(check.severity.value, style=style[check.severity]), check.name, found)
    return table
