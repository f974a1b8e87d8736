"""HTML report of a sweep: one self-contained page that fetches nothing, and its figures."""

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from analysis.fitting.result import LawFit
from analysis.loading.load import Runs, histories
from analysis.loading.usage import usage_columns
from analysis.plotting.canvas import image, save
from analysis.plotting.curve_figure import CurvePanel, curves_figure
from analysis.plotting.draw import draw
from analysis.plotting.fit_panels import LABELS
from analysis.plotting.sweep_figure import Y_LABELS, sweep_figure
from analysis.plotting.usage_figure import usage_figure
from analysis.report import tables
from analysis.report.architectures import (
    FIGURE_STEMS,
    ArchitectureSections,
    architecture_sections,
)
from analysis.report.device_share import device_share
from analysis.report.fit_tables import health_table, laws_table
from analysis.scaling.best_settings import best_of_every_size
from analysis.scaling.comparison import compare_architectures
from analysis.scaling.series_curves import name_series
from analysis.scaling.sweep_summary import SweepFits

FIGURE_STEM = "accuracy"
USAGE_STEM = "usage"
FITS_STEM = "fits"
LAW_STEM = "law"
PAGE = "report.html"


def write_report(
    runs: Runs,
    fits: SweepFits,
    out: str | os.PathLike[str],
    *,
    laws: Mapping[str, Any] | None = None,
    trials: Sequence[Any] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write `report.html` and its figures beside it; return the page.

    The figures are `.svg`, the first and that of use also `.png`: `accuracy`; `fits_loss` and so
    on, every curve with its residuals and extrapolation; `usage` where an architecture reported
    how its memories or experts are used; `multipliers`, `effective_size`, `frontier_flops` and
    `next_runs` where the runs allow them; and `law_1` and so on for `laws`.

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
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    progress("figures of the curves")
    further = dict(laws or {})
    picture = _draw_sweep(runs, fits, folder / FIGURE_STEM)
    usage_picture = _draw_usage(runs, fits, folder / USAGE_STEM)
    law_pictures = {
        title: _draw_law(fit, folder / f"{LAW_STEM}_{i}")
        for i, (title, fit) in enumerate(further.items(), 1)
    }
    comparison = compare_architectures(
        best_runs(runs, fits), fits, trials=trials, progress=progress
    )
    sections = architecture_sections(comparison)
    figures: dict[str, Figure] = {}
    for section in (sections.multipliers, sections.frontier, sections.next_runs):
        figures.update(section.figures)
    for stem in set(FIGURE_STEMS) - set(figures):
        (folder / f"{stem}.svg").unlink(missing_ok=True)  # of an earlier report
    text = render(
        runs,
        fits,
        picture,
        usage_picture=usage_picture,
        fits_pictures=_draw_curves(fits, folder),
        laws=further,
        law_pictures=law_pictures,
        compared=sections,
        compared_pictures={
            stem: _draw_svg(figure, folder / stem) for stem, figure in figures.items()
        },
    )
    page = folder / PAGE
    page.write_text(text, encoding="utf-8")
    return page


def best_runs(runs: Runs, fits: SweepFits) -> Runs:
    """Return the runs that laws of whole architectures rest on: of every size the best settings."""
    if not fits.best:
        return runs
    data = [name for name in fits.varied if name.startswith("data.")]
    series = name_series(runs.table, by=data)
    return replace(runs, table=best_of_every_size(runs.table, series))


def _draw_sweep(runs: Runs, fits: SweepFits, stem: Path) -> str | None:
    if not len(runs.table):
        return None
    try:
        figure = sweep_figure(runs, fits)
    except ValueError:
        return None  # the page says so and still shows what was excluded and why
    return _data_uri(save(figure, stem)[0])


def _draw_curves(fits: SweepFits, folder: Path) -> list[str]:
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
            pictures.append(_draw_svg(curves_figure(panels), folder / f"{FITS_STEM}_{outcome}"))
    return pictures


def _draw_law(fit: Any, stem: Path) -> str | None:
    try:
        figure = draw(fit)
    except ValueError:
        return None  # the table says why it has no numbers
    return _draw_svg(figure, stem)


def _draw_usage(runs: Runs, fits: SweepFits, stem: Path) -> str | None:
    if not usage_columns(runs.table.columns):
        return None  # histories are many files or requests
    figure = usage_figure(runs, fits, histories(runs))
    if figure is None:
        return None
    # Of a dozen layers over a long training the lines take more space than their picture.
    return _data_uri(min(save(figure, stem), key=lambda path: path.stat().st_size))


def _draw_svg(figure: Figure, stem: Path) -> str:
    # Lines only, and a picture of a dozen panels takes seconds: no .png beside it.
    path = stem.with_suffix(".svg")
    path.write_bytes(image(figure, "svg"))
    return _data_uri(path)


def _data_uri(path: Path) -> str:
    kind = {".svg": "svg+xml", ".png": "png"}[path.suffix]
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def figure_paths(out: str | os.PathLike[str]) -> list[Path]:
    """Return the figures that `write_report` left in `out`."""
    folder = Path(out)
    names = [f"{stem}.{kind}" for stem in (FIGURE_STEM, USAGE_STEM) for kind in ("png", "svg")]
    names += [f"{stem}.svg" for stem in FIGURE_STEMS]
    further = [p for stem in (FITS_STEM, LAW_STEM) for p in sorted(folder.glob(f"{stem}_*.svg"))]
    return [path for path in (folder / name for name in names) if path.exists()] + further


def render(
    runs: Runs,
    fits: SweepFits,
    picture: str | None,
    *,
    usage_picture: str | None = None,
    fits_pictures: Sequence[str] = (),
    laws: Mapping[str, Any] | None = None,
    law_pictures: Mapping[str, str | None] | None = None,
    compared: ArchitectureSections | None = None,
    compared_pictures: Mapping[str, str] | None = None,
) -> str:
    """Return the page's HTML; the pictures are data URIs."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sweep = runs.sweep or ", ".join(sorted(set(runs.table["sweep"].astype(str)))) or "no sweep"
    return environment.get_template("report.html.j2").render(
        sweep=sweep,
        question=runs.question,
        source=runs.source,
        n_trials=len(runs.table),
        n_excluded=len(runs.excluded),
        n_configurations=len(fits.summaries),
        device_share=device_share(runs.table),
        picture=picture,
        usage_picture=usage_picture,
        fits_pictures=fits_pictures,
        laws=laws_table(laws or {}),
        law_health=health_table(
            {title: fit for title, fit in (laws or {}).items() if isinstance(fit, LawFit)}
        ),
        law_pictures=law_pictures or {},
        compared=compared,
        compared_pictures=compared_pictures or {},
        usage=tables.usage(runs, fits),
        configurations=tables.configurations(fits),
        parameter_groups=tables.parameter_groups(fits),
        curves=tables.curves(fits),
        best=tables.best(fits),
        comparison=tables.comparison(fits),
        trials=tables.trials(runs),
        health=tables.health(fits),
        excluded=tables.excluded(runs),
        warnings=tables.warnings(runs, fits),
        missing=tables.missing(fits),
        hold_outs=[(c, c.fit.hold_out, c.fit.hold_out_note) for c in fits.curves],
        environment=runs.environment,
        fits=fits,
        commands=_commands(runs, sweep),
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
