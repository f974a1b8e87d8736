"""Application, options, errors and look-ups that the commands share.

Only typer is imported up here, so that `--help` answers at once; each verb imports what it needs.
"""

import gc
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.records.sweep_dir import SweepDir
    from orchestrator.records.trial_dir import TrialDir
    from orchestrator.scheduling.demand import Node


@contextmanager
def errors_as_sentences(runs: Path | None, given: Iterable[Path] = ()) -> Iterator[None]:
    """Print an ExperimentError, failing or full storage, or an unusable path as a sentence; exit.

    Args:
        runs: Folder of the runs, if the command has one.
        given: Paths that the user gave.
    """
    from orchestrator.records import storage_errors
    from orchestrator.records.errors import ExperimentError

    try:
        yield
    except PermissionError as error:
        said, code = storage_errors.denied_message(error), 2
    except OSError as error:
        if error.errno in storage_errors.FAILING:
            said, code = (
                storage_errors.failing_message(error, runs or Path.cwd(), of_command=True),
                storage_errors.EXIT_CODE,
            )
        elif storage_errors.is_full(error):
            places = [Path.cwd(), *given, *([runs] if runs else [])]
            said = storage_errors.full_message(error, *places, of_command=True)
            code = storage_errors.EXIT_CODE
        elif storage_errors.is_unusable(error, given):
            said, code = storage_errors.unusable_message(error), 2
        else:
            raise
    except ExperimentError as error:
        said, code = str(error), error.exit_code
    else:
        return
    typer.echo(said, err=True)
    raise typer.Exit(code) from None


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a package that is not installed into an error that names the extra that brings it."""
    from orchestrator.records.errors import not_installed

    try:
        yield
    except ModuleNotFoundError as error:
        raise not_installed(error, extra) from error


class Verb(TyperCommand):
    """A command: its errors are sentences, and its help gives flags no type."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; `<bool>` after a flag would ask for a value."""
        return _without_flag_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; typer hands on what pydantic writes before a refused choice."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        given = [value for value in ctx.params.values() if isinstance(value, Path)]
        with errors_as_sentences(ctx.params.get("runs"), given):
            return super().invoke(ctx)


class Verbs(TyperGroup):
    """All commands."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters that stand before a command."""
        return _without_flag_types(super().get_params(ctx))


def _without_flag_types(params: Any) -> Any:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


app = typer.Typer(
    name="memscale",
    cls=Verbs,
    epilog="Start with: memscale doctor  ·  memscale plan quickstart  ·  "
    "memscale submit quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
verb = partial(app.command, cls=Verb)
"""Decorator of a command."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"memscale {version('memscale')}")
        except PackageNotFoundError:
            typer.echo("memscale, from a source tree that is not installed")
        raise typer.Exit


@app.callback(
    help="Scaling curves of memory architectures: a sweep YAML in, a fitted parameter-vs-accuracy "
    "curve out."
)
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


SweepFiles = Annotated[
    list[Path],
    typer.Argument(
        help="Sweep file, or the name of a bundled one (quickstart). Several files, or a folder of "
        "them, make one sweep if they carry the same name.",
        metavar="SWEEP.yaml",
    ),
]


def sweep_names(runs: Path) -> list[str]:
    """Return the names of the sweeps that were submitted into a folder."""
    return sorted(trials.parent.name for trials in runs.glob("*/trials"))


def _complete_sweep(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the sweeps whose names begin so, for the shell."""
    runs = Path(ctx.params.get("runs") or os.environ.get("MEMSCALE_RUNS") or "runs")
    return [name for name in sweep_names(runs) if name.startswith(incomplete)]


SweepName = Annotated[
    str,
    typer.Argument(
        help="Name of a submitted sweep.", metavar="SWEEP", autocompletion=_complete_sweep
    ),
]


SweepNames = Annotated[
    list[str],
    typer.Argument(
        help="Name of a submitted sweep. Several are taken as one.",
        metavar="SWEEP...",
        autocompletion=_complete_sweep,
    ),
]


TRIAL = "trial id or its beginning (SWEEP/ID where several sweeps have it)"
"""For the help of commands that take one."""


Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        envvar="MEMSCALE_RUNS",
        help="Folder that holds the sweeps' trial directories.",
        file_okay=False,
    ),
]


TrackingUri = Annotated[
    str | None,
    typer.Option(
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow store or server. Default: sqlite:///RUNS/mlflow.db",
    ),
]


Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


ReadFrom = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        help="Read an MLflow store or server instead of the trial directories under RUNS.",
    ),
]


PriceText = Annotated[
    str | None,
    typer.Option(
        "--price",
        envvar="MEMSCALE_PRICE",
        help="Say what it costs: 2.5/gpu-hour, $2.5/gpu-hour or 0.04/core-hour.",
        metavar="PRICE",
    ),
]


def make_plan(
    sweep_files: list[Path],
    runs: Path,
    *,
    gpus_there: bool | None = None,
    nodes: "Sequence[Node]" = (),
    on_name: Callable[[str], None] | None = None,
) -> Any:
    """Read sweep files, expand and price them, and check that their data are there.

    `on_name` is called with the sweep's name when that is known (`load_sweep`).
    """
    from orchestrator.planning import input_data, runtime_prior
    from orchestrator.planning import pricing as planning
    from orchestrator.records.sweep_dir import sweep_dir
    from orchestrator.sweep import architecture_errors
    from orchestrator.sweep.load import load_sweep

    with (
        architecture_errors.as_sentences(),
        log_to_stderr("orchestrator.sweep.matching.step_time"),
        _garbage_kept(),
    ):
        sweep = load_sweep(sweep_files, on_name=on_name)
        snapshot = sweep_dir(runs, sweep.name).snapshot()
        measured = runtime_prior.measurements(runs, snapshot=snapshot)
        priced = planning.make_plan(sweep, snapshot, measured, gpus_there=gpus_there, nodes=nodes)
        return input_data.check_data(priced)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Leave the collector out: it would look through torch and all trials, again and again.

    What is there at the end is left out for good.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def read_price(text: str | None) -> Any:
    """Return the `--price` of a command, None without."""
    if text is None:
        return None
    from orchestrator.planning import price

    with names_option("--price"):
        return price.parse(text)


def spent_text(sweep: "SweepDir", price: Any) -> str:
    """Return what a sweep has cost so far."""
    import time

    from orchestrator.planning.price import spent_hours

    return f"spent so far: {price.text(spent_hours(sweep, price, now=time.time()))}"


def prepare_data(priced: Any, runs: Path) -> None:
    """Tokenise what the trials to train need, before they start; say how it goes."""
    from orchestrator.planning import input_data

    cache = (runs / "cache").absolute()
    try:
        input_data.prepare_data(priced, cache, lambda said: typer.echo(f"data: {said}", err=True))
    except KeyboardInterrupt:
        typer.echo("Interrupted; submitting again goes on from here.", err=True)
        raise typer.Exit(130) from None


@contextmanager
def log_to_stderr(logger_name: str) -> Iterator[None]:
    """Show a logger on stderr: timing steps takes minutes, and standard output may be JSON."""
    import logging

    logger, handler = logging.getLogger(logger_name), logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def console_here() -> "Console":
    """Return where to print."""
    from rich.console import Console

    # Piped into a file or `less`, tables keep the width they need instead of wrapping at 80.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def echo_json(value: Any) -> None:
    """Print what a table shows as JSON; numbers that are not finite are null."""
    import json

    typer.echo(json.dumps(_finite(value), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def names_option(name: str) -> Iterator[None]:
    """Turn a ValueError into a wrong value of this option."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def runs_option(runs: Path) -> str:
    """Return ` --runs RUNS` for commands to type, empty where it is the default."""
    return "" if runs == Path("runs") else f" --runs {shlex.quote(str(runs))}"


def find_sweep(runs: Path, name: str) -> "SweepDir":
    """Return a sweep that was submitted.

    Raises:
        NotFoundError: If there is none of that name; lists those there are.
    """
    from orchestrator.records.errors import NotFoundError
    from orchestrator.records.sweep_dir import dangling_link, sweep_dir

    sweep = sweep_dir(runs, name)
    if not (sweep.path / "trials").is_dir():
        for path in (runs, sweep.path):
            if why := dangling_link(path):
                raise NotFoundError(f"{path}: {why}")
        if not runs.is_dir():
            raise NotFoundError(
                f"sweep {name!r}: there is no folder {runs}; "
                "say where the sweeps are with --runs or MEMSCALE_RUNS"
            )
        known = sweep_names(runs)
        there = (
            f"there are: {', '.join(known)}" if known else f"nothing was submitted into {runs} yet"
        )
        raise NotFoundError(
            f"sweep {name!r}: not found in {runs}; {_sweeps_of(runs, name) or there}"
        )
    return sweep


def _sweeps_of(runs: Path, asked: str) -> str:
    """Return that trials, not sweeps, begin with a name, and what to write; empty where none do."""
    from orchestrator.records.sweep_dir import SweepDir

    sweeps = [
        name
        for name in sweep_names(runs)
        if any(trial.trial_id.startswith(asked) for trial in SweepDir(runs / name).trials())
    ]
    if not sweeps:
        return ""
    return (
        f"trials of {', '.join(sweeps)} begin so: write the name of the sweep, and with cancel and "
        f"retry the trial behind it, as in `{sweeps[0]} {asked}`"
    )


def _no_trial(runs: Path, asked: str) -> str:
    """Return that there is no such trial, and what there is."""
    from orchestrator.records.sweep_dir import SweepDir

    known = sweep_names(runs)
    if asked in known:
        ids = [trial.trial_id for trial in SweepDir(runs / asked).trials()]
        some = ", ".join(ids[:5]) + ", …" * (len(ids) > 5)
        return f"{asked!r} is a sweep, and this takes one trial; name one of {some}"
    if not known:
        return f"{asked!r}: nothing was submitted into {runs} yet"
    return (
        f"{asked!r}: no trial is called so, and no sweep; sweeps in {runs}: {', '.join(known)}; "
        "`memscale status SWEEP` lists the ids"
    )


def find_trial(runs: Path, prefix: str, *, sweep: "SweepDir | None" = None) -> "TrialDir":
    """Return the trial whose id is, or alone begins with, `prefix`; SWEEP/ID says of which sweep.

    Raises:
        NotFoundError: If there is none, or more than one.
    """
    from orchestrator.records.errors import NotFoundError
    from orchestrator.records.sweep_dir import SweepDir

    sweeps = [sweep] if sweep else [SweepDir(runs / name) for name in sweep_names(runs)]
    asked, (name, slash, rest) = prefix, prefix.rpartition("/")
    if slash:
        sweeps, prefix = [each for each in sweeps if each.path.name == name], rest
    found = [trial for s in sweeps for trial in s.trials() if trial.trial_id.startswith(prefix)]
    exact = [trial for trial in found if trial.trial_id == prefix]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if not found:
        raise NotFoundError(_no_trial(runs, asked))
    found = exact or found
    paths = [f"{t.path.parent.parent.name}/{t.trial_id}" for t in found[:5]]
    paths += ["…"] * (len(found) > 5)
    if len({trial.trial_id for trial in found}) == 1:
        raise NotFoundError(
            f"trial {asked!r}: {len(found)} sweeps have it; write {' or '.join(paths)}"
        )
    raise NotFoundError(
        f"trial {asked!r}: {len(found)} trials begin so ({', '.join(paths)}); write more of the id"
    )
