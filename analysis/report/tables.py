"""All tables of a sweep, the same rows in the terminal, the report and the notebook."""

from analysis.formatting import Column, Table
from analysis.loading.load import Runs
from analysis.report.benchmark_table import benchmarks
from analysis.report.comparison_table import comparison
from analysis.report.configuration_tables import best, configurations, parameter_groups, trials
from analysis.report.curve_tables import curves, health, missing
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
    always = [configurations(fits), curves(fits), comparison(fits)]
    if fits.best:
        always.insert(1, best(fits))
    if everything:
        always += [parameter_groups(fits), usage(runs, fits), health(fits), trials(runs)]
    return always + [
        t for t in (benchmarks(runs), excluded(runs), missing(fits), warnings(runs, fits)) if t.rows
    ]


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
