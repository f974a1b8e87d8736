"""Commands `memscale fit`, `report` and `next`: results and next runs."""

import atexit
import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.app import (
    Json,
    PriceText,
    ReadFrom,
    Runs,
    SweepName,
    SweepNames,
    console_here,
    echo_json,
    find_sweep,
    make_plan,
    needs_extra,
    read_price,
    runs_option,
    verb,
)
from orchestrator.cli.lazy_modules import load_on_first_use

Csv = Annotated[
    bool, typer.Option("--csv", help="Print the tables as CSV: a line `# NAME`, then numbers.")
]
By = Annotated[
    str | None,
    typer.Option(
        help="Settings that tell curves apart, with commas: model.n_keys, train.lr, preset (memory "
        "size at a fixed base), or architecture alone. Of others that vary, a curve goes through "
        "the best of every size. Default: all that vary."
    ),
]

Baseline = Annotated[
    str | None,
    typer.Option(
        help="Architecture that others are compared with. Default: dense; where it was not "
        "trained, what `match` made most others equal to.",
        metavar="ARCHITECTURE",
        show_default=False,
    ),
]


@verb(
    epilog="Examples: memscale fit quickstart  ·  memscale fit mine --by model.n_keys  ·  "
    "memscale fit mine larger"
)
@needs_extra("analysis")
def fit(
    sweeps: SweepNames,
    runs: Runs = Path("runs"),
    tracking_uri: ReadFrom = None,
    by: By = None,
    baseline: Baseline = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Fit the curves of a sweep, or of several, and print the numbers with intervals."""
    _run_lightly()
    from analysis.report.tables import tables

    fitted = tables(*_fits(sweeps, runs, tracking_uri, by, baseline), everything=json or csv)
    _print_tables(fitted, json=json, csv=csv)


def _print_tables(fitted: Sequence[Any], *, json: bool, csv: bool) -> None:
    """Print tables as people read them, as JSON, or as CSV."""
    from analysis.report.table_files import as_json, csv_text
    from orchestrator.cli.render import results

    if json:
        echo_json([as_json(table) for table in fitted])
    elif csv:
        parts = [f"# {table.name}\n{csv_text(table)}" for table in fitted if table.rows]
        typer.echo("\n".join(parts), nl=False)
    else:
        console_here().print(results.printed([table.said_once() for table in fitted]))


@verb(
    epilog="Examples: memscale report quickstart  ·  memscale report mine larger --out both",
    help="Answer the question of a sweep, or of several: fit, draw and write report.html, one "
    "self-contained page.",
)
@needs_extra("analysis")
def report(
    sweeps: SweepNames,
    runs: Runs = Path("runs"),
    tracking_uri: ReadFrom = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write into. Default: RUNS/SWEEP/report, of several sweeps "
            "RUNS/FIRST/report+SECOND",
            file_okay=False,
        ),
    ] = None,
    by: By = None,
    baseline: Baseline = None,
    price_text: PriceText = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Write the report."""
    from orchestrator.records.storage_errors import require_writable

    _run_lightly()
    sweeps, price = list(dict.fromkeys(sweeps)), read_price(price_text)
    folder = out or runs / sweeps[0] / "+".join(["report", *sweeps[1:]])
    # To find out after all fits would be late. What was spent is known in the runs folder alone.
    if tracking_uri is None or price is not None:
        for sweep in sweeps:
            find_sweep(runs, sweep)
    require_writable(folder, option="--out")
    runs_table, fits = _fits(sweeps, runs, tracking_uri, by, baseline, meanwhile=_import_report)

    from analysis.report.contents import report_contents
    from analysis.report.figure_files import draw_beside, figure_paths, sweep_figures
    from analysis.report.html import write_contents
    from orchestrator.cli.render import results

    earlier = figure_paths(folder)
    of_sweep = draw_beside(sweep_figures(runs_table, fits), folder)
    # `memscale next` writes runs of one sweep.
    trials = () if tracking_uri or len(sweeps) > 1 else _recorded_trials(runs, sweeps[0])
    spent = None if price is None else _spent_by_each(sweeps, runs, price)
    contents = report_contents(
        runs_table,
        fits,
        trials=trials,
        spent=spent and f"{spent}.",
        progress=_echo_part,
    )
    if not json and not csv:
        # Before the last figures, some of which the second process draws meanwhile.
        _print_answer(contents)
    page = write_contents(contents, folder, of_sweep=of_sweep, earlier=earlier, progress=_echo_part)
    figures = figure_paths(folder)
    if json:
        written = {"report": str(page), "figures": [str(figure) for figure in figures]}
        echo_json({**written, **contents.as_json()})
        return
    if csv:
        _print_tables(contents.tables, json=False, csv=True)
        return
    console = console_here()
    if spent is not None:
        console.print(f"{spent}\n")
    console.print(results.next_steps(page, figures, sweep=sweeps[0], runs_option=runs_option(runs)))


def _spent_by_each(sweeps: Sequence[str], runs: Path, price: Any) -> str:
    """Return what each sweep has cost so far and, of several, all together."""
    import time

    from orchestrator.planning.price import spent_hours

    now = time.time()
    hours = {name: spent_hours(find_sweep(runs, name), price, now=now) for name in sweeps}
    parts = [f"{name}: spent so far: {price.text(spent)}" for name, spent in hours.items()]
    together = [f"together: {price.text(sum(hours.values()))}"] if len(sweeps) > 1 else []
    return "; ".join(parts + together)


def _print_answer(contents: Any) -> None:
    """Print what a report says to the question, and the tables that it rests on."""
    from orchestrator.cli.render import results

    console = console_here()
    console.print(results.answered(contents.runs.question, contents.answer, contents.advice))
    trends = [contents.trends] if contents.trends.rows else []
    shown = [contents.differences, *trends, *contents.of_sweep.listed()]
    console.print(results.printed([table.said_once() for table in shown]))


def _import_report() -> None:
    """Import what writes reports, matplotlib with it: a third of a second."""
    import analysis.report.html  # noqa: F401


def _echo_part(part: str) -> None:
    typer.echo(f"{part} …", err=True)


Candidates = Annotated[
    list[Path] | None,
    typer.Option(
        help="Sweep file of trials to choose from; may be repeated. Default: what the sweep has "
        "not trained yet, and a further seed of what it has.",
        metavar="SWEEP.yaml",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="What to know better: a loss, 'memory_plus: params=1e8, tokens=2e9' (the inputs of "
        "the law), or a multiplier, 'memory_plus/dense: flops=1e18'. Default: the loss of the best "
        "architecture at ten times its largest run."
    ),
]
Outcome = Annotated[str, typer.Option(help="Column of the runs: loss or answer_nll.")]
Law = Annotated[
    str | None,
    typer.Option(
        help="Law to fit. Default: chinchilla where tokens vary, else power (in x: stored "
        "parameters; FLOPs where tokens grow in step with size)."
    ),
]
MaxRuns = Annotated[int, typer.Option(help="Most runs to choose.", min=1)]
GpuHours = Annotated[
    float | None,
    typer.Option(
        help="Most GPU-hours to spend, core-hours without a GPU. Default: no limit.", min=0.0
    ),
]
Far = Annotated[
    float | None,
    typer.Option(help="Choose nothing further outside the runs than this factor.", min=1.0),
]
ExtraSeeds = Annotated[
    int,
    typer.Option(help="Further seeds that each finished configuration of the file may get.", min=0),
]
Out = Annotated[Path, typer.Option(help="Sweep file to write.", dir_okay=False)]


@verb(
    name="next",
    epilog="Examples: memscale next quickstart  ·  "
    "memscale next quickstart --candidates more.yaml --gpu-hours 2  ·  "
    'memscale next quickstart --candidates more.yaml --target "memory_plus: x=1e6"  ·  '
    'memscale next mine --target "memory_plus/dense: flops=1e18" --out next.yaml; '
    "memscale submit next.yaml",
    help="Choose the runs that narrow a stated number most per GPU-hour, and write them as a sweep "
    "file to submit.",
)
@needs_extra("analysis")
def next_(
    sweep: SweepName,
    candidates: Candidates = None,
    target: Target = None,
    outcome: Outcome = "loss",
    law: Law = None,
    n_runs: MaxRuns = 3,
    gpu_hours: GpuHours = None,
    far: Far = None,
    extra_seeds: ExtraSeeds = 1,
    out: Out = Path("next.yaml"),
    runs: Runs = Path("runs"),
    tracking_uri: ReadFrom = None,
    json: Json = False,
) -> None:
    """Write the most informative next runs as a sweep file."""
    _run_lightly()
    import analysis
    from analysis.report.next_runs_table import next_runs_table
    from analysis.report.table_files import as_json
    from analysis.scaling.candidate_trials import propose
    from analysis.scaling.design_sweep import sweep_texts
    from orchestrator.cli.render import results
    from orchestrator.records.errors import UsageError
    from orchestrator.sweep.parsing.discovery import Source, joined

    if tracking_uri is None:
        find_sweep(runs, sweep)
    loaded = analysis.load(tracking_uri or runs, sweep=sweep)
    if out.exists():
        raise UsageError(f"{out}: is there already; name another file with --out, or remove it")
    try:
        # Those of the last file alone would not be all that the report chooses among.
        found = propose(
            loaded.table,
            make_plan(candidates, runs).trials if candidates else _recorded_trials(runs, sweep),
            target=target,
            outcome=outcome,
            law=law,
            n_runs=n_runs,
            gpu_hours=gpu_hours,
            far=far,
            extra_seeds=extra_seeds,
        )
        chosen = [next_runs_table(found)]
        if not json:
            console_here().print(results.printed(chosen))
        texts = sweep_texts(found, name=sweep, file=str(out), question=loaded.question)
        parts = [Source(file=out, text=text, label=label) for label, text in texts.items()]
        out.write_text(joined(parts), encoding="utf-8")
    except ValueError as error:
        raise UsageError(str(error)) from error
    if json:
        answer = {"sentence": found.sentence, "notes": list(found.notes)}
        echo_json({"written": str(out), **answer, "tables": [as_json(t) for t in chosen]})
        return
    _print_next_steps(out, runs)


def _print_next_steps(out: Path, runs: Path) -> None:
    """Print where the sweep file is, and the commands that take it further."""
    from orchestrator.cli.render.command_name import command

    option = runs_option(runs)
    console_here().print(
        f"Written: {out}\n"
        f"Look:    {command()} plan {out}{option}\n"
        f"Train:   {command()} submit {out}{option}"
    )


def _run_lightly() -> None:
    """Set up this process for many small matrices and objects, before numpy is imported."""
    # Threads of linear algebra that wait for each other take three times the CPU seconds of one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # SciPy copies the names of all of NumPy, and PDFs cut out parts of fonts for one type of them
    # that no figure has: a seventh of a second, of the latter in every process.
    load_on_first_use("numpy.f2py", "numpy.testing", "fontTools.subset")
    gc.set_threshold(300_000, 20, 20)
    # Else Python looks for cycles among all that was imported as it ends, for a fifth of a second.
    atexit.register(gc.freeze)


def _fits(
    sweeps: Sequence[str],
    runs: Path,
    tracking_uri: str | None,
    by: str | None,
    baseline: str | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[Any, Any]:
    """Load and fit: from the trial directories, or from a tracker when one is named."""
    import analysis
    from orchestrator.records.errors import UsageError

    sweeps = list(dict.fromkeys(sweeps))
    if tracking_uri is None:
        for sweep in sweeps:
            find_sweep(runs, sweep)
    one_or_more = sweeps if len(sweeps) > 1 else sweeps[0]
    table = analysis.load(tracking_uri or runs, sweep=one_or_more)
    if not len(table.table):
        why = "; ".join(
            f"{row.trial_id}: {row.reason}" for row in table.excluded.head(3).itertuples()
        )
        raise UsageError(
            f"sweep {', '.join(sweeps)}: no finished trial counts yet{f': {why}' if why else ''}; "
            f"see `memscale status {sweeps[0]}`"
        )
    names = None if by is None else [n for part in by.split(",") if (n := part.strip())]
    try:
        return table, analysis.fit_sweep(
            table,
            by=names and [n for n in names if n != "architecture"],
            baseline=baseline,
            meanwhile=meanwhile,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _recorded_trials(runs: Path, name: str) -> Any:
    """Return what was submitted, as planned trials."""
    from orchestrator.planning import pricing as planning
    from orchestrator.planning import runtime_prior

    return planning.recorded(find_sweep(runs, name), runtime_prior.measurements(runs))
