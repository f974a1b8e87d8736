"""Command `memscale submit --backend slurm`: its options, and what it prints."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.app import console_here, make_plan, names_option, prepare_data, runs_option
from orchestrator.records.units import plural

if TYPE_CHECKING:
    from orchestrator.launchers.slurm.options import SlurmOptions
    from orchestrator.planning.pricing import Plan


def parse_request(
    backend: str | None,
    nodes: str | None,
    partition: str | None,
    time: str | None,
    slurm: list[str] | None,
    cpus: int | None,
    gpus: int | None,
    launcher: str,
) -> "SlurmOptions | None":
    """Return what the options ask of Slurm, None when they do not."""
    from orchestrator.launchers.slurm import options as slurm_options

    if backend is None:
        given = {"--nodes": nodes, "--partition": partition, "--time": time, "--slurm": slurm}
        for name, value in given.items():
            if value:
                raise typer.BadParameter(
                    "is for Slurm: add --backend slurm, or slurm-direct", param_hint=name
                )
        return None
    if launcher != "ray":
        raise typer.BadParameter(
            f"is for this machine, and --backend is {backend}; leave one of them out",
            param_hint="--launcher",
        )
    if backend == "slurm-direct" and (cpus is not None or gpus is not None):
        raise typer.BadParameter(
            "a job of slurm-direct asks for what its trial asks for (resources in the sweep file); "
            "leave it out",
            param_hint="--gpus" if cpus is None else "--cpus",
        )
    with names_option("--nodes"):
        least, most = slurm_options.parse_nodes(nodes or ("1" if backend == "slurm" else "1:64"))
    with names_option("--time"):
        minutes = slurm_options.parse_minutes(time or "1:00:00")
    with names_option("--slurm"):
        options = slurm_options.parse_options(slurm or ())
    of_shell = os.environ.get("SBATCH_PARTITION", "")
    if "," not in of_shell:  # of several, sbatch takes the first that has room
        partition = partition or of_shell or None
    return slurm_options.SlurmOptions(
        backend=backend,
        min_nodes=least,
        max_nodes=most,
        partition=partition,
        minutes=minutes,
        cpus=cpus,
        gpus=gpus,
        options=options,
    )


def submit_to_slurm(
    sweep_files: list[Path],
    runs: Path,
    tracking_uri: str | None,
    request: "SlurmOptions",
    *,
    register: bool,
    detach: bool,
    quiet: bool,
) -> None:
    """Put a sweep into Slurm's queue; watch it and send it to the tracker from here."""
    from orchestrator.cli.render import progress
    from orchestrator.cli.render.command_name import command
    from orchestrator.launchers.slurm import commands
    from orchestrator.submit import slurm_submission

    # Before the plan, which takes seconds.
    commands.require()
    commands.partition(request.partition)
    # What is here says nothing about the GPUs of the cluster.
    priced = make_plan(sweep_files, runs, gpus_there=True)
    check_memory(priced, here=False)
    prepare_data(priced, runs)
    print_notes(priced)  # before anything starts: Ctrl-C still helps
    name, console = priced.sweep.name, console_here()
    submission = slurm_submission.SlurmSubmission(
        plan=priced,
        runs=runs,
        tracking_uri=tracking_uri,
        argv=tuple(sys.argv),
        register=register,
        request=request,
    )
    sent = submission.send()
    where = f" as Slurm job{'s' * (len(sent.job_ids) > 1)} {', '.join(_ranges(sent.job_ids))}"
    before = f", {sent.queued_before} of them already queued" if sent.queued_before else ""
    console.print(
        f"{name}: {plural(len(priced.trials), 'trial')}, {sent.trials} to train"
        f"{where if sent.job_ids else ''}{before}."
    )
    if sent.refused:
        console.print(f"error: {sent.refused}", style="red", markup=False)
    if not sent.trials:
        return
    console.print(watch_and_stop(name, runs))
    if detach:
        submission.follow_in_background()
        if sent.refused:
            raise typer.Exit(1)
        return
    try:
        with progress.LiveSweep(console, quiet=quiet) as live:
            outcome = submission.follow(live.update)
    except KeyboardInterrupt:
        console.print(
            "The jobs go on. What they measure is sent to MLflow by: "
            f"{command()} sync {name}{runs_option(runs)}"
        )
        raise typer.Exit(130) from None
    ended = progress.outcome_text(outcome, runs_option=runs_option(runs), said=live.totals)
    console.print(ended)
    raise typer.Exit(outcome.exit_code)


def check_memory(priced: "Plan", *, here: bool) -> None:
    """Refuse trials that no attempt could hold: retries would only repeat the failure.

    Args:
        priced: The sweep.
        here: Whether it would run on this machine; else on some other, of which the largest that
            there are is the limit.
    """
    from orchestrator.planning import memory_fit
    from orchestrator.records.errors import ConfigError

    fit = memory_fit.fits_not_here if here else memory_fit.fits_no_machine
    if problems := fit(priced):
        raise ConfigError(problems)


def print_notes(priced: "Plan") -> None:
    """Say which results are not of this code and file: a submission prints no plan."""
    for note in (*priced.code_notes, *priced.left_over_notes):
        console_here().print(f"note: {note}", style="yellow", markup=False)


def watch_and_stop(name: str, runs: Path) -> str:
    """Return the commands to watch a sweep and to stop it."""
    from orchestrator.cli.render.command_name import command

    option = runs_option(runs)
    return (
        f"Watch:  {command()} status {name} --watch{option}\n"
        f"Stop:   {command()} cancel {name}{option}"
    )


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
