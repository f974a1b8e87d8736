"""Commands `memscale list`, `status`, `logs`, `cancel` and `retry`."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import (
    TRIAL,
    Json,
    PriceText,
    ReadFrom,
    Runs,
    SweepName,
    console_here,
    echo_json,
    find_sweep,
    find_trial,
    names_option,
    read_price,
    spent_text,
    verb,
)
from orchestrator.records.units import plural

QUEUE_QUESTION_S = 30.0
"""Between two questions to Slurm's controller, which answers many users."""


@verb(
    name="list",
    epilog="Examples: memscale list  ·  memscale list --tracking-uri http://127.0.0.1:5000",
    help="List the sweeps of the runs folder, or of a tracker: trials, age, state.",
)
def list_(runs: Runs = Path("runs"), tracking_uri: ReadFrom = None, json: Json = False) -> None:
    """List the sweeps of the runs folder, or of a tracker."""
    from orchestrator.cli.render import sweeps
    from orchestrator.control.sweep_list import list_sweeps
    from orchestrator.launchers.slurm.job_records import queue_reasons
    from orchestrator.records.errors import NotFoundError

    if tracking_uri is None:
        if runs != Path("runs") and not runs.is_dir():
            raise NotFoundError(f"{runs}: no such folder; is the path of --runs right?")
        found = list_sweeps(runs, ask_queue=queue_reasons)
    else:
        from orchestrator.tracking.tracked_sweeps import list_tracked_sweeps

        found = list_tracked_sweeps(tracking_uri)
    if json:
        echo_json([dataclasses.asdict(sweep) for sweep in found])
    elif found:
        console_here().print(sweeps.sweeps_table(found))
    else:
        typer.echo(f"Nothing was submitted into {tracking_uri or runs} yet.")


Where = Annotated[
    str | None,
    typer.Option(
        help="Only these trials: key=value, with commas between. Keys are settings of the sweep "
        "file, state, preset, seed, outcome; one key twice takes either value.",
        metavar="model.n_keys=256,state=failed",
    ),
]


@verb(
    epilog="Examples: memscale status quickstart  ·  memscale status quickstart --watch  ·  "
    "memscale status mine --where model.n_keys=256,state=failed --json",
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
    where: Where = None,
    every: Annotated[bool, typer.Option("--all", help="A row for every trial.")] = False,
    json: Json = False,
) -> None:
    """Show the state of every trial of a sweep."""
    from orchestrator.cli.render import progress
    from orchestrator.control import status_filter
    from orchestrator.control.status import SweepStatus, status_from_disk
    from orchestrator.launchers.slurm.job_records import queue_reasons
    from orchestrator.tracking import sync_state

    if watch and json:
        raise typer.BadParameter("is a table; leave --json out", param_hint="--watch")
    sweep, price = find_sweep(runs, name), read_price(price_text)
    wanted = {}
    with names_option("--where"):
        if where is not None:
            wanted = status_filter.parse_filter(where)

    def select(status: SweepStatus) -> SweepStatus:
        with names_option("--where"):
            return status_filter.select(sweep, status, wanted) if wanted else status

    if watch:
        progress.watch(sweep, console_here(), select)
        return
    status = select(status_from_disk(sweep, ask_queue=queue_reasons))
    if json:
        totals = {state.value: n for state, n in status.totals.items()}
        spent = {} if price is None else {"spent": spent_text(sweep, price)}
        behind = {"trackers_behind": sync_state.problems(sweep)}
        echo_json({**dataclasses.asdict(status), "totals": totals, **behind, **spent})
    else:
        rows = len(status.trials) if every else progress.MOST_ROWS
        console_here().print(progress.status_table(status, rows=rows))
        for text in progress.tracker_texts(sync_state.problems(sweep)):
            console_here().print(text)
        if price is not None:
            console_here().print(f"{name}: {spent_text(sweep, price)}")


@verb(epilog="Examples: memscale logs memory_plus-1f0c  ·  memscale logs memory_plus-1f0c -f")
def logs(
    trial: Annotated[str, typer.Argument(help=f"A {TRIAL}.", metavar="TRIAL")],
    runs: Runs = Path("runs"),
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing as the trial writes.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(help="Which attempt. Default: the last.")] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Its bytes, with colours and other escapes that a terminal obeys."
        ),
    ] = False,
) -> None:
    """Print what a trial wrote: its log, and the reason if it failed."""
    import math
    import time

    from orchestrator.control.terminal_text import printable_lines
    from orchestrator.launchers.slurm.job_records import queue_reasons
    from orchestrator.records import logs as trial_logs
    from orchestrator.records.sweep_dir import SweepDir

    found = find_trial(runs, trial)

    asked_at, answer = -math.inf, False

    def queued() -> bool:
        nonlocal asked_at, answer
        if time.monotonic() - asked_at >= QUEUE_QUESTION_S:
            queue = queue_reasons(SweepDir(found.path.parent.parent))
            asked_at, answer = time.monotonic(), queue is not None and queue.n_jobs > 0
        return answer

    for text in trial_logs.read(found, attempt=attempt, follow=follow, queued=queued):
        shown = text if raw else printable_lines(text)
        sys.stdout.buffer.write(shown.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()


SomeTrials = Annotated[
    list[str] | None,
    typer.Argument(help="Trial ids or their beginnings. Default: the whole sweep."),
]


@verb(epilog="Examples: memscale cancel quickstart  ·  memscale cancel quickstart memory_plus-1f0c")
def cancel(name: SweepName, trials: SomeTrials = None, runs: Runs = Path("runs")) -> None:
    """Stop trials for good. What they wrote stays; submitting the sweep again takes them up."""
    from orchestrator.submit import submission

    sweep = find_sweep(runs, name)
    chosen = [find_trial(runs, t, sweep=sweep) for t in trials] if trials else sweep.trials()
    cancelled = submission.cancel(sweep, chosen, whole_sweep=not trials)
    if cancelled:
        said = f"Asked {plural(len(cancelled), 'unfinished trial')} of {name} to stop."
    elif trials:
        ended = ", ".join(f"{trial.trial_id} ({trial.state().value})" for trial in chosen)
        said = f"Nothing to stop: {ended}."
    else:
        said = f"Nothing of {name} is unfinished."
    typer.echo(said)


@verb(
    epilog="Examples: memscale retry quickstart  ·  memscale retry quickstart memory_plus-1f0c",
    help="Have failed and cancelled trials of a running sweep run again, budgets anew; of one that "
    "has ended, submit again.",
)
def retry(name: SweepName, trials: SomeTrials = None, runs: Runs = Path("runs")) -> None:
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
