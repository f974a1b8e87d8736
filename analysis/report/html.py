"""HTML report of a sweep: one self-contained page that fetches nothing, and its figures."""

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from analysis.fitting.result import LawFit
from analysis.loading.load import Runs, histories
from analysis.loading.usage import usage_columns
from analysis.plotting.canvas import KINDS, save
from analysis.plotting.curve_figure import CurvePanel, curves_figure
from analysis.plotting.draw import draw
from analysis.plotting.fit_panels import LABELS
from analysis.plotting.heat_map_figure import heat_map_figure, heat_maps
from analysis.plotting.sweep_figure import Y_LABELS, sweep_figure
from analysis.plotting.usage_figure import usage_figure
from analysis.report import tables
from analysis.report.architectures import FIGURE_STEMS
from analysis.report.contents import ReportContents, report_contents
from analysis.report.device_share import device_share
from analysis.report.fit_tables import health_table, laws_table
from analysis.report.table_files import write_tables
from analysis.report.time_table import step_times
from analysis.scaling.equal_cost import main_outcome
from analysis.scaling.sweep_summary import SweepFits

FIGURE_STEM = "accuracy"
USAGE_STEM = "usage"
HEAT_MAP_STEM = "heat_map"
FITS_STEM = "fits"
LAW_STEM = "law"
PAGE = "report.html"
NUMBERS = "report.json"
"""Question, answer and every table, as numbers."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Figures of a page as data URIs; what the runs do not allow is missing."""

    sweep: str | None = None
    heat_map: str | None = None
    usage: str | None = None
    fits: Sequence[str] = ()
    """A figure per outcome."""
    laws: Mapping[str, str | None] = field(default_factory=dict)
    """By title."""
    compared: Mapping[str, str] = field(default_factory=dict)
    """By the stem of the file."""


def write_report(
    runs: Runs,
    fits: SweepFits,
    out: str | os.PathLike[str],
    *,
    laws: Mapping[str, Any] | None = None,
    trials: Sequence[Any] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write `report.html`, its figures and its tables; return the page.

    Each figure is a `.svg`, `.png` and `.pdf`: `accuracy`; `fits_loss` and so on, every curve with
    its residuals and extrapolation; `heat_map` where two settings were varied together; `usage`
    where an architecture reported how its memories or experts are used; `multipliers`,
    `effective_size`, `frontier_flops` and `next_runs` where the runs allow them; and `law_1` and so
    on for `laws`. Every table is a `.csv` in `tables/`, those for a paper are `.tex`. Question,
    answer and all tables are in `report.json`.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`.
        out: Folder to write into; made if missing.
        laws: Further fits by title: of `fit_law`, `fit_chain`, `fit_isoflop` or `fit_envelope`.
        trials: Planned ones (`orchestrator.planning.pricing.PlannedTrial`), to choose the next
            runs from; their further seeds count.
        progress: Called with a line before each long part.

    Raises:
        StoreError: If the source of the runs is no longer there.
    """
    contents = report_contents(runs, fits, laws=laws, trials=trials, progress=progress)
    return write_contents(contents, out, progress=progress)


def write_contents(
    contents: ReportContents,
    out: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the page, figures and tables of contents that are there already; return the page."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    progress("figures")
    before, drawn = figure_paths(folder), _Drawn(folder)
    text = render(contents, _draw_all(contents, drawn))
    for path in set(before) - set(drawn.paths):
        path.unlink(missing_ok=True)
    write_tables(contents.tables, contents.main_tables, folder)
    numbers = json.dumps(contents.as_json(), indent=1, ensure_ascii=False) + "\n"
    (folder / NUMBERS).write_text(numbers, encoding="utf-8")
    page = folder / PAGE
    page.write_text(text, encoding="utf-8")
    return page


def figure_paths(out: str | os.PathLike[str]) -> list[Path]:
    """Return the figures that the last report left in `out`."""
    folder = Path(out)
    patterns = (FIGURE_STEM, HEAT_MAP_STEM, USAGE_STEM, f"{FITS_STEM}_*", f"{LAW_STEM}_*")
    return [
        path
        for pattern in (*patterns, *FIGURE_STEMS)
        for svg in sorted(folder.glob(f"{pattern}.svg"))
        for path in (svg.with_suffix(f".{kind}") for kind in KINDS)
        if path.exists()
    ]


class _Drawn:
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


def _draw_all(contents: ReportContents, drawn: _Drawn) -> Pictures:
    runs, fits, compared = contents.runs, contents.fits, contents.compared
    sections = (compared.multipliers, compared.frontier, compared.next_runs)
    return Pictures(
        sweep=_draw_sweep(runs, fits, drawn),
        heat_map=_draw_heat_map(runs, fits, drawn),
        usage=_draw_usage(runs, fits, drawn),
        fits=_draw_curves(fits, drawn),
        laws={
            title: _draw_law(fit, f"{LAW_STEM}_{i}", drawn)
            for i, (title, fit) in enumerate(contents.laws.items(), 1)
        },
        compared={
            stem: drawn.write(figure, stem)
            for section in sections
            for stem, figure in section.figures.items()
        },
    )


def _draw_sweep(runs: Runs, fits: SweepFits, drawn: _Drawn) -> str | None:
    if not len(runs.table):
        return None
    try:
        figure = sweep_figure(runs, fits)
    except ValueError:
        return None  # the page says so and still shows what was excluded and why
    return drawn.write(figure, FIGURE_STEM)


def _draw_heat_map(runs: Runs, fits: SweepFits, drawn: _Drawn) -> str | None:
    outcome = main_outcome(runs.table)
    own = [name for name in fits.varied if not name.startswith("data.")]
    maps = heat_maps(runs.table, own, outcome) if outcome else []
    if not maps or outcome is None:
        return None
    return drawn.write(heat_map_figure(maps, outcome), HEAT_MAP_STEM)


def _draw_curves(fits: SweepFits, drawn: _Drawn) -> list[str]:
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
            pictures.append(drawn.write(curves_figure(panels), f"{FITS_STEM}_{outcome}"))
    return pictures


def _draw_law(fit: Any, stem: str, drawn: _Drawn) -> str | None:
    try:
        figure = draw(fit)
    except ValueError:
        return None  # the table says why it has no numbers
    return drawn.write(figure, stem)


def _draw_usage(runs: Runs, fits: SweepFits, drawn: _Drawn) -> str | None:
    if not usage_columns(runs.table.columns):
        return None  # histories are many files or requests
    figure = usage_figure(runs, fits, histories(runs))
    if figure is None:
        return None
    # Of a dozen layers over a long training the lines take more space than their picture.
    return drawn.write(figure, USAGE_STEM, smallest=True)


def _data_uri(path: Path) -> str:
    kind = {".svg": "svg+xml", ".png": "png"}[path.suffix]
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def render(contents: ReportContents, pictures: Pictures) -> str:
    """Return the page's HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    runs, fits = contents.runs, contents.fits
    return environment.get_template("report.html.j2").render(
        sweep=contents.sweep,
        question=runs.question,
        answer=contents.answer,
        advice=contents.advice,
        differences=contents.differences,
        kinds=[kind.upper() for kind in KINDS],
        source=runs.source,
        n_trials=len(runs.table),
        n_excluded=len(runs.excluded),
        n_configurations=len(fits.summaries),
        device_share=device_share(runs.table),
        pictures=pictures,
        laws=laws_table(contents.laws),
        law_health=health_table(contents.law_fits),
        compared=contents.compared,
        usage=tables.usage(runs, fits),
        configurations=tables.configurations(fits),
        parameter_groups=tables.parameter_groups(fits),
        curves=tables.curves(fits),
        best=tables.best(fits),
        comparison=tables.comparison(fits),
        trials=tables.trials(runs),
        step_times=step_times(runs, fits),
        health=tables.health(fits),
        excluded=tables.excluded(runs),
        warnings=tables.warnings(runs, fits),
        missing=tables.missing(fits),
        hold_outs=[(c, c.fit.hold_out, c.fit.hold_out_note) for c in fits.curves],
        environment=runs.environment,
        fits=fits,
        commands=_commands(runs, contents.sweep),
    )


def _commands(runs: Runs, sweep: str) -> list[str]:
    if runs.call is not None:
        return [
            "import analysis",
            f"runs = {runs.call}",
            "analysis.write_report(runs, analysis.fit_sweep(runs), 'report')",
        ]
    if "://" in runs.source:
        return [f"memscale report {sweep} --tracking-uri {runs.source}"]
    source = Path(runs.source)
    if not source.is_dir():
        return []
    root = source.parent if (source / "trials").is_dir() else source
    sheet = root / sweep / "sweep.yaml"
    return [
        *([f"memscale submit {sheet} --runs {root}"] if sheet.exists() else []),
        f"memscale report {sweep} --runs {root}",
    ]
