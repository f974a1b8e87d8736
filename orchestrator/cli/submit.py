"""`memscale submit`, and the controller that it starts in the background."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import submit_slurm as slurm_options
from orchestrator.cli.app import (
    Runs,
    SweepFiles,
    TrackingUri,
    app,
    console_here,
    make_plan,
    reports_errors,
    runs_option,
)


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
        int | None,
        typer.Option(
            help="With --address: among the sweeps of one cluster, higher ones go first. Default: 0.",
            min=-100,
            max=100,
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            help="With --address: share of the cluster, relative to other sweeps of the same priority. Default: 1.",
            min=0.01,
            show_default=False,
        ),
    ] = None,
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
    from orchestrator.cli.render import progress
    from orchestrator.cli.render.command_name import command
    from orchestrator.records.trial_dir import sweep_dir
    from orchestrator.submit import submission

    if launcher not in submission.LAUNCHERS:
        raise typer.BadParameter(
            f"launcher must be one of {', '.join(submission.LAUNCHERS)}, got {launcher}"
        )
    for name, value in {"--priority": priority, "--weight": weight}.items():
        if value is not None and address is None:
            raise typer.BadParameter(
                "is among the sweeps of one Ray cluster: add --address, or leave it out",
                param_hint=name,
            )
    request_slurm = slurm_options.parse_request(
        backend, nodes, partition, time, slurm, cpus, gpus, launcher
    )
    if request_slurm is not None:
        if address is not None:
            raise typer.BadParameter(
                f"--backend {backend} starts a Ray of its own; leave one of them out",
                param_hint="--address",
            )
        slurm_options.submit_to_slurm(
            sweep_files, runs, tracking_uri, request_slurm, detach=detach, quiet=quiet
        )
        return
    # What is here says nothing about the GPUs of a cluster; a trial that asks for `auto` takes them where there are any.
    priced = make_plan(sweep_files, runs, gpus_there=None if address is None else True)
    console = console_here()
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
            priority=0 if priority is None else priority,
            weight=1.0 if weight is None else weight,
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
            f"Watch:  {command()} status {priced.sweep.name} --watch{runs_option(runs)}\nStop:   {command()} cancel {priced.sweep.name}{runs_option(runs)}"
        )
        if not detach and not quiet:
            progress.watch(sweep_dir(runs, priced.sweep.name), console)
        return
    console.print(
        f"{priced.sweep.name}: {len(priced.trials)} trials, {len(todo)} to train, "
        f"{sum(t.status == 'done' for t in priced.trials)} already done."
    )
    with progress.LiveSweep(console, quiet=quiet) as live:
        outcome = request.run(live.update)
    console.print(progress.outcome_text(outcome, runs_option=runs_option(runs)))
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

    from orchestrator.cli.render import progress
    from orchestrator.records import processes
    from orchestrator.records.trial_dir import SweepDir
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
    console.print(progress.outcome_text(outcome, runs_option=runs_option(sweep.parent)))
    raise typer.Exit(outcome.exit_code)
