"""Commands `memscale status`, `logs`, `cancel` and `retry`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import (
    PriceText,
    Runs,
    SweepName,
    console_here,
    find_sweep,
    find_trial,
    read_price,
    spent_text,
    verb,
)
from orchestrator.records.units import plural


@verb(
    epilog="Examples: memscale status quickstart  ·  memscale status quickstart --watch",
    help="Show where every trial of a sweep stands. Works from any terminal that sees the runs "
    "folder.",
)
def status(
    name: SweepName,
    runs: Runs = Path("runs"),
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until the sweep has ended or Ctrl-C.")
    ] = False,
    price_text: PriceText = None,
) -> None:
    """Show the state of every trial of a sweep."""
    from orchestrator.cli.render import progress
    from orchestrator.control.status import status_from_disk
    from orchestrator.launchers.slurm.job_records import queue_reasons

    sweep, price = find_sweep(runs, name), read_price(price_text)
    console = console_here()
    if watch:
        progress.watch(sweep, console)
    else:
        status = status_from_disk(sweep, ask_queue=queue_reasons)
        console.print(progress.status_table(status))
        if price is not None:
            console.print(f"{name}: {spent_text(sweep, price)}")


@verb(epilog="Examples: memscale logs memory_plus-1f0c  ·  memscale logs memory_plus-1f0c -f")
def logs(
    trial: Annotated[str, typer.Argument(help="Trial id, or its beginning.", metavar="TRIAL")],
    runs: Runs = Path("runs"),
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing as the trial writes.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(help="Which attempt. Default: the last.")] = None,
) -> None:
    """Print what a trial wrote: its log, and the reason if it failed."""
    from orchestrator.records import logs as trial_logs

    for text in trial_logs.read(find_trial(runs, trial), attempt=attempt, follow=follow):
        sys.stdout.write(text)
        sys.stdout.flush()


SomeTrials = Annotated[
    list[str] | None,
    typer.Argument(help="Trial ids or their beginnings. Default: the whole sweep."),
]


@verb(epilog="Examples: memscale cancel quickstart  ·  memscale cancel quickstart memory_plus-1f0c")
def cancel(
    name: SweepName,
    trials: SomeTrials = None,
    runs: Runs = Path("runs"),
) -> None:
    """Stop trials for good. What they wrote stays; submitting the sweep again takes them up."""
    from orchestrator.submit import submission

    sweep = find_sweep(runs, name)
    chosen = [find_trial(runs, t, sweep=sweep) for t in trials] if trials else sweep.trials()
    cancelled = submission.cancel(sweep, chosen, whole_sweep=not trials)
    typer.echo(
        f"Asked {plural(len(cancelled), 'unfinished trial')} of {name} to stop."
        if cancelled
        else f"Nothing of {name} is unfinished."
    )


@verb(
    epilog="Examples: memscale retry quickstart  ·  memscale retry quickstart memory_plus-1f0c",
    help="Have failed and cancelled trials of a running sweep run again, budgets anew; of one that "
    "has ended, submit again.",
)
def retry(
    name: SweepName,
    trials: SomeTrials = None,
    runs: Runs = Path("runs"),
) -> None:
    """Have failed and cancelled trials run again."""
    import os
    import time

    from orchestrator.control import retry_requests

    sweep = find_sweep(runs, name)
    chosen = [find_trial(runs, t, sweep=sweep) for t in trials] if trials else sweep.trials()
    controlled = retry_requests.controlled_trial_ids(sweep, sweep.submissions())
    request = retry_requests.plan_retry(
        sweep, chosen, controlled=controlled, whole_sweep=not trials
    )
    who = f"memscale retry, pid {os.getpid()}"
    retry_requests.write_requests(
        sweep, request.after, by=who, at=time.time(), whole_sweep=not trials
    )
    typer.echo(f"{name}: {retry_requests.describe_result(request, controlled=controlled)}.")
