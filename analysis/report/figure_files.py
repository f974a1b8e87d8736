"""Figures of a report: drawn once each, written in every format, and shown on its page."""

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.fitting.result import LawFit
from analysis.loading.load import Runs, histories
from analysis.loading.table_reads import read_table_reads
from analysis.loading.usage import usage_columns
from analysis.plotting.canvas import KINDS, save
from analysis.plotting.curve_figure import CurvePanel, curves_figure
from analysis.plotting.draw import draw
from analysis.plotting.fit_panels import LABELS
from analysis.plotting.heat_map_figure import heat_map_figure, heat_maps
from analysis.plotting.sweep_figure import Y_LABELS, sweep_figure
from analysis.plotting.table_reads_figure import table_reads_figure
from analysis.plotting.usage_figure import usage_figure
from analysis.report.architectures import FIGURE_STEMS
from analysis.report.contents import ReportContents
from analysis.scaling.equal_cost import main_outcome
from analysis.scaling.sweep_summary import SweepFits
from orchestrator.records.trial_dir import SweepDir, sweep_dir

FIGURE_STEM = "accuracy"
USAGE_STEM = "usage"
HEAT_MAP_STEM = "heat_map"
FITS_STEM = "fits"
LAW_STEM = "law"
READS_STEM = "table_reads"

MOST_READS_FIGURES = 6
"""Trials of which the page shows table reads; each takes about as much space as a plot of runs."""


@dataclass(frozen=True, kw_only=True)
class SweepPictures:
    """Figures that follow from runs and their curves alone, as data URIs; None: nothing to draw."""

    sweep: str | None = None
    heat_map: str | None = None
    usage: str | None = None
    fits: Sequence[str] = ()
    """A figure per outcome."""
    table_reads: Mapping[str, str] = field(default_factory=dict)
    """By trial, of those whose reads were counted."""
    paths: Sequence[Path] = ()
    """The files written."""


@dataclass(frozen=True, kw_only=True)
class ContentPictures:
    """Figures of laws and of the comparison of architectures, as data URIs."""

    laws: Mapping[str, str | None] = field(default_factory=dict)
    """By title; None: the fit has no numbers."""
    compared: Mapping[str, str] = field(default_factory=dict)
    """By the stem of the file."""
    paths: Sequence[Path] = ()
    """The files written."""


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


class FigureFiles:
    """Files of the figures written so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []

    def write(self, figure: Any, stem: str, *, smallest: bool = False) -> str:
        """Write a figure in every format; return its SVG, or the smaller picture, as data URI."""
        paths = save(figure, self.folder / stem)
        self.paths += paths
        pictures = [path for path in paths if path.suffix in (".svg", ".png")]
        shown = min(pictures, key=lambda path: path.stat().st_size) if smallest else pictures[0]
        return _data_uri(shown)


def draw_sweep(runs: Runs, fits: SweepFits, out: str | os.PathLike[str]) -> SweepPictures:
    """Draw the figures of a sweep's runs and curves into a folder, which is made if missing."""
    files = FigureFiles(Path(out))
    files.folder.mkdir(parents=True, exist_ok=True)
    return SweepPictures(
        sweep=_draw_sweep(runs, fits, files),
        heat_map=_draw_heat_map(runs, fits, files),
        usage=_draw_usage(runs, fits, files),
        fits=_draw_curves(fits, files),
        table_reads=_draw_table_reads(runs, files),
        paths=files.paths,
    )


def draw_contents(contents: ReportContents, out: str | os.PathLike[str]) -> ContentPictures:
    """Draw the figures of laws and of the comparison of architectures into a folder."""
    files, compared = FigureFiles(Path(out)), contents.compared
    sections = (compared.multipliers, compared.frontier, compared.next_runs)
    return ContentPictures(
        laws={
            title: _draw_law(fit, f"{LAW_STEM}_{i}", files)
            for i, (title, fit) in enumerate(contents.laws.items(), 1)
        },
        compared={
            stem: files.write(figure, stem)
            for section in sections
            for stem, figure in section.figures.items()
        },
        paths=files.paths,
    )


def _draw_sweep(runs: Runs, fits: SweepFits, files: FigureFiles) -> str | None:
    if not len(runs.table):
        return None
    try:
        figure = sweep_figure(runs, fits)
    except ValueError:
        return None  # the page says so and still shows what was excluded and why
    return files.write(figure, FIGURE_STEM)


def _draw_heat_map(runs: Runs, fits: SweepFits, files: FigureFiles) -> str | None:
    outcome = main_outcome(runs.table)
    own = [name for name in fits.varied if not name.startswith("data.")]
    maps = heat_maps(runs.table, own, outcome) if outcome else []
    if not maps or outcome is None:
        return None
    return files.write(heat_map_figure(maps, outcome), HEAT_MAP_STEM)


def _draw_curves(fits: SweepFits, files: FigureFiles) -> list[str]:
    """Draw a picture for every outcome, a column for every size that some curve was fitted to."""
    pictures = []
    for outcome in dict.fromkeys(c.spec.outcome for c in fits.curves):
        label = Y_LABELS.get(outcome, outcome).split(" (")[0]
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
            pictures.append(files.write(curves_figure(panels), f"{FITS_STEM}_{outcome}"))
    return pictures


def _draw_law(fit: Any, stem: str, files: FigureFiles) -> str | None:
    try:
        figure = draw(fit)
    except ValueError:
        return None  # the table says why it has no numbers
    return files.write(figure, stem)


def _draw_usage(runs: Runs, fits: SweepFits, files: FigureFiles) -> str | None:
    if not usage_columns(runs.table.columns):
        return None  # histories are many files or requests
    figure = usage_figure(runs, fits, histories(runs))
    if figure is None:
        return None
    # Of a dozen layers over a long training the lines take more space than their picture.
    return files.write(figure, USAGE_STEM, smallest=True)


def _draw_table_reads(runs: Runs, files: FigureFiles) -> dict[str, str]:
    """Draw what `memscale evaluate --table-reads` counted, of the first trials that have it."""
    source = Path(runs.source)
    if not source.is_dir():
        return {}  # counts stay in the trials' folders
    pictures: dict[str, str] = {}
    columns = runs.table[["sweep", "trial_id"]].astype(str)
    for sweep, trial_id in columns.itertuples(index=False):
        one = (source / "trials").is_dir()
        folder = SweepDir(source) if one else sweep_dir(source, sweep)
        layers = read_table_reads(folder.trial(trial_id).path)
        if layers:
            stem = f"{READS_STEM}_{trial_id}"
            pictures[trial_id] = files.write(table_reads_figure(layers), stem, smallest=True)
        if len(pictures) == MOST_READS_FIGURES:
            break
    return pictures


def _data_uri(path: Path) -> str:
    kind = {".svg": "svg+xml", ".png": "png"}[path.suffix]
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
