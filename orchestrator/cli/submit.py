"""Command `memscale submit`, and the controller that it starts in the background."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli import submit_slurm
from orchestrator.cli.app import (
    Runs,
    SweepFiles,
    TrackingUri,
    console_here,
    make_plan,
    prepare_data,
    runs_option,
    verb,
)
from orchestrator.cli.plan import print_plan
from orchestrator.records.units import plural

if TYPE_CHECKING:
    from orchestrator.planning.pricing import PlannedTrial
    from orchestrator.submit.submission import Submission
    from orchestrator.submit.warm_start import WarmStart


Detach = Annotated[
    bool,
    typer.Option("--detach", "-d", help="Run in the background; watch with `memscale status`."),
]
Launcher = Annotated[
    Literal["ray", "process", "debug"],
    typer.Option(
        help="ray: embedded Ray. process: plain processes. debug: in this process, one by one."
    ),
]
Cpus = Annotated[
    int | None, typer.Option(help="Cores to use. Default: all this process may use.", min=1)
]
Gpus = Annotated[
    int | None, typer.Option(help="GPUs to use. Default: all that are visible.", min=0)
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Run on a Ray cluster that exists: ray://HOST:10001 from any machine, HOST:PORT or "
        "auto from a node of it. RUNS must be a folder that all nodes see."
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        help="With --address: among the sweeps of one cluster, higher ones go first; running "
        "trials of lower ones checkpoint and wait. Default: 0.",
        min=-100,
        max=100,
    ),
]
Weight = Annotated[
    float | None,
    typer.Option(
        help="With --address: share of the cluster, relative to other sweeps of the same priority. "
        "Default: 1.",
        min=0.01,
    ),
]
Backend = Annotated[
    Literal["slurm", "slurm-direct"] | None,
    typer.Option(
        help="Train on a Slurm cluster. slurm: Ray inside allocations (pilots), several trials on "
        "a node. slurm-direct: one job for each trial, without Ray. RUNS must be a folder that all "
        "nodes see."
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        help="Slurm: nodes, or MIN:MAX to add nodes while trials wait and give them back when "
        "idle. slurm-direct: jobs of an array at a time. Default: 1 (slurm), 64 (slurm-direct).",
        metavar="MIN:MAX",
    ),
]
Partition = Annotated[str | None, typer.Option(help="Slurm: partition. Default: the cluster's.")]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        help="Slurm: time limit of a job, as sbatch takes it. At its end trials checkpoint and the "
        "job goes back into the queue. Default: 1:00:00.",
        metavar="TIME",
    ),
]
SbatchOptions = Annotated[
    list[str] | None,
    typer.Option(
        help="Slurm: any other option of sbatch, as account=me; may be given several times.",
        metavar="KEY=VALUE",
    ),
]
Register = Annotated[
    bool,
    typer.Option(
        "--register",
        help="Register the models of finished trials in MLflow, under the sweep's name.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; start nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No live table.")]


@verb(
    epilog="Examples: memscale submit quickstart  ·  memscale submit quickstart_gpu  ·  "
    "memscale submit my.yaml --detach  ·  memscale submit dense.yaml memory.yaml  ·  "
    "memscale submit my_sweeps/ --launcher process  ·  "
    "memscale submit my.yaml --address auto --priority 1  ·  "
    "memscale submit my.yaml --address ray://head:10001 --runs /shared/runs  ·  "
    "memscale submit my.yaml --backend slurm --nodes 1:8 --partition gpu --time 12:00:00 "
    "--slurm account=me  ·  "
    "memscale submit my.yaml --backend slurm-direct --time 4:00:00 --detach",
    help="Train what is missing. Ctrl-C checkpoints and leaves; submitting again resumes; "
    "submitting twice trains nothing.",
)
def submit(
    sweep_files: SweepFiles,
    runs: Runs = Path("runs"),
    tracking_uri: TrackingUri = None,
    detach: Detach = False,
    launcher: Launcher = "ray",
    cpus: Cpus = None,
    gpus: Gpus = None,
    address: Address = None,
    priority: Priority = None,
    weight: Weight = None,
    backend: Backend = None,
    nodes: Nodes = None,
    partition: Partition = None,
    time: TimeLimit = None,
    slurm: SbatchOptions = None,
    register: Register = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Train what is missing of a sweep."""
    for name, value in {"--priority": priority, "--weight": weight}.items():
        if value is not None and address is None:
            raise typer.BadParameter(
                "is among the sweeps of one Ray cluster: add --address, or leave it out",
                param_hint=name,
            )
    slurm_request = submit_slurm.parse_request(
        backend, nodes, partition, time, slurm, cpus, gpus, launcher
    )
    if slurm_request is not None and address is not None:
        raise typer.BadParameter(
            f"--backend {backend} starts a Ray of its own; leave one of them out",
            param_hint="--address",
        )
    # This machine says nothing about the GPUs of a cluster; `auto` takes them where there are any.
    gpus_there = None if slurm_request is None and address is None else True
    if gpus_there is None:
        _check_gpus(gpus)
    if dry_run:
        print_plan(make_plan(sweep_files, runs, gpus_there=gpus_there))
        return
    if slurm_request is not None:
        how = {"register": register, "detach": detach, "quiet": quiet}
        submit_slurm.submit_to_slurm(sweep_files, runs, tracking_uri, slurm_request, **how)
        return
    with _warm_start(runs, here=launcher == "ray" and address is None and not detach) as warm:
        on_name = None if warm is None else warm.begin
        priced = make_plan(sweep_files, runs, gpus_there=gpus_there, on_name=on_name)
        submit_slurm.check_memory(priced, here=address is None)
        if address is None:
            _check_demands(priced, cpus, gpus)
        prepare_data(priced, runs)
        submit_slurm.print_notes(priced)
        request = _submission(
            plan=priced,
            runs=runs,
            tracking_uri=tracking_uri,
            launcher=launcher,
            cpus=cpus,
            gpus=gpus,
            address=address,
            priority=priority or 0,
            weight=1.0 if weight is None else weight,
            register=register,
        )
        _run(request, detach=detach, quiet=quiet, warm=warm)


@contextmanager
def _warm_start(runs: Path, *, here: bool) -> Iterator["WarmStart | None"]:
    """Hold what imports for the first ranks while the sweep is planned; None: not `here`."""
    if not here:
        yield None
        return
    from orchestrator.submit.warm_start import WarmStart

    with closing(WarmStart(runs)) as warm:
        yield warm


def _submission(**fields: Any) -> "Submission":
    """Return a submission by this command; options that do not go together are wrong usage."""
    from orchestrator.submit.submission import Submission

    try:
        return Submission(argv=tuple(sys.argv), **fields)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _run(
    request: "Submission", *, detach: bool, quiet: bool, warm: "WarmStart | None" = None
) -> None:
    """Run a submission here or in another process."""
    # Through the Ray client a sweep would end with this connection, so it runs on the cluster and
    # is watched from here.
    hosted = request.address is not None and request.address.startswith("ray://")
    if (detach or hosted) and any(trial.to_train for trial in request.plan.trials):
        _run_in_background(request, watched=not detach and not quiet)
    else:
        _run_here(request, quiet=quiet, warm=warm)


def _check_gpus(gpus: int | None) -> None:
    """Refuse more GPUs than this machine has: trials would train on the CPU and be recorded so."""
    from orchestrator.node.hardware import visible_gpus

    there = len(visible_gpus())
    if gpus is not None and gpus > there:
        fix = f"ask for {there} at most" if there else "leave it out to train on the CPU"
        raise typer.BadParameter(
            f"{gpus} asked for, and this machine shows {plural(there, 'GPU')}; {fix}, or name a "
            "cluster with --address or --backend",
            param_hint="--gpus",
        )


def _check_demands(priced: Any, cpus: int | None, gpus: int | None) -> None:
    """Refuse trials that ask for more than this machine has: they would wait in vain."""
    from orchestrator.planning import resource_fit
    from orchestrator.records.errors import ConfigError

    if problems := resource_fit.fits_not_here(priced, cpus=cpus, gpus=gpus):
        raise ConfigError(problems)


def counts_text(trials: "Sequence[PlannedTrial]") -> str:
    """Return how many trials there are, and what becomes of them."""
    running = sum(t.status == "running" for t in trials)
    return (
        f"{plural(len(trials), 'trial')}, {sum(t.to_train for t in trials)} to train, "
        f"{f'{running} running, ' if running else ''}"
        f"{sum(t.status == 'done' for t in trials)} already done"
    )


def _run_here(request: "Submission", *, quiet: bool, warm: "WarmStart | None") -> None:
    """Run a submission in this process; exit with its code."""
    from orchestrator.cli.render import progress

    trials, console = request.plan.trials, console_here()
    console.print(f"{request.plan.sweep.name}: {counts_text(trials)}.")
    if console.is_terminal and any(t.to_train for t in trials):
        console.print("Closing this terminal checkpoints and stops it; with --detach it goes on.")
    with progress.LiveSweep(console, quiet=quiet) as live:
        result = request.run(live.update, warm=None if warm is None else warm.interpreter)
    ended = progress.outcome_text(result, runs_option=runs_option(request.runs), said=live.totals)
    console.print(ended)
    raise typer.Exit(result.exit_code)


def _run_in_background(request: "Submission", *, watched: bool) -> None:
    """Have another process run a submission, and show how it goes if that is wanted."""
    from orchestrator.cli.render import progress
    from orchestrator.records.sweep_dir import sweep_dir

    trials, name, console = request.plan.trials, request.plan.sweep.name, console_here()
    log = request.detach()
    console.print(
        f"Submitted {sum(t.to_train for t in trials)} of {plural(len(trials), 'trial')} of {name} "
        f"in the background (log: {log})."
    )
    console.print(submit_slurm.watch_and_stop(name, request.runs))
    if watched:
        progress.watch(sweep_dir(request.runs, name), console)


@verb(
    hidden=True,
    epilog="Example: memscale controller runs/quickstart 1",
    help="Run a submission that is written down already: what `submit --detach` starts, here or on "
    "a cluster.",
)
def controller(
    sweep: Annotated[Path, typer.Argument(help="Folder of the sweep.")],
    number: Annotated[int, typer.Argument(help="Of the submission, which is written down there.")],
    tracking_uri: TrackingUri = None,
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster, seen from here.")] = None,
    dies_with: Annotated[int | None, typer.Option(help="Pid of the parent to die with.")] = None,
) -> None:
    """Run a submission that is written down already."""
    import signal

    from orchestrator.cli.render import progress
    from orchestrator.records import processes
    from orchestrator.records.sweep_dir import SweepDir
    from orchestrator.submit import submission

    if dies_with is not None:
        # Ray blocks signals in whatever it starts.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        processes.die_with_parent(dies_with)
    console, folder = console_here(), SweepDir(sweep)
    with progress.LiveSweep(console, quiet=True) as live:
        outcome = submission.run_recorded(
            folder,
            folder.submission(number),
            live.update,
            tracking_uri=tracking_uri,
            address=address,
        )
    ended = progress.outcome_text(outcome, runs_option=runs_option(sweep.parent), said=live.totals)
    console.print(ended)
    raise typer.Exit(outcome.exit_code)
