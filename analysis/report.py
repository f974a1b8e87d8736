"""One self-contained HTML page about a sweep: nothing is fetched when it is opened."""

import base64
import os
from pathlib import Path

import jinja2

from analysis.figures import save, sweep_figure
from analysis.fit import SweepFits
from analysis.runs import Runs, histories
from analysis.tables import (
    comparison,
    configurations,
    curves,
    excluded,
    parameter_groups,
    trials,
    usage,
)
from analysis.usage import usage_columns
from analysis.usage_figure import usage_figure

FIGURE_STEM = "accuracy"
USAGE_STEM = "usage"
PAGE = "report.html"


def write_report(runs: Runs, fits: SweepFits, out: str | os.PathLike[str]) -> Path:
    """Write `report.html`, and its figures beside it as `.svg` and `.png`; return the page.

    The figures are `accuracy`, and `usage` where an architecture reported how its memories or experts are used.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`.
        out: Folder to write into; made if missing.

    Raises:
        StoreError: If the source of the runs is no longer there.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    picture = None
    if len(runs.table):
        try:
            figure = sweep_figure(runs, fits)
        except ValueError:
            figure = None  # the page says so and still shows what was excluded and why
        if figure is not None:
            vector, _ = save(figure, folder / FIGURE_STEM)
            picture = _data_uri(vector)
    page = folder / PAGE
    usage_picture = _draw_usage(runs, fits, folder / USAGE_STEM)
    page.write_text(render(runs, fits, picture, usage_picture=usage_picture), encoding="utf-8")
    return page


def _draw_usage(runs: Runs, fits: SweepFits, stem: Path) -> str | None:
    if not usage_columns(runs.table.columns):
        return None  # histories are many files or requests
    figure = usage_figure(runs, fits, histories(runs))
    if figure is None:
        return None
    # Of a dozen layers over a long training the lines take more space than their picture.
    return _data_uri(min(save(figure, stem), key=lambda path: path.stat().st_size))


def _data_uri(path: Path) -> str:
    kind = {".svg": "svg+xml", ".png": "png"}[path.suffix]
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def figure_paths(out: str | os.PathLike[str]) -> list[Path]:
    """Return the figures that `write_report` left in `out`."""
    names = [f"{stem}.{kind}" for stem in (FIGURE_STEM, USAGE_STEM) for kind in ("png", "svg")]
    return [path for path in (Path(out) / name for name in names) if path.exists()]


def render(
    runs: Runs, fits: SweepFits, picture: str | None, *, usage_picture: str | None = None
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
        picture=picture,
        usage_picture=usage_picture,
        usage=usage(runs, fits),
        configurations=configurations(fits),
        parameter_groups=parameter_groups(fits),
        curves=curves(fits),
        comparison=comparison(fits),
        trials=trials(runs),
        excluded=excluded(runs),
        hold_outs=[(c, c.fit.hold_out, c.fit.hold_out_note) for c in fits.curves],
        environment=runs.environment,
        fits=fits,
        commands=_commands(runs, sweep),
    )


def _commands(runs: Runs, sweep: str) -> list[str]:
    if "://" in runs.source:
        return [f"memscale report {sweep} --tracking-uri {runs.source}"]
    source = Path(runs.source)
    if not source.is_dir():
        return []
    root = source.parent if (source / "trials").is_dir() else source
    sheet = root / sweep / "sweep.yaml"
    return [
        *([f"memscale submit {sheet}"] if sheet.exists() else []),
        f"memscale report {sweep} --runs {root}",
    ]
