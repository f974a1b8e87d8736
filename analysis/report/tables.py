"""All tables of a sweep, the same in terminal, report and notebook."""

from dataclasses import dataclass

from analysis.formatting import Column, Table
from analysis.loading.load import Runs
from analysis.report.benchmark_table import benchmarks
from analysis.report.comparison_table import comparison
from analysis.report.configuration_tables import best, configurations, parameter_groups, trials
from analysis.report.curve_tables import curves, health, missing
from analysis.report.time_table import step_times
from analysis.report.usage_table import usage
from analysis.scaling.sweep_summary import SweepFits


def tables(runs: Runs, fits: SweepFits, *, everything: bool = False) -> list[Table]:
    """Return what `memscale fit` prints.

    Configurations, curves and the comparison at equal FLOPs; where there are any, also benchmarks,
    excluded trials, missing sizes and warnings about the data.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`.
        everything: Whether to add what only the report shows: parameters by group, the use of
            memories and experts, how the optimiser fared, and the trials.
    """
    return SweepTables.of(runs, fits).listed(everything=everything)


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepTables:
    """The tables of a sweep by name, also those without rows."""

    configurations: Table
    best: Table
    curves: Table
    comparison: Table
    parameter_groups: Table
    usage: Table
    health: Table
    trials: Table
    benchmarks: Table
    excluded: Table
    missing: Table
    warnings: Table
    step_times: Table

    @classmethod
    def of(cls, runs: Runs, fits: SweepFits) -> "SweepTables":
        """Make all of them."""
        return cls(
            configurations=configurations(fits),
            best=best(fits),
            curves=curves(fits),
            comparison=comparison(fits),
            parameter_groups=parameter_groups(fits),
            usage=usage(runs, fits),
            health=health(fits),
            trials=trials(runs, fits),
            benchmarks=benchmarks(runs),
            excluded=excluded(runs),
            missing=missing(fits),
            warnings=warnings(runs, fits),
            step_times=step_times(runs, fits),
        )

    def listed(self, *, everything: bool = False) -> list[Table]:
        """Return what `tables` returns: step times are for reports only."""
        always = [self.configurations, self.curves, self.comparison]
        if self.best.rows:
            always.insert(1, self.best)
        if everything:
            always += [self.parameter_groups, self.usage, self.health, self.trials]
        others = (self.benchmarks, self.excluded, self.missing, self.warnings)
        return always + [table for table in others if table.rows]


def excluded(runs: Runs) -> Table:
    """Return the trials that do not count and why."""
    names = ["trial_id", "sweep", "state", "reason"]
    rows = runs.excluded[names].itertuples(index=False) if len(runs.excluded) else ()
    return Table(
        title="Excluded",
        columns=("trial", "sweep", "state", "why"),
        rows=tuple(tuple(map(str, row)) for row in rows),
        numeric=(False,) * 4,
    )


def warnings(runs: Runs, fits: SweepFits) -> Table:
    """Return what is odd about the runs that count, and how foreign columns were read."""
    return Table.of("To look at", (*runs.notes, *fits.warnings), [Column("what", str)])
