"""Rendering of a sweep's progress: a table, a live table, a line, and the outcome."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.render.command_name import command
from orchestrator.control.retry_policy import DETERMINISTIC
from orchestrator.control.status import SweepStatus, TrialStatus, status_from_disk
from orchestrator.launchers.slurm.job_records import queue_reasons
from orchestrator.records import units
from orchestrator.records.circuit_breaker import CircuitBreaker
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState
from orchestrator.tracking import sync_state

# Imports the scheduler and numpy, which is half of the time that `memscale status` takes.
if TYPE_CHECKING:
    from orchestrator.submit.submission import SubmissionResult

STATUS_STYLE = {
    "new": "cyan",
    "done": "green",
    "running": "yellow",
    "resume": "yellow",
    "retry": "magenta",
    "waiting": "dim",
    "failed": "red",
    "unreadable": "red",
    "cancelled": "dim red",
}
MOST_ROWS = 24
"""Rows of a table unless all are wanted; longer sweeps show what runs first, and count the rest."""
QUIET_EVERY_S = 30.0
"""Seconds between progress lines where there is no terminal to redraw."""
IDLE_S = 5.0
"""Seconds without a running trial after which such a line says why trials wait."""


def status_table(status: SweepStatus, *, rows: int = MOST_ROWS) -> RenderableType:
    """Return a row per trial: running first, then failed, waiting, cancelled and done.

    A reason that several trials have stands below the table once, with their number.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("trial", no_wrap=True)
    table.add_column("preset", no_wrap=True)
    varied = any(trial.varied for trial in status.trials)
    if varied:
        table.add_column("varied")
    table.add_column("seed", justify="right")
    table.add_column("state", no_wrap=True)
    table.add_column("progress", no_wrap=True, min_width=16)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("tokens/s", justify="right", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("")
    order = [
        TrialState.RUNNING,
        TrialState.FAILED,
        TrialState.WAITING,
        TrialState.CANCELLED,
        TrialState.DONE,
    ]
    trials = (
        sorted(status.trials, key=lambda t: order.index(t.state))
        if len(status.trials) > rows
        else status.trials
    )
    reasons = Counter((trial.state, _remark(trial)) for trial in status.trials)
    shared = {
        (state, remark): n
        for (state, remark), n in reasons.items()
        if n > 1 and remark and state is not TrialState.RUNNING
    }
    for trial in trials[:rows]:
        remark = _remark(trial)
        trial_id, preset, *rest = _status_row(
            trial, "" if (trial.state, remark) in shared else remark
        )
        table.add_row(trial_id, preset, *((trial.varied,) if varied else ()), *rest)
    parts: list[RenderableType] = [table]
    if len(trials) > rows:
        hint = f"memscale status {status.sweep} --all"
        parts.append(Text(f"… and {len(trials) - rows} more ({hint})", style="dim"))
    parts += [Text(f"{n} {state.value}: {why}", style="dim") for (state, why), n in shared.items()]
    parts += [Text(sentence, style="yellow") for sentence in (*status.excluded, *status.unreadable)]
    parts += [Text(f"note: {status.earlier}", style="yellow")] if status.earlier else []
    parts += [Text(sentence, style="red") for sentence in (status.full_disk,) if sentence]
    parts.append(totals_text(status))
    return Group(*parts)


def _remark(trial: TrialStatus) -> str:
    """Return why a trial waits or ended, or what it does or took beside training."""
    if trial.state is TrialState.RUNNING:
        remark = {
            "data": "preparing data",
            "model": "building the model",
            "start": "taking its first step",
            "evaluate": "evaluating",
            "checkpoint": "checkpointing",
        }.get(trial.phase or "", "")
        return f"attempt {trial.attempt} {remark}".strip() if trial.attempt > 1 else remark
    ended = trial.state in (TrialState.FAILED, TrialState.CANCELLED)
    return trial.wait or (trial.reason if ended else trial.benchmarks)


def _status_row(trial: TrialStatus, remark: str) -> tuple[RenderableType, ...]:
    done = (
        trial.step
        if trial.step is not None
        else (trial.steps if trial.state is TrialState.DONE else 0)
    )
    return (
        trial.trial_id,
        trial.preset or "",
        str(trial.seed),
        Text(trial.state.value, style=STATUS_STYLE.get(trial.state.value, "")),
        ProgressBar(total=max(trial.steps, 1), completed=done, width=16),
        f"{done:,}/{trial.steps:,}",
        "" if trial.loss is None else f"{trial.loss:.3f}",
        ""
        if trial.tokens_per_s is None or trial.state is not TrialState.RUNNING
        else units.count(trial.tokens_per_s),
        "" if trial.eta_s is None else units.duration(trial.eta_s),
        Text(
            remark, style="dim", overflow="ellipsis", no_wrap=trial.state is not TrialState.FAILED
        ),
    )


def totals_text(status: SweepStatus) -> Text:
    """Return one line: done, running, waiting, failed; tokens per second; time left."""
    n_trials = len(status.trials)
    of_all = f", {n_trials} of {n_trials + status.hidden} trials" if status.hidden else ""
    text = Text(f"{status.sweep}{of_all}: ")
    totals = status.totals
    for state in (
        TrialState.DONE,
        TrialState.RUNNING,
        TrialState.WAITING,
        TrialState.FAILED,
        TrialState.CANCELLED,
    ):
        if totals[state] or state in (TrialState.DONE, TrialState.RUNNING, TrialState.WAITING):
            text.append(f"{totals[state]} {state.value}  ", style=STATUS_STYLE.get(state.value, ""))
    rate = sum(t.tokens_per_s or 0.0 for t in status.trials if t.state is TrialState.RUNNING)
    if rate:
        text.append(f"{units.count(rate)} tokens/s  ")
    if status.time_left_s and not status.complete:
        text.append(f"about {units.duration(status.time_left_s)} left", style="bold")
    if status.stopping:
        text.append("  stopping: waiting for checkpoints", style="yellow")
    elif not status.controller_alive and not status.complete:
        text.append(f"  {_what_is_left(status)}", style="dim")
    return text


def _what_is_left(status: SweepStatus) -> str:
    """Return what submitting again would do for a sweep that nothing is running."""
    left = {trial.state for trial in status.trials} - {TrialState.DONE}
    if not left and status.unreadable:
        return "ended; submit it again to train what is set aside, with damaged files restored"
    if left == {TrialState.CANCELLED}:
        return "ended; what was cancelled is trained only if it is submitted again"
    failed = {trial.outcome for trial in status.trials if trial.state is TrialState.FAILED}
    if left == {TrialState.FAILED} and failed <= DETERMINISTIC:
        return "ended; what failed would end the same way: mend its cause, then submit it again"
    if left <= {TrialState.CANCELLED, TrialState.FAILED} and left:
        return "ended; submit it again to retry what failed or was cancelled"
    return "nothing is running it; submit it again to go on"


def tracker_texts(problems: Mapping[str, str]) -> list[Text]:
    """Return why trackers lack measurements, from the problem of each."""
    return [
        Text(
            f"{uri} lacks measurements, which wait in the trials' folders: {problem}",
            style="yellow",
        )
        for uri, problem in problems.items()
    ]


def wait_texts(status: SweepStatus) -> list[Text]:
    """Return why trials wait, a line per reason."""
    waits = Counter(t.wait for t in status.trials if t.state is TrialState.WAITING and t.wait)
    return [
        Text(f"waiting: {units.plural(n, 'trial')}: {why}", style="yellow")
        for why, n in waits.items()
    ]


class LiveSweep:
    """Shows a sweep while it runs: a live table on a terminal, else a line now and then."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        """Draw on `console`; `quiet` leaves only a line now and then."""
        self._console = console
        self._live = (
            None
            if quiet or not console.is_terminal
            else Live(console=console, refresh_per_second=4, transient=True)
        )
        self._printed: tuple[int, ...] = ()
        self._printed_at = 0.0
        self._idle_since = math.inf
        """When trials began to wait while none runs."""
        self.totals = ""
        """The last line of totals that stays on the screen."""

    def __enter__(self) -> "LiveSweep":
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, trace)

    def update(
        self, status: SweepStatus, trackers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Show the current status, and the problems of trackers."""
        behind = tracker_texts(trackers)
        if self._live:
            self._live.update(Group(status_table(status, rows=MOST_ROWS), *behind))
            return
        now = time.monotonic()
        waits = [] if status.totals[TrialState.RUNNING] else wait_texts(status)
        self._idle_since = min(self._idle_since, now) if waits else math.inf
        idle = now - self._idle_since >= IDLE_S
        ended = (
            *(status.totals[s] for s in (TrialState.DONE, TrialState.FAILED, TrialState.CANCELLED)),
            bool(status.full_disk),
            len(behind),
            idle,
        )
        if ended != self._printed or now - self._printed_at >= QUIET_EVERY_S:
            self._printed, self._printed_at = ended, now
            totals = totals_text(status)
            self.totals = totals.plain
            self._console.print(totals)
            if status.full_disk:
                self._console.print(Text(status.full_disk, style="red"))
            for text in (*(waits if idle else ()), *behind):
                self._console.print(text)


def outcome_text(result: "SubmissionResult", *, runs_option: str, said: str = "") -> RenderableType:
    """Return how a submission ended and what to do next.

    Args:
        result: Of the submission.
        runs_option: `--runs …` for the commands, with a space before it; empty for the default.
        said: Totals that are on the screen already (`LiveSweep.totals`).
    """
    status = result.status
    totals = totals_text(status)
    lines: list[RenderableType] = [] if totals.plain == said else [totals]
    for trial in status.trials:
        if trial.state is TrialState.FAILED:
            lines.append(Text(f"failed: {trial.trial_id}: {trial.reason}", style="red"))
            # With its sweep: others may have a trial of this id.
            name = f"{status.sweep}/{trial.trial_id}"
            lines.append(Text(f"        {command()} logs {name}{runs_option}", style="dim"))
    if not result.interrupted:
        lines += wait_texts(status)
    if not result.drained.complete:
        lines.append(
            Text(
                f"{result.drained.missing} not in MLflow yet "
                f"({result.drained.problem}); safe in the journals: "
                f"{command()} sync {status.sweep}{runs_option}",
                style="yellow",
            )
        )
    if result.interrupted and not status.complete:
        lost = sum(
            t.state is TrialState.WAITING
            and t.outcome is not None
            and "before it could checkpoint" in t.reason
            for t in status.trials
        )
        what = (
            f"{units.plural(lost, 'trial')} ended before a checkpoint and back at the last one"
            if lost
            else "no step is lost"
        )
        lines.append(
            Text(f"Stopped on request; {what}. Submit the same file again to go on.", style="bold")
        )
    if status.totals[TrialState.DONE]:
        lines.append(Text(f"Results: {command()} report {status.sweep}{runs_option}"))
    return Group(*lines)


def watch(
    sweep: SweepDir,
    console: Console,
    select: Callable[[SweepStatus], SweepStatus] = lambda status: status,
) -> None:
    """Refresh the table, of the trials that `select` leaves, until the sweep ends, or Ctrl-C."""
    breaker = CircuitBreaker(sweep.path)
    with LiveSweep(console) as live, suppress(KeyboardInterrupt):
        while True:
            with breaker.guarded():
                now = status_from_disk(sweep, ask_queue=queue_reasons)
                breaker.close()
                live.update(select(now), sync_state.problems(sweep))
                if not now.controller_alive:
                    return
            time.sleep(1.0)
