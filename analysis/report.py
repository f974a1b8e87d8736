"""One self-contained HTML page about a sweep: nothing is fetched when it is opened."""

import base64
import os
from pathlib import Path

import jinja2

from analysis.figures import save, sweep_figure
from analysis.fit import SweepFits
from analysis.runs import Runs
from analysis.tables import comparison, configurations, curves, excluded, trials

FIGURE_STEM = "accuracy"
PAGE = "report.html"


def write_report(runs: Runs, fits: SweepFits, out: str | os.PathLike[str]) -> Path:
    """Write `report.html`, and the figure beside it as `accuracy.svg` and `accuracy.png`; return the page.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`.
        out: Folder to write into; made if missing.
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
            picture = "data:image/svg+xml;base64," + base64.b64encode(vector.read_bytes()).decode()
    page = folder / PAGE
    page.write_text(render(runs, fits, picture), encoding="utf-8")
    return page


def figure_paths(out: str | os.PathLike[str]) -> list[Path]:
    """Return the figures that `write_report` left in `out`."""
    return [
        p for p in (Path(out) / f"{FIGURE_STEM}.{kind}" for kind in ("png", "svg")) if p.exists()
    ]


def render(runs: Runs, fits: SweepFits, picture: str | None) -> str:
    """Return the page's HTML; `picture` is a data URI."""
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
        configurations=configurations(fits),
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
