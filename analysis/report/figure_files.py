"""Figures of a report: drawn once each, written in every format.

The report's page shows them.
"""

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from analysis.fitting.result import LawFit
from analysis.loading.load import Runs, histories
from analysis.loading.table_reads import read_table_reads
from analysis.loading.usage import usage_columns
from analysis.plotting.canvas import KINDS, save
from analysis.plotting.curve_figure import CurvePanel, curves_figure
from analysis.plotting.draw import draw
from analysis.plotting.fit_panels import LABELS, outcome_label
from analysis.plotting.heat_map_figure import heat_map_figure, heat_maps
from analysis.plotting.sweep_figure import sweep_figure, sweep_styles
from analysis.plotting.table_reads_figure import table_reads_figure
from analysis.plotting.usage_figure import usage_figure
from analysis.report.architectures import FIGURE_STEMS
from analysis.report.contents import ReportContents
from analysis.scaling.outcomes import main_outcome
from analysis.scaling.second_process import in_second_process
from analysis.scaling.sweep_summary import SweepFits
from orchestrator.records.sweep_dir import SweepDir, sweep_dir

FIGURE_STEM = "accuracy"
USAGE_STEM = "usage"
HEAT_MAP_STEM = "heat_map"
FITS_STEM = "fits"
LAW_STEM = "law"
READS_STEM = "table_reads"

MOST_READS_FIGURES = 6
"""Trials of which the page shows table reads; each takes about as much space as a plot of runs."""


Maker = Callable[[], Any]
"""Returns a figure, or None where there is nothing to draw."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure that was written."""

    uri: str
    """What the page shows, as data URI."""
    paths: tuple[Path, ...]


def figure_paths(out: str | os.PathLike[str]) -> list[Path]:
    """Return the figures that the last report left in `out`."""
    folder = Path(out)
    patterns = (
        FIGURE_STEM,
        HEAT_MAP_STEM,
        USAGE_STEM,
        f"{FITS_STEM}_*",
        f"{LAW_STEM}_*",
        f"{READS_STEM}_*",
    )
    return [
        path
        for pattern in (*patterns, *FIGURE_STEMS)
        for svg in sorted(folder.glob(f"{pattern}.svg"))
        for path in (svg.with_suffix(f".{kind}") for kind in KINDS)
        if path.exists()
    ]


def draw_beside(
    makers: Mapping[str, Maker], out: str | os.PathLike[str]
) -> Callable[[], dict[str, Picture]]:
    """Begin to draw figures into a folder; return what draws the rest and gives them by stem.

    Args:
        makers: By the stem of the figure's files.
        out: Made if missing.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = in_second_process([partial(_write, make, folder / s) for s, make in makers.items()])
    return lambda: {
        stem: picture for stem, picture in zip(makers, drawn(), strict=True) if picture is not None
    }


def sweep_figures(runs: Runs, fits: SweepFits) -> dict[str, Maker]:
    """Return the figures that follow from runs and their curves alone, by stem.

    Those of curves take longest and come first: processes that share the figures then end together.
    """
    return {
        **_curve_figures(runs, fits),
        FIGURE_STEM: lambda: _sweep_figure(runs, fits),
        USAGE_STEM: lambda: _usage_figure(runs, fits),
        HEAT_MAP_STEM: lambda: _heat_map_figure(runs, fits),
        **_table_reads_figures(runs),
    }


def content_figures(contents: ReportContents) -> dict[str, Maker]:
    """Return the figures of laws and of the comparison of architectures, by stem."""
    compared = contents.compared
    sections = (compared.multipliers, compared.frontier, compared.next_runs)
    return {
        **{
            f"{LAW_STEM}_{i}": partial(_law_figure, fit)
            for i, fit in enumerate(contents.laws.values(), 1)
        },
        **{
            stem: partial(_same, figure)
            for section in sections
            for stem, figure in section.figures.items()
        },
    }


def _write(make: Maker, stem: Path) -> Picture | None:
    """Write a figure in every format, None where there is nothing to draw."""
    figure = make()
    if figure is None:
        return None
    paths = save(figure, stem)
    pictures = [path for path in paths if path.suffix in (".svg", ".png")]
    # Of many layers or a long training the lines take more space than their picture.
    smallest = stem.name.startswith((USAGE_STEM, READS_STEM))
    shown = min(pictures, key=lambda path: path.stat().st_size) if smallest else pictures[0]
    return Picture(uri=_data_uri(shown), paths=tuple(paths))


def _same(figure: Any) -> Any:
    return figure


def _sweep_figure(runs: Runs, fits: SweepFits) -> Any:
    if not len(runs.table):
        return None
    try:
        return sweep_figure(runs, fits)
    except ValueError:
        return None  # the page says so and still shows what was excluded and why


def _heat_map_figure(runs: Runs, fits: SweepFits) -> Any:
    outcome = main_outcome(runs.table)
    own = [name for name in fits.varied if not name.startswith("data.")]
    maps = heat_maps(runs.table, own, outcome) if outcome else []
    return heat_map_figure(maps, outcome) if maps and outcome else None


def _curve_figures(runs: Runs, fits: SweepFits) -> dict[str, Maker]:
    """Return a figure per outcome, with a column for every size that some curve was fitted to."""
    figures: dict[str, Maker] = {}
    styles = sweep_styles(runs, fits)
    for outcome in dict.fromkeys(c.spec.outcome for c in fits.curves):
        label = outcome_label(outcome)
        columns: dict[tuple[str, str], dict[str, LawFit]] = {}
        for curve in fits.curves:
            if curve.spec.outcome == outcome:
                key = curve.spec.law, curve.spec.x
                columns.setdefault(key, {})[curve.series] = curve.fit
        panels = [
            CurvePanel(
                fits=by_series,
                x=LABELS.get(x, x),
                outcome=label,
                title=f"{law} against {x}".replace("_", " "),
            )
            for (law, x), by_series in columns.items()
            if any(fit.usable for fit in by_series.values())
        ]
        if panels:
            figures[f"{FITS_STEM}_{outcome}"] = partial(curves_figure, panels, styles=styles)
    return figures


def _law_figure(fit: Any) -> Any:
    try:
        return draw(fit)
    except ValueError:
        return None  # the table says why it has no numbers


def _usage_figure(runs: Runs, fits: SweepFits) -> Any:
    if not usage_columns(runs.table.columns):
        return None  # histories are many files or requests
    return usage_figure(runs, fits, histories(runs))


def _table_reads_figures(runs: Runs) -> dict[str, Maker]:
    """Return what `memscale evaluate --table-reads` counted, of the first trials that have it."""
    source = Path(runs.source)
    if not source.is_dir():
        return {}  # counts stay in the trials' folders
    figures: dict[str, Maker] = {}
    columns = runs.table[["sweep", "trial_id"]].astype(str)
    for sweep, trial_id in columns.itertuples(index=False):
        one = (source / "trials").is_dir()
        folder = SweepDir(source) if one else sweep_dir(source, sweep)
        layers = read_table_reads(folder.trial(trial_id).path)
        if layers:
            figures[f"{READS_STEM}_{trial_id}"] = partial(table_reads_figure, layers)
        if len(figures) == MOST_READS_FIGURES:
            break
    return figures


def _data_uri(path: Path) -> str:
    kind = {".svg": "svg+xml", ".png": "png"}[path.suffix]
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
