"""HTML report of a sweep: one self-contained page, and its files.

The page fetches nothing.
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from analysis.loading.load import Runs, sweep_names
from analysis.plotting.canvas import KINDS
from analysis.report.contents import ReportContents, report_contents
from analysis.report.device_share import device_share
from analysis.report.figure_files import (
    FITS_STEM,
    LAW_STEM,
    MOST_READS_FIGURES,
    READS_STEM,
    Picture,
    content_figures,
    draw_beside,
    figure_paths,
    sweep_figures,
)
from analysis.report.table_files import write_tables
from analysis.scaling.sweep_summary import SweepFits
from orchestrator.records.redaction import without_password

PAGE = "report.html"
NUMBERS = "report.json"
"""Question, answer and every table, as numbers."""


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
    where an architecture reported how its memories or experts are used; `table_reads_TRIAL` where
    reads of table rows were counted; `multipliers`,
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
    of_sweep: Callable[[], Mapping[str, Picture]] | None = None,
    earlier: Sequence[Path] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the page, figures and tables of contents that are there already; return the page.

    Args:
        contents: Of `report_contents`.
        out: Folder to write into; made if missing.
        of_sweep: What `draw_beside` returned of `sweep_figures`; None draws them here.
        earlier: Figures of an earlier report, as `figure_paths` gave them before anything was
            drawn; those that this one lacks are removed.
        progress: Called with a line before each long part.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    progress("figures")
    earlier = figure_paths(folder) if earlier is None else earlier
    of_sweep = of_sweep or draw_beside(sweep_figures(contents.runs, contents.fits), folder)
    of_contents = draw_beside(content_figures(contents), folder)
    write_tables(contents.tables, contents.main_tables, folder)
    numbers = json.dumps(contents.as_json(), indent=1, ensure_ascii=False) + "\n"
    (folder / NUMBERS).write_text(numbers, encoding="utf-8")
    pictures = {**of_contents(), **of_sweep()}
    for path in set(earlier).difference(*(picture.paths for picture in pictures.values())):
        path.unlink(missing_ok=True)
    page = folder / PAGE
    page.write_text(render(contents, pictures), encoding="utf-8")
    return page


def render(contents: ReportContents, pictures: Mapping[str, Picture]) -> str:
    """Return the page's HTML, with pictures by the stem of their files."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_code"] = _with_code
    runs, fits = contents.runs, contents.fits
    laws, law_health = contents.of_laws
    return environment.get_template("report.html.j2").render(
        sweep=contents.sweep,
        question=runs.question,
        answer=contents.answer,
        advice=contents.advice,
        differences=contents.differences,
        trends=contents.trends,
        kinds=[kind.upper() for kind in KINDS],
        source=without_password(runs.source),
        n_trials=len(runs.table),
        n_excluded=len(runs.excluded),
        n_configurations=len(fits.summaries),
        device_share=device_share(runs.table),
        spent=contents.spent,
        pictures={stem: picture.uri for stem, picture in pictures.items()},
        fits_stems=[stem for stem in pictures if stem.startswith(FITS_STEM)],
        law_stems={title: f"{LAW_STEM}_{i}" for i, title in enumerate(contents.laws, 1)},
        reads_stems={
            stem.removeprefix(f"{READS_STEM}_"): stem
            for stem in pictures
            if stem.startswith(READS_STEM)
        },
        most_reads_figures=MOST_READS_FIGURES,
        laws=laws,
        law_health=law_health,
        compared=contents.compared,
        of_sweep=contents.of_sweep,
        hold_outs=[(c, c.fit.hold_out, c.fit.hold_out_note) for c in fits.curves],
        environment=runs.environment,
        fits=fits,
        commands=_commands(runs),
    )


def _with_code(sentence: str) -> Markup:
    """Return a sentence whose commands between backticks are set as code."""
    parts = sentence.split("`")
    marked = [Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts)]
    return Markup("").join(marked)


def _commands(runs: Runs) -> list[str]:
    """Return the commands that make this page anew: lines of Python for somebody's table."""
    if runs.call is not None:
        return [
            "import analysis",
            f"runs = {runs.call}",
            "analysis.write_report(runs, analysis.fit_sweep(runs), 'report')",
        ]
    names = sweep_names(runs.sweep) or sorted(set(runs.table["sweep"].astype(str)))
    report = f"memscale report {' '.join(names)}"
    if "://" in runs.source:
        return [f"{report} --tracking-uri {without_password(runs.source)}"]
    source = Path(runs.source)
    if not source.is_dir():
        return []
    root = source.parent if (source / "trials").is_dir() else source
    option = f"--runs {shlex.quote(str(root))}"
    sheets = [sheet for name in names if (sheet := root / name / "sweep.yaml").exists()]
    return [
        *(f"memscale submit {shlex.quote(str(sheet))} {option}" for sheet in sheets),
        f"{report} {option}",
    ]
