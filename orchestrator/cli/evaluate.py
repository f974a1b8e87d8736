"""Command `memscale evaluate`: benchmarks of trained models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.app import TRIAL, Json, Runs, console_here, echo_json, find_trial, verb

if TYPE_CHECKING:
    from orchestrator.records.trial_dir import TrialDir

SUITES = "zero_shot, factual, small, mmlu, nll, code, last_word, gsm8k"


Models = Annotated[
    str,
    typer.Argument(
        help=f"A sweep, a {TRIAL}, a folder in Hugging Face's format, or a trial's checkpoint.",
        metavar="SWEEP|TRIAL|FOLDER",
    ),
]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{SUITES}, or a YAML file; may be given several times. Default: what "
        "`evaluation:` of the sweep file names, where it was not measured yet."
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(help="JSON lines with question and answer, asked without the harness."),
]
DecodeLatency = Annotated[
    bool,
    typer.Option("--decode-latency", help="Time greedy decoding, one and 64 sequences at a time."),
]
TableReads = Annotated[
    bool,
    typer.Option(
        "--table-reads",
        help="Count how often each row of each memory table is read over held-out text, and draw "
        "it.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        envvar="MEMSCALE_BENCHMARKS",
        help="Folder of the benchmarks' JSON lines; needed with --suite.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Rows of each task, for a first look; the numbers are not kept.", min=1),
]
Again = Annotated[bool, typer.Option("--again", help="Measure what was measured before, too.")]


@verb(
    epilog="Examples: memscale evaluate my_sweep --suite small --data benchmarks  ·  "
    "memscale evaluate dense-1f0c --suite zero_shot --suite factual --data benchmarks  ·  "
    "memscale evaluate models/pythia-160m --suite zero_shot --data benchmarks",
    help="Measure trained models on benchmarks with lm-evaluation-harness, from local files. "
    "Numbers are kept beside the trial's result and enter tables, reports and MLflow.",
)
def evaluate(
    what: Models,
    suite: Suites = None,
    questions: Questions = None,
    decode_latency: DecodeLatency = False,
    table_reads: TableReads = False,
    data: Data = None,
    runs: Runs = Path("runs"),
    limit: Limit = None,
    again: Again = False,
    json: Json = False,
) -> None:
    """Measure trained models on benchmarks."""
    from orchestrator.cli.render.evaluation import evaluation_tables, showing_progress
    from orchestrator.evaluation import evaluate_trials, trained_trial

    asked = _asked(suite, questions, data, limit)
    if decode_latency:
        asked = [*(asked or []), evaluate_trials.decode_latency()]
    if table_reads:
        asked = [*(asked or []), evaluate_trials.table_reads()]
    notes: list[str] = []
    specs: list[Any] = []
    of_checkpoint = trained_trial.trial_of_checkpoint(Path(what))
    if of_checkpoint or (Path(what).is_dir() and not (runs / what / "trials").is_dir()):
        suites = _require(asked, what)
        with showing_progress() as progress:
            results = evaluate_trials.evaluate_folder(Path(what), suites, progress=progress(what))
            found = {what: list(results)}
    else:
        trials, keep = _trials(runs, what), limit is None
        specs = [trial.spec() for trial in trials]
        found, notes = _evaluate_trials(what, trials, asked, again=again, keep=keep)
        if table_reads and keep:
            notes += _draw_reads(trials)
    if json:
        models = {name: {one.suite: one.record for one in of} for name, of in found.items()}
        echo_json({"models": models, "notes": notes})
        return
    console_here().print(evaluation_tables(found, specs))
    for note in notes:
        console_here().print(f"note: {note}", style="yellow")


def _evaluate_trials(
    what: str, trials: "list[TrialDir]", asked: list[Any] | None, *, again: bool, keep: bool
) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the results of each trial, and notes on what was not measured.

    Raises:
        UsageError: If neither the options nor the sweep file ask any of the trials anything.
    """
    from orchestrator.cli.render.evaluation import showing_progress
    from orchestrator.evaluation import evaluate_trials
    from orchestrator.records.units import plural

    found: dict[str, list[Any]] = {}
    notes: list[str] = []
    skipped: list[str] = []
    # Trials of a sweep name the same suites: each is read once.
    known: dict[Any, list[Any]] = {}
    with showing_progress() as progress:
        for trial in trials:
            name = trial.trial_id
            suites = asked or _scheduled(trial, known)
            if not suites:
                skipped.append(name)
                continue
            if asked is None and (steps := evaluate_trials.missing_steps(trial, suites)):
                notes.append(_gone(name, steps))
            results = evaluate_trials.evaluate_trial(
                trial, suites, again=again, keep=keep, progress=progress(name)
            )
            found[name] = list(results)
    if not found:
        _require(None, what)
    if skipped:
        notes.append(
            f"{plural(len(skipped), 'trial')} skipped, for which the sweep file has no "
            f"`evaluation`: {', '.join(skipped)}; add it and submit again"
        )
    return found, notes


def _draw_reads(trials: "list[TrialDir]") -> list[str]:
    """Draw what was counted of each trial; return where, or that it has no tables."""
    from analysis.loading.table_reads import FOLDER, read_table_reads
    from analysis.plotting.canvas import save
    from analysis.plotting.table_histograms_figure import table_histograms_figure
    from analysis.plotting.table_reads_figure import table_reads_figure
    from orchestrator.records.units import plural

    notes: list[str] = []
    without: dict[str, int] = {}
    for trial in trials:
        layers = read_table_reads(trial.path)
        if layers:
            folder = trial.path / FOLDER
            reads, *_ = save(table_reads_figure(layers), folder / "reads")
            tables, *_ = save(table_histograms_figure(layers), folder / "tables")
            notes.append(
                f"{trial.trial_id}: figures {reads} and {tables}, numbers {folder / 'tables.csv'}"
            )
        else:
            architecture = trial.spec().architecture
            without[architecture] = without.get(architecture, 0) + 1
    return [
        *notes,
        *(f"{one} reads no memory table ({plural(n, 'trial')})" for one, n in without.items()),
    ]


def _asked(
    suite: list[str] | None, questions: Path | None, data: Path | None, limit: int | None
) -> list[Any] | None:
    """Return what the options ask, prepared; None where the sweep file has to say.

    Raises:
        UsageError: If there is no such suite, no folder, or a file is missing or wrong.
    """
    from orchestrator.evaluation import evaluate_trials

    if not suite and questions is None:
        if limit is not None:
            raise typer.BadParameter("needs --suite or --questions", param_hint="--limit")
        return None
    return evaluate_trials.prepare(suite or [], data, questions, limit=limit)


def _scheduled(trial: "TrialDir", known: dict[Any, list[Any]]) -> list[Any]:
    """Return the suites of a trial's sweep file, prepared; `known` are those of other trials."""
    from orchestrator.evaluation import evaluate_trials

    schedule = trial.spec().evaluation
    if schedule not in known:
        known[schedule] = evaluate_trials.scheduled(trial)
    return known[schedule]


def _require(suites: list[Any] | None, what: str) -> list[Any]:
    from orchestrator.records.errors import UsageError

    if not suites:
        raise UsageError(
            f"{what}: nothing to ask; give --suite, --questions, --decode-latency or "
            "--table-reads, or add evaluation: {suites: [small]} to the sweep file and submit it "
            "again (trials that are done are not trained anew)"
        )
    return suites


def _gone(name: str, steps: list[int]) -> str:
    """Say that weights of some steps were not kept."""
    return (
        f"{name}: not measured after step {', '.join(f'{step:,}' for step in steps)}, because a "
        "trial that is done keeps its last weights only; benchmarks at earlier steps are asked "
        "during training"
    )


def _trials(runs: Path, what: str) -> "list[TrialDir]":
    """Return a sweep's finished trials, or the one trial.

    Raises:
        StoreError: If there is neither.
        UsageError: If no trial of the sweep has finished.
    """
    from orchestrator.records.errors import UsageError
    from orchestrator.records.sweep_dir import SweepDir
    from orchestrator.records.trial_spec import TrialState

    if not (runs / what / "trials").is_dir():
        return [find_trial(runs, what)]
    trials = [t for t in SweepDir(runs / what).trials() if t.state() is TrialState.DONE]
    if not trials:
        raise UsageError(f"sweep {what}: none of its trials is done; see `memscale status {what}`")
    return trials
