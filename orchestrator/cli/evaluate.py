"""Command `memscale evaluate`: benchmarks of trained models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.app import Runs, console_here, find_trial, verb

if TYPE_CHECKING:
    from orchestrator.records.trial_dir import TrialDir

SUITES = "zero_shot, factual, small, mmlu, last_word, gsm8k"


@verb(
    epilog="Examples: memscale evaluate my_sweep --suite small --data benchmarks  ·  "
    "memscale evaluate dense-1f0c --suite zero_shot --suite factual --data benchmarks  ·  "
    "memscale evaluate models/pythia-160m --suite zero_shot --data benchmarks",
    help="Measure trained models on benchmarks with lm-evaluation-harness, from local files. "
    "Numbers are kept beside the trial's result and enter tables, reports and MLflow.",
)
def evaluate(
    what: Annotated[
        str,
        typer.Argument(
            help="A sweep, a trial id or its beginning, or a folder in Hugging Face's format.",
            metavar="SWEEP|TRIAL|FOLDER",
        ),
    ],
    suite: Annotated[
        list[str],
        typer.Option(help=f"{SUITES}, or a YAML file; may be given several times."),
    ],
    data: Annotated[
        Path,
        typer.Option(envvar="MEMSCALE_BENCHMARKS", help="Folder of the benchmarks' JSON lines."),
    ],
    runs: Runs = Path("runs"),
    limit: Annotated[
        int | None,
        typer.Option(
            help="Rows of each task, for a first look; the numbers are not kept.",
            min=1,
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure what was measured before, too.")
    ] = False,
) -> None:
    """Measure trained models on benchmarks."""
    from orchestrator.cli.render.evaluation import evaluation_tables, showing_progress
    from orchestrator.evaluation import evaluate_trials

    suites = evaluate_trials.prepare(suite, data, limit=limit)
    found: dict[str, list[Any]] = {}
    with showing_progress() as progress:
        if Path(what).is_dir() and not (runs / what / "trials").is_dir():
            found[what] = list(
                evaluate_trials.evaluate_folder(Path(what), suites, progress=progress(what))
            )
        else:
            for trial in _trials(runs, what):
                name = trial.trial_id
                found[name] = list(
                    evaluate_trials.evaluate_trial(
                        trial,
                        suites,
                        again=again,
                        keep=limit is None,
                        progress=progress(name),
                    )
                )
    console_here().print(evaluation_tables(found))


def _trials(runs: Path, what: str) -> "list[TrialDir]":
    """Return a sweep's finished trials, or the one trial.

    Raises:
        StoreError: If there is neither.
        UsageError: If no trial of the sweep has finished.
    """
    from orchestrator.records.errors import UsageError
    from orchestrator.records.trial_dir import SweepDir
    from orchestrator.records.trial_spec import TrialState

    if not (runs / what / "trials").is_dir():
        return [find_trial(runs, what)]
    trials = [t for t in SweepDir(runs / what).trials() if t.state() is TrialState.DONE]
    if not trials:
        raise UsageError(f"sweep {what}: none of its trials is done; see `memscale status {what}`")
    return trials
