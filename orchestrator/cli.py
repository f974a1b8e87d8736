"""The command `memscale`: parse, call, print. Everything it does is a function of another file.

Only typer is imported up here, so that `--help` answers at once; each verb imports what it needs.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.slurm.request import Request
    from orchestrator.trial_dir import SweepDir, TrialDir

app = typer.Typer(
    name="memscale",
    help="Scaling curves of memory architectures: a sweep YAML in, a fitted parameter-vs-accuracy curve out.",
    epilog="Start with: memscale doctor  ·  memscale plan quickstart  ·  memscale submit quickstart",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

P = ParamSpec("P")
R = TypeVar("R")

SweepFiles = Annotated[
    list[Path],
    typer.Argument(
        help="Sweep file, or the name of a bundled one (quickstart). Several files, or a folder of them, "
        "make one sweep if they carry the same name.",
        metavar="SWEEP.yaml",
    ),
]
SweepName = Annotated[str, typer.Argument(help="Name of a submitted sweep.", metavar="SWEEP")]
Runs = Annotated[
    Path,
    typer.Option(
        "--runs", envvar="MEMSCALE_RUNS", help="Folder that holds the sweeps' trial directories."
    ),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow store or server. Default: sqlite:///RUNS/mlflow.db",
        show_default=False,
    ),
]


ReadFrom = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        help="Read an MLflow store or server instead of the trial directories under RUNS.",
        show_default=False,
    ),
]


def reports_errors(verb: Callable[P, R]) -> Callable[P, R]:
    """Print an ExperimentError as its message, without a traceback, and exit with its code."""

    @wraps(verb)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        from orchestrator.errors import ExperimentError

        try:
            return verb(*args, **kwargs)
        except ExperimentError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from None

    return wrapped


def _print_recipes(asked: bool) -> None:
    """Print the recipes and end: the option needs no sweep file beside it."""
    if not asked:
        return
    from orchestrator import catalog
    from orchestrator.display import plans

    _console().print(plans.recipes_text(catalog.recipes_module()))
    raise typer.Exit


@app.command(
    epilog="Examples: memscale plan quickstart  ·  memscale plan dense.yaml memory.yaml  ·  memscale plan my_sweeps/  ·  "
    "memscale plan --show quickstart > my_sweep.yaml  ·  memscale plan quickstart --simulate gpus=1024  ·  "
    "memscale plan quickstart --simulate nodes=8,gpus_per_node=8,gpu_memory=80GB --picture gantt.png"
)
@reports_errors
def plan(
    sweep_files: SweepFiles,
    runs: Runs = Path("runs"),
    slots: Annotated[
        int | None,
        typer.Option(
            help="Trials at a time, for the predicted time. Default: cores / cores per trial."
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the sweep file itself, to start one's own from.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print every number of every trial as JSON.")
    ] = False,
    recipes: Annotated[
        bool,
        typer.Option(
            "--recipes",
            help="Print what `train: {recipe: …}` may name, with sources, and nothing else.",
            callback=_print_recipes,
            is_eager=True,
        ),
    ] = False,
    simulate: Annotated[
        str | None,
        typer.Option(
            help="Run the sweep in simulated time on a cluster: gpus=1024, or nodes=8,gpus_per_node=8,gpu_memory=80GB. "
            "Also cpus_per_node=96 and gpu_flops=4e14 (FLOP/s that training reaches on a GPU); unlike nodes by +.",
            metavar="CLUSTER",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="With --simulate: draw who runs where and when into this PNG, SVG or PDF file.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Price a sweep before anything starts: parameters, FLOPs, bytes, memory, minutes; what is new and why."""
    from orchestrator.display import plans

    if show:
        from orchestrator.errors import ConfigError
        from orchestrator.sweep_files import find

        sources, problems = find.sources(sweep_files)
        if problems:
            raise ConfigError(problems)
        typer.echo(find.joined(sources), nl=False)
        return
    if simulate is not None:
        _simulate(sweep_files, runs, simulate, picture, json=json)
        return
    if picture is not None:
        raise typer.BadParameter(
            "needs --simulate, as in --simulate gpus=64", param_hint="--picture"
        )
    priced = _plan(sweep_files, runs)
    if json:
        import json as json_module

        typer.echo(json_module.dumps([_plan_row(t, priced.sweep) for t in priced.trials], indent=1))
        return
    _console().print(plans.plan_tables(priced, slots=slots or _slots(priced)))


@app.command(
    epilog="Examples: memscale submit quickstart  ·  memscale submit my.yaml --detach  ·  memscale submit dense.yaml memory.yaml  ·  "
    "memscale submit my_sweeps/ --launcher process  ·  memscale submit my.yaml --address auto --priority 1  ·  "
    "memscale submit my.yaml --address ray://head:10001 --runs /shared/runs  ·  "
    "memscale submit my.yaml --backend slurm --nodes 1:8 --partition gpu --time 12:00:00 --slurm account=me  ·  "
    "memscale submit my.yaml --backend slurm-direct --time 4:00:00 --detach"
)
@reports_errors
def submit(
    sweep_files: SweepFiles,
    runs: Runs = Path("runs"),
    tracking_uri: TrackingUri = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Run in the background; watch with `memscale status`."),
    ] = False,
    launcher: Annotated[
        str,
        typer.Option(
            help="ray: embedded Ray. process: plain processes. debug: in this process, one by one."
        ),
    ] = "ray",
    cpus: Annotated[
        int | None, typer.Option(help="Cores to use. Default: all this process may use.", min=1)
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs to use. Default: all that are visible.", min=0)
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Run on a Ray cluster that exists: ray://HOST:10001 from any machine, HOST:PORT or auto from a node of it. "
            "RUNS must be a folder that all nodes see.",
            show_default=False,
        ),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            help="Among the sweeps of one cluster, higher ones go first.", min=-100, max=100
        ),
    ] = 0,
    weight: Annotated[
        float,
        typer.Option(
            help="Share of the cluster, relative to other sweeps of the same priority.", min=0.01
        ),
    ] = 1.0,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Train on a Slurm cluster. slurm: Ray inside allocations (pilots), several trials on a node. "
            "slurm-direct: one job for each trial, without Ray. RUNS must be a folder that all nodes see.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Slurm: nodes, or MIN:MAX to add nodes while trials wait and give them back when idle. "
            "slurm-direct: jobs of an array at a time. Default: 1 (slurm), 64 (slurm-direct).",
            metavar="MIN:MAX",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="Slurm: partition. Default: the cluster's.", show_default=False),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="Slurm: time limit of a job, as sbatch takes it. At its end trials checkpoint and the job goes back into the "
            "queue. Default: 1:00:00.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            help="Slurm: any other option of sbatch, as account=me; may be given several times.",
            metavar="KEY=VALUE",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live table.")] = False,
) -> None:
    """Train what is missing. Ctrl-C checkpoints and leaves; submitting again resumes; submitting twice trains nothing."""
    from orchestrator import submission
    from orchestrator.display import progress
    from orchestrator.display.command import command
    from orchestrator.trial_dir import sweep_dir

    if launcher not in submission.LAUNCHERS:
        raise typer.BadParameter(
            f"launcher must be one of {', '.join(submission.LAUNCHERS)}, got {launcher}"
        )
    request_slurm = _slurm_request(backend, nodes, partition, time, slurm, cpus, gpus, launcher)
    if request_slurm is not None:
        if address is not None:
            raise typer.BadParameter(
                f"--backend {backend} starts a Ray of its own; leave one of them out",
                param_hint="--address",
            )
        _submit_to_slurm(sweep_files, runs, tracking_uri, request_slurm, detach=detach, quiet=quiet)
        return
    # What is here says nothing about the GPUs of a cluster; a trial that asks for `auto` takes them where there are any.
    priced = _plan(sweep_files, runs, gpus_there=None if address is None else True)
    console = _console()
    todo = [t for t in priced.trials if t.to_train]
    try:
        request = submission.Submission(
            plan=priced,
            runs=runs,
            tracking_uri=tracking_uri,
            launcher=launcher,
            cpus=cpus,
            gpus=gpus,
            address=address,
            priority=priority,
            weight=weight,
            argv=tuple(sys.argv),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    # Through the Ray client a sweep would end with this connection, so it is run on the cluster and watched from here.
    hosted = address is not None and address.startswith("ray://")
    if (detach or hosted) and todo:
        log = request.detach()
        console.print(
            f"Submitted {len(todo)} of {len(priced.trials)} trials of {priced.sweep.name} in the background (log: {log})."
        )
        console.print(
            f"Watch:  {command()} status {priced.sweep.name} --watch{_runs_option(runs)}\nStop:   {command()} cancel {priced.sweep.name}{_runs_option(runs)}"
        )
        if not detach and not quiet:
            _watch(sweep_dir(runs, priced.sweep.name), console)
        return
    console.print(
        f"{priced.sweep.name}: {len(priced.trials)} trials, {len(todo)} to train, "
        f"{sum(t.status == 'done' for t in priced.trials)} already done."
    )
    with progress.LiveSweep(console, quiet=quiet) as live:
        outcome = request.run(live.update)
    console.print(progress.outcome_text(outcome, runs_option=_runs_option(runs)))
    raise typer.Exit(outcome.exit_code)


@app.command(hidden=True, epilog="Example: memscale controller runs/quickstart 1")
@reports_errors
def controller(
    sweep: Annotated[Path, typer.Argument(help="Folder of the sweep.")],
    number: Annotated[int, typer.Argument(help="Of the submission, which is written down there.")],
    tracking_uri: TrackingUri = None,
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster, seen from here.")] = None,
    dies_with: Annotated[int | None, typer.Option(help="Pid of the parent to die with.")] = None,
) -> None:
    """Run a submission that is written down already: what `submit --detach` starts, here or on a cluster."""
    import signal

    from orchestrator import processes, submission
    from orchestrator.display import progress
    from orchestrator.trial_dir import SweepDir

    if dies_with is not None:
        # Ray blocks signals in whatever it starts.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        processes.die_with_parent(dies_with)
    console = _console()
    with progress.LiveSweep(console, quiet=True) as live:
        outcome = submission.run_recorded(
            SweepDir(sweep), number, live.update, tracking_uri=tracking_uri, address=address
        )
    console.print(progress.outcome_text(outcome, runs_option=_runs_option(sweep.parent)))
    raise typer.Exit(outcome.exit_code)


@app.command(epilog="Examples: memscale status quickstart  ·  memscale status quickstart --watch")
@reports_errors
def status(
    sweep: SweepName,
    runs: Runs = Path("runs"),
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until the sweep has ended or Ctrl-C.")
    ] = False,
) -> None:
    """Show where every trial of a sweep stands. Works from any terminal that sees the runs folder."""
    from orchestrator.display import progress
    from orchestrator.status import status_from_disk

    disk = _sweep(runs, sweep)
    console = _console()
    if watch:
        _watch(disk, console)
    else:
        console.print(progress.status_table(status_from_disk(disk)))


@app.command(
    epilog="Examples: memscale logs memory_plus-1f0c  ·  memscale logs memory_plus-1f0c -f"
)
@reports_errors
def logs(
    trial: Annotated[str, typer.Argument(help="Trial id, or its beginning.", metavar="TRIAL")],
    runs: Runs = Path("runs"),
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing as the trial writes.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(help="Which attempt. Default: the last.")] = None,
) -> None:
    """Print what a trial wrote: its log, and the reason if it failed."""
    from orchestrator import logs as trial_logs

    for text in trial_logs.read(_trial(runs, trial), attempt=attempt, follow=follow):
        sys.stdout.write(text)
        sys.stdout.flush()


@app.command(
    epilog="Examples: memscale cancel quickstart  ·  memscale cancel quickstart memory_plus-1f0c"
)
@reports_errors
def cancel(
    sweep: SweepName,
    trials: Annotated[
        list[str] | None,
        typer.Argument(help="Trial ids or their beginnings. Default: the whole sweep."),
    ] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Stop trials for good. What they wrote stays; submitting the sweep again takes them up."""
    from orchestrator import submission

    disk = _sweep(runs, sweep)
    chosen = [_trial(runs, t, sweep=disk) for t in trials] if trials else disk.trials()
    asked = submission.cancel(disk, chosen, whole_sweep=not trials)
    typer.echo(
        f"Asked {len(asked)} unfinished trials of {sweep} to stop."
        if asked
        else f"Nothing of {sweep} is unfinished."
    )


@app.command(epilog="Example: memscale fit quickstart")
@reports_errors
def fit(sweep: SweepName, runs: Runs = Path("runs"), tracking_uri: ReadFrom = None) -> None:
    """Fit the curves of a sweep and print the numbers with intervals."""
    from analysis.tables import tables
    from orchestrator.display import results

    runs_table, fits = _fits(sweep, runs, tracking_uri)
    _console().print(results.printed(tables(runs_table, fits)))


@app.command(epilog="Example: memscale report quickstart")
@reports_errors
def report(
    sweep: SweepName,
    runs: Runs = Path("runs"),
    tracking_uri: ReadFrom = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write into. Default: RUNS/SWEEP/report")
    ] = None,
) -> None:
    """Fit, draw and write report.html: one self-contained page. Prints the table and the curves."""
    from analysis.report import figure_paths, write_report
    from analysis.tables import tables
    from orchestrator.display import results

    folder = out or runs / sweep / "report"
    runs_table, fits = _fits(sweep, runs, tracking_uri)
    page = write_report(runs_table, fits, folder)
    console = _console()
    console.print(results.printed(tables(runs_table, fits)))
    console.print(
        results.next_steps(page, figure_paths(folder), sweep=sweep, runs_option=_runs_option(runs))
    )


@app.command(
    name="next",
    epilog="Examples: memscale next quickstart  ·  memscale next quickstart --candidates more.yaml --gpu-hours 2  ·  "
    'memscale next quickstart --candidates more.yaml --target "memory_plus: x=1e6"  ·  '
    'memscale next mine --target "memory_plus/dense: flops=1e18" --out next.yaml; memscale submit next.yaml',
)
@reports_errors
def next_(
    sweep: SweepName,
    candidates: Annotated[
        list[Path] | None,
        typer.Option(
            help="Sweep file of trials to choose from; may be repeated. Default: what the sweep has not trained yet.",
            metavar="SWEEP.yaml",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="What to know better: a loss, 'memory_plus: params=1e8, tokens=2e9' (the inputs of the law), or a multiplier, "
            "'memory_plus/dense: flops=1e18'. Default: the loss of the best architecture at ten times its largest run.",
            show_default=False,
        ),
    ] = None,
    outcome: Annotated[str, typer.Option(help="Column of the runs: loss or answer_nll.")] = "loss",
    law: Annotated[
        str | None,
        typer.Option(
            help="Law to fit. Default: chinchilla where tokens vary, else power (in x, the stored parameters).",
            show_default=False,
        ),
    ] = None,
    n_runs: Annotated[int, typer.Option(help="Most runs to choose.", min=1)] = 3,
    gpu_hours: Annotated[
        float | None, typer.Option(help="Most GPU-hours to spend. Default: no limit.", min=0.0)
    ] = None,
    far: Annotated[
        float | None,
        typer.Option(help="Choose nothing further outside the runs than this factor.", min=1.0),
    ] = None,
    out: Annotated[Path, typer.Option(help="Sweep file to write.")] = Path("next.yaml"),
    runs: Runs = Path("runs"),
    tracking_uri: ReadFrom = None,
) -> None:
    """Choose the runs that narrow a stated number most per GPU-hour, and write them as a sweep file to submit."""
    import analysis
    from analysis.next_sweep import propose, ranking, sweep_text
    from orchestrator.display import results
    from orchestrator.display.command import command
    from orchestrator.errors import StoreError

    table = analysis.load(tracking_uri or runs, sweep=sweep).table
    files = candidates or [_recorded(runs, sweep)]
    if out.exists():
        raise StoreError(f"{out}: is there already; name another file with --out, or remove it")
    try:
        found = propose(
            table, _plan(files, runs).trials, target=target, outcome=outcome, law=law,
            n_runs=n_runs, gpu_hours=gpu_hours, far=far,
        )  # fmt: skip
        _console().print(results.printed([ranking(found)]))
        out.write_text(sweep_text(found, name=sweep, file=str(out)), encoding="utf-8")
    except ValueError as error:
        raise StoreError(str(error)) from error
    _console().print(
        f"Written: {out}\nLook:    {command()} plan {out}{_runs_option(runs)}\nTrain:   {command()} submit {out}{_runs_option(runs)}"
    )


@app.command(epilog="Example: memscale ui")
@reports_errors
def ui(
    sweep: Annotated[
        str | None, typer.Argument(help="Sweep to open. Default: the newest.", metavar="[SWEEP]")
    ] = None,
    runs: Runs = Path("runs"),
    tracking_uri: TrackingUri = None,
    port: Annotated[
        int, typer.Option(help="Port on the loopback interface; the next free one is taken.")
    ] = 5000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anything but loopback lets others in.")
    ] = "127.0.0.1",
) -> None:
    """Open the MLflow page with the runs in it. Ctrl-C ends it."""
    from orchestrator import ui as page

    page.serve(runs, sweep=sweep, tracking_uri=tracking_uri, host=host, port=port, say=typer.echo)


@app.command(epilog="Example: memscale sync quickstart --tracking-uri http://127.0.0.1:5000")
@reports_errors
def sync(sweep: SweepName, runs: Runs = Path("runs"), tracking_uri: TrackingUri = None) -> None:
    """Send what the tracker does not have yet, from the trial directories alone."""
    from orchestrator.tracking.supervise import shipping

    with shipping(_sweep(runs, sweep), tracking_uri) as shipper:
        pass
    if shipper.unshipped_points or shipper.problem:
        typer.echo(
            f"{shipper.unshipped_points:,} points are not in the tracker yet: {shipper.problem}. Run this again when it answers.",
            err=True,
        )
        raise typer.Exit(1)
    typer.echo(f"The tracker has every point of {sweep}.")


@app.command(epilog="Example: memscale doctor")
@reports_errors
def doctor(
    runs: Runs = Path("runs"),
    port: Annotated[int, typer.Option(help="Port that `memscale ui` would use.")] = 5000,
) -> None:
    """Check Python, torch, GPUs, Ray, MLflow, disk and ports, and say what to do about each problem."""
    from orchestrator.display import results
    from orchestrator.doctor import Verdict, examine

    console = _console()
    checks = []
    for check in examine(runs, port=port):
        checks.append(check)
        console.print(results.doctor_table([check]))
    failed = sum(check.verdict is Verdict.FAIL for check in checks)
    console.print(f"{failed} of {len(checks)} checks failed." if failed else "Ready.")
    raise typer.Exit(1 if failed else 0)


def main() -> None:
    """Entry point of the `memscale` command."""
    # Output piped into a program that has ended (`memscale status | head`) is no error.
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _plan(sweep_files: list[Path], runs: Path, *, gpus_there: bool | None = None) -> Any:
    from orchestrator import plan as planning
    from orchestrator import throughput
    from orchestrator.sweep import load_sweep
    from orchestrator.trial_dir import sweep_dir

    with _told_on_stderr("orchestrator.sweep_files.step_times"):
        sweep = load_sweep(sweep_files)
    priced = planning.make_plan(
        sweep,
        sweep_dir(runs, sweep.name),
        throughput.measurements(runs),
        gpus_there=gpus_there,
    )
    notes = planning.check_data(priced)
    return dataclasses.replace(priced, notes=(*priced.notes, *notes))


def _slurm_request(
    backend: str | None,
    nodes: str | None,
    partition: str | None,
    time: str | None,
    slurm: list[str] | None,
    cpus: int | None,
    gpus: int | None,
    launcher: str,
) -> "Request | None":
    """Return what the options ask of Slurm, None when they do not."""
    from orchestrator.slurm import request

    if backend is None:
        given = {"--nodes": nodes, "--partition": partition, "--time": time, "--slurm": slurm}
        for name, value in given.items():
            if value:
                raise typer.BadParameter(
                    "is for Slurm: add --backend slurm, or slurm-direct", param_hint=name
                )
        return None
    if backend not in request.BACKENDS:
        raise typer.BadParameter(
            f"must be one of {', '.join(request.BACKENDS)}, got {backend}", param_hint="--backend"
        )
    if launcher != "ray":
        raise typer.BadParameter(
            f"is for this machine, and --backend is {backend}; leave one of them out",
            param_hint="--launcher",
        )
    if backend == "slurm-direct" and (cpus is not None or gpus is not None):
        raise typer.BadParameter(
            "a job of slurm-direct asks for what its trial asks for (resources in the sweep file); leave it out",
            param_hint="--gpus" if cpus is None else "--cpus",
        )
    with _names_option("--nodes"):
        least, most = request.parse_nodes(nodes or ("1" if backend == "slurm" else "1:64"))
    with _names_option("--time"):
        minutes = request.parse_minutes(time or "1:00:00")
    with _names_option("--slurm"):
        options = request.parse_options(slurm or ())
    return request.Request(
        backend=backend,
        min_nodes=least,
        max_nodes=most,
        partition=partition,
        minutes=minutes,
        cpus=cpus,
        gpus=gpus,
        options=options,
    )


@contextmanager
def _names_option(name: str) -> Iterator[None]:
    """Turn a ValueError into a wrong value of this option."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def _submit_to_slurm(
    sweep_files: list[Path],
    runs: Path,
    tracking_uri: str | None,
    request: "Request",
    *,
    detach: bool,
    quiet: bool,
) -> None:
    """Put a sweep into Slurm's queue; watch it and send it to the tracker from here."""
    from orchestrator.display import progress
    from orchestrator.display.command import command
    from orchestrator.slurm import commands, submit

    # Before the plan, which takes seconds.
    commands.require()
    commands.partition(request.partition)
    # What is here says nothing about the GPUs of the cluster.
    priced = _plan(sweep_files, runs, gpus_there=True)
    name, console = priced.sweep.name, _console()
    submission = submit.SlurmSubmission(
        plan=priced, runs=runs, tracking_uri=tracking_uri, argv=tuple(sys.argv), request=request
    )
    sent = submission.send()
    where = f" as Slurm job{'s' * (len(sent.job_ids) > 1)} {', '.join(_ranges(sent.job_ids))}"
    before = f", {sent.queued_before} of them already queued" if sent.queued_before else ""
    console.print(
        f"{name}: {len(priced.trials)} trials, {sent.trials} to train{where if sent.job_ids else ''}{before}."
    )
    if not sent.trials:
        return
    console.print(
        f"Watch:  {command()} status {name} --watch{_runs_option(runs)}\nStop:   {command()} cancel {name}{_runs_option(runs)}"
    )
    if detach:
        submission.follow_in_background()
        return
    try:
        with progress.LiveSweep(console, quiet=quiet) as live:
            outcome = submission.follow(live.update)
    except KeyboardInterrupt:
        console.print(
            f"The jobs go on. What they measure is sent to MLflow by: {command()} sync {name}{_runs_option(runs)}"
        )
        raise typer.Exit(130) from None
    console.print(progress.outcome_text(outcome, runs_option=_runs_option(runs)))
    raise typer.Exit(outcome.exit_code)


def _ranges(job_ids: Sequence[str]) -> list[str]:
    """Return 12_[0-2] for 12_0, 12_1, 12_2."""
    arrays: dict[str, list[str]] = {}
    for job_id in job_ids:
        array, _, task = job_id.partition("_")
        arrays.setdefault(array, []).append(task)
    return [
        f"{array}_[{tasks[0]}-{tasks[-1]}]" if tasks[0] else array
        for array, tasks in arrays.items()
    ]


def _simulate(
    sweep_files: list[Path], runs: Path, cluster_text: str, picture: Path | None, *, json: bool
) -> None:
    """Run the plan in simulated time; print, and draw, what became of it."""
    from orchestrator.errors import StoreError
    from orchestrator.scheduling import cluster_spec, gantt, planned, shown
    from orchestrator.scheduling.simulate import simulate

    try:
        cluster = cluster_spec.parse(cluster_text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--simulate") from None
    if picture is not None and picture.suffix.lower() not in gantt.SUFFIXES:
        raise typer.BadParameter(
            f"{picture}: a picture ends in {', '.join(gantt.SUFFIXES)}", param_hint="--picture"
        )
    priced = _plan(sweep_files, runs, gpus_there=cluster.gpus > 0)
    trials, label = planned.waiting(priced, cluster)
    result = simulate(cluster.nodes, trials)
    name = priced.sweep.name
    if json:
        import json as json_module

        typer.echo(json_module.dumps(shown.simulation_json(result, label), indent=1))
    else:
        rate = planned.rate_text(priced, cluster)
        _console().print(shown.simulation_text(result, cluster, name=name, label=label, rate=rate))
    if picture is not None and result.ran:
        try:
            from analysis.series_style import series_styles
        except ModuleNotFoundError as error:
            raise StoreError(
                f"pictures need {error.name}, which is not installed; pip install 'memscale[analysis]'"
            ) from error
        styles = series_styles(label[run.trial.trial_id] for run in result.ran)
        gantt.draw(
            result,
            picture,
            title=f"{name} on {cluster}\n{shown.headline(result)}",
            label=label,
            colours={architecture: style.colour for architecture, style in styles.items()},
        )
        typer.echo(f"Drawn into {picture}.", err=json)


@contextmanager
def _told_on_stderr(logger_name: str) -> Iterator[None]:
    """Show what a part of the program logs: timing steps takes minutes, and standard output may be JSON."""
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


def _watch(disk: "SweepDir", console: "Console") -> None:
    """Refresh the table until no controller runs the sweep, or Ctrl-C."""
    import time

    from orchestrator.display import progress
    from orchestrator.status import status_from_disk

    with progress.LiveSweep(console) as live:
        try:
            while True:
                now = status_from_disk(disk)
                live.update(now)
                if not now.controller_alive:
                    break
                time.sleep(1.0)
        except KeyboardInterrupt:
            pass


def _fits(sweep: str, runs: Path, tracking_uri: str | None) -> tuple[Any, Any]:
    """Load and fit: from the trial directories, or from a tracker when one is named."""
    import analysis
    from orchestrator.errors import StoreError

    if tracking_uri is None:
        _sweep(runs, sweep)
    table = analysis.load(tracking_uri or runs, sweep=sweep)
    if not len(table.table):
        why = "; ".join(
            f"{row.trial_id}: {row.reason}" for row in table.excluded.head(3).itertuples()
        )
        raise StoreError(
            f"sweep {sweep!r}: no trial is done yet{f' ({why})' if why else ''}; see `memscale status {sweep}`"
        )
    return table, analysis.fit_sweep(table)


def _plan_row(trial: Any, sweep: Any) -> dict[str, Any]:
    matched = sweep.matches.get(trial.spec.trial_id)
    return {
        "trial_id": trial.spec.trial_id,
        "origin": trial.spec.origin,
        "architecture": trial.spec.architecture,
        "preset": trial.spec.preset,
        "recipe": trial.spec.recipe,
        "seed": trial.spec.seed,
        "status": trial.status,
        "why": trial.why,
        "predicted_s": trial.forecast.seconds,
        "predicted_from": trial.forecast.source,
        "not_causal": trial.spec.not_causal,
        "match": None if matched is None else dataclasses.asdict(matched),
        **trial.spec.accounting,
    }


def _slots(priced: Any) -> int:
    from orchestrator.launchers.machine import usable_cores

    widest = max((t.spec.resources.cpus * t.spec.resources.ranks for t in priced.trials), default=1)
    return max(1, usable_cores() // widest)


def _console() -> "Console":
    from rich.console import Console

    # Piped into a file or `less`, tables keep the width they need instead of wrapping at 80.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _runs_option(runs: Path) -> str:
    return "" if runs == Path("runs") else f" --runs {runs}"


def _sweep(runs: Path, name: str) -> "SweepDir":
    from orchestrator.errors import StoreError
    from orchestrator.trial_dir import sweep_dir

    disk = sweep_dir(runs, name)
    if not (disk.path / "trials").is_dir():
        known = sorted(p.parent.name for p in runs.glob("*/trials")) if runs.is_dir() else []
        there = (
            f"there are: {', '.join(known)}" if known else f"nothing was submitted into {runs} yet"
        )
        raise StoreError(f"sweep {name!r}: not found in {runs}; {there}")
    return disk


def _recorded(runs: Path, name: str) -> Path:
    """Return the sweep file that was submitted."""
    from orchestrator.errors import StoreError

    path = _sweep(runs, name).path / "sweep.yaml"
    if not path.is_file():
        raise StoreError(
            f"{path}: not there, so what is missing is not known; name a sweep file with --candidates"
        )
    return path


def _trial(runs: Path, prefix: str, *, sweep: "SweepDir | None" = None) -> "TrialDir":
    from orchestrator.errors import StoreError
    from orchestrator.trial_dir import SweepDir

    sweeps = [sweep] if sweep else [SweepDir(p.parent) for p in sorted(runs.glob("*/trials"))]
    found = [trial for s in sweeps for trial in s.trials() if trial.trial_id.startswith(prefix)]
    exact = [trial for trial in found if trial.trial_id == prefix]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if not found:
        raise StoreError(
            f"trial {prefix!r}: not found in {runs}; `memscale status SWEEP` lists the ids"
        )
    some = ", ".join(f"{t.path.parent.parent.name}/{t.trial_id}" for t in found[:5])
    raise StoreError(
        f"trial {prefix!r}: {len(found)} trials begin so ({some}); write more of the id"
    )


if __name__ == "__main__":
    main()
