"""Contents of a report: answer, advice, comparisons and tables.

They are computed once for every format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from analysis.fitting.result import LawFit
from analysis.formatting import Table
from analysis.loading.load import Runs, sweep_names
from analysis.plotting.sweep_figure import architecture_styles
from analysis.report.advice import advice
from analysis.report.answer import SweepAnswer, sweep_answer
from analysis.report.architectures import ArchitectureSections, architecture_sections
from analysis.report.difference_tables import differences_table, trends_table
from analysis.report.fit_tables import health_table, laws_table
from analysis.report.table_files import as_json
from analysis.report.tables import SweepTables
from analysis.scaling.comparison import ArchitectureComparison, compare_architectures
from analysis.scaling.sweep_summary import SweepFits, best_runs


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportContents:
    """What a report says, before any of it is written."""

    runs: Runs
    fits: SweepFits
    sweep: str
    """Name, or names with commas."""
    answer: SweepAnswer
    advice: tuple[str, ...]
    comparison: ArchitectureComparison
    compared: ArchitectureSections
    differences: Table
    trends: Table
    """Of memory sizes; without rows where none was varied."""
    laws: Mapping[str, Any]
    """Further fits by title."""
    spent: str | None = None
    """What the sweep has cost, in a sentence; None where nobody said a price."""

    @cached_property
    def of_sweep(self) -> SweepTables:
        """The tables of the runs and their curves."""
        return SweepTables.of(self.runs, self.fits)

    @cached_property
    def of_laws(self) -> tuple[Table, Table]:
        """Of `laws`: their numbers, and how the optimiser fared."""
        return laws_table(self.laws), health_table(self.law_fits)

    @cached_property
    def tables(self) -> list[Table]:
        """All tables, in the order of the page."""
        compared = self.compared
        sections = (compared.multipliers, compared.frontier, compared.next_runs)
        others = (*(section.table for section in sections), compared.laws)
        fit_tables = self.of_laws if self.laws else ()
        return [
            self.differences,
            *([self.trends] if self.trends.rows else []),
            *self.of_sweep.listed(everything=True),
            *(table for table in others if table is not None),
            self.of_sweep.step_times,
            *(replace(t, title=f"{t.title} of their own") for t in fit_tables),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return question, answer, advice and all tables with their numbers, for JSON."""
        return {
            "sweep": self.sweep,
            "question": self.runs.question,
            "answer": {"status": str(self.answer.status), "sentences": [*self.answer.sentences]},
            "rests_on": self.answer.rests_on,
            "next": [*self.advice],
            "spent": self.spent,
            "tables": [as_json(table) for table in self.tables],
        }

    @property
    def law_fits(self) -> dict[str, LawFit]:
        """Those of `laws` that have a health of their own."""
        return {title: fit for title, fit in self.laws.items() if isinstance(fit, LawFit)}

    @property
    def main_tables(self) -> list[Table]:
        """The tables for a paper: differences, and what every configuration reached."""
        return [self.differences, self.of_sweep.configurations]


def report_contents(
    runs: Runs,
    fits: SweepFits,
    *,
    laws: Mapping[str, Any] | None = None,
    trials: Sequence[Any] = (),
    spent: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ReportContents:
    """Return the contents of a sweep's report.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`.
        laws: Further fits by title: of `fit_law`, `fit_chain`, `fit_isoflop` or `fit_envelope`.
        trials: Planned ones (`orchestrator.planning.pricing.PlannedTrial`), to choose the next
            runs from; their further seeds count.
        spent: What the sweep has cost, in a sentence.
        progress: Called with a line before each long part.
    """
    comparison = compare_architectures(runs, fits, trials=trials, progress=progress)
    answer = sweep_answer(best_runs(runs), fits, comparison)
    names = sweep_names(runs.sweep) or sorted(set(runs.table["sweep"].astype(str)))
    sweep = ", ".join(names) or "no sweep"
    return ReportContents(
        runs=runs,
        fits=fits,
        sweep=sweep,
        answer=answer,
        advice=advice(
            answer,
            fits,
            comparison,
            sweep=names[0] if len(names) == 1 else None,
            excluded=runs.excluded,
        ),
        comparison=comparison,
        compared=architecture_sections(comparison, architecture_styles(runs, fits)),
        differences=differences_table(answer.differences, fits),
        trends=trends_table(answer.trends, fits),
        laws=dict(laws or {}),
        spent=spent,
    )
