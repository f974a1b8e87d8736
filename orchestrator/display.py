"""What the CLI prints, as rich renderables: plan, live progress, status, results. Computes nothing of its own."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator import units
from orchestrator.doctor import Check, Verdict
from orchestrator.launchers.machine import usable_cores, visible_gpus
from orchestrator.plan import BATCH, Plan, PlannedTrial
from orchestrator.records import TrialState, canonical_json
from orchestrator.status import SweepStatus, TrialStatus
from orchestrator.submission import Ended

# Without memory values, which stand beside the total.
PARAMETER_GROUPS = {
    "params_embedding": "embedding",
    "params_attention": "attention",
    "params_feed_forward": "feed-\nforward",
    "params_memory_keys": "mem. keys",
    "params_router": "router",
    "params_norm": "norm",
    "params_head": "head",
}
STATUS_STYLE = {
    "new": "cyan", "done": "green", "running": "yellow", "resume": "yellow", "retry": "magenta",
    "waiting": "dim", "failed": "red", "cancelled": "dim red",
}  # fmt: skip
MOST_ROWS = 24
"""Rows of a live table; longer sweeps show what runs first and count the rest."""
MOST_MATCHES = 40
"""Lines about what `match` chose; `plan --json` has them all."""
QUIET_EVERY_S = 30.0
"""Seconds between progress lines where there is no terminal to redraw."""


def plan_tables(plan: Plan, *, slots: int, rows: int = 60) -> RenderableType:
    """Return the price list of a sweep, one row per configuration (its seeds together), and why trials are new.

    Sizes and costs are two tables, so that both stay readable in 160 columns; a row has the same number in both.
    """
    groups = by_configuration(plan.trials)
    parts: list[RenderableType] = [_sizes(plan, groups[:rows]), Text(""), _costs(groups[:rows])]
    if len(groups) > rows:
        parts.append(Text(f"… and {len(groups) - rows} more configurations"))
    parts.append(Text(""))
    parts += [Text(line) for line in _matches(plan)]
    parts += [Text(line) for line in _reasons(plan.trials)]
    parts.append(_totals(plan, slots=slots))
    for note in (*plan.sweep.warnings, *plan.notes, *_too_large(plan, slots=slots)):
        parts.append(Text(f"note: {note}", style="yellow"))
    if plan.left_over:
        parts.append(
            Text(
                f"note: {len(plan.left_over)} trials on disk are no longer in the file; they are kept and left alone"
            )
        )
    return Group(*parts)


def _matches(plan: Plan) -> list[str]:
    """Return what `match` chose, one line per configuration."""
    told = dict.fromkeys(f"match: {matched}" for matched in plan.sweep.matches.values())
    lines = list(told)[:MOST_MATCHES]
    return lines + (
        [f"match: … and {len(told) - len(lines)} more"] if len(told) > len(lines) else []
    )


def _sizes(plan: Plan, groups: Sequence[Sequence[PlannedTrial]]) -> Table:
    """Return the parameters of every configuration: total, active, in the memory, and by group."""
    used = [key for key in PARAMETER_GROUPS if any(g[0].spec.accounting[key] for g in groups)]
    recipes = any(g[0].spec.recipe for g in groups)
    table = _plan_table(
        title=f"{plan.sweep.name}: {len(plan.trials)} trials",
        numbers=("total", "active", "memory", *(PARAMETER_GROUPS[key] for key in used)),
        texts=("recipe",) if recipes else (),
    )
    for number, group in enumerate(groups, 1):
        spec = group[0].spec
        keys = ("total_params", "active_params", "memory_params", *used)
        table.add_row(
            str(number),
            spec.architecture,
            spec.preset or "",
            *(units.count(spec.accounting[key]) for key in keys),
            *((spec.recipe or "",) if recipes else ()),
        )
    return table


def _costs(groups: Sequence[Sequence[PlannedTrial]]) -> Table:
    """Return what every configuration costs: FLOPs, bytes, memory, time."""
    table = _plan_table(
        numbers=(
            "FLOPs\n/token",
            "training\nFLOPs",
            "tokens",
            "read/token\nalone",
            f"read/token\nin {BATCH}",
            "activations",
            "peak\nmemory",
            "a step",
            "each",
        ),
        texts=("trials",),
    )
    for number, group in enumerate(groups, 1):
        first, numbers = group[0], group[0].spec.accounting
        table.add_row(
            str(number),
            first.spec.architecture,
            first.spec.preset or "",
            units.flops(numbers["forward_flops_per_token"]),
            units.flops(numbers["training_flops"]),
            units.count(numbers["training_tokens"]),
            units.size(numbers["bytes_read_per_token"]),
            units.size(numbers[f"bytes_read_per_token_batch{BATCH}"]),
            units.size(numbers["activation_bytes"]),
            units.size(numbers["peak_memory_bytes"]),
            units.short_duration(first.forecast.seconds / max(1.0, numbers["steps"])),
            units.duration(first.forecast.seconds),
            _states(t.status for t in group),
        )
    return table


def _plan_table(
    *, numbers: Sequence[str], texts: Sequence[str] = (), title: str | None = None
) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("architecture", no_wrap=True)
    table.add_column("preset", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right")
    for name in texts:
        table.add_column(name)
    return table


def recipes_text(recipes: Any) -> RenderableType:
    """Return the recipes of the `train:` section as a table, and below it where each is from.

    Args:
        recipes: The module workloads.recipes.
    """
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(recipes.COLUMNS):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for name, recipe in recipes.RECIPES.items():
        table.add_row(name, *recipes.cells(recipe))
    parts: list[RenderableType] = [table, Text("")]
    for source, names in recipes.by_source().items():
        parts.append(Text.assemble((", ".join(names), "bold"), f": {source}"))
    parts.append(
        Text("\nUse one with train: {recipe: NAME, tokens: …}; what is written beside it wins.")
    )
    return Group(*parts)


def by_configuration(trials: Iterable[PlannedTrial]) -> list[list[PlannedTrial]]:
    """Group trials that differ only in their seed, in order of first appearance."""
    groups: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        key = canonical_json({**trial.spec.identity(), "seed": 0})
        groups.setdefault(key, []).append(trial)
    return list(groups.values())


def _states(statuses: Iterable[str]) -> Text:
    text = Text()
    for status, n in Counter(statuses).items():
        text.append(f"{n} {status} ", style=STATUS_STYLE.get(status, ""))
    return text


def _reasons(trials: Sequence[PlannedTrial]) -> list[str]:
    """Return one line per distinct reason, the trials that share it counted."""
    lines: Counter[tuple[str, str]] = Counter(
        (t.status, t.why) for t in trials if t.status != "done"
    )
    shown = [f"{n:>4} {status}: {why}" for (status, why), n in list(lines.items())[:20]]
    if len(lines) > 20:
        shown.append(f"     … and {len(lines) - 20} more reasons")
    return shown


def _totals(plan: Plan, *, slots: int) -> Text:
    todo = [t for t in plan.trials if t.to_train]
    running = sum(t.status == "running" for t in plan.trials)
    if not todo and running:
        return Text(f"Nothing to add: {running} are running, the others have their result.")
    if not todo:
        return Text("Nothing to train: every trial has its result.", style="green")
    total_flops = sum(t.spec.accounting["training_flops"] * t.remaining for t in todo)
    seconds = plan.predicted_s(slots=slots)
    sources = sorted({t.forecast.source for t in todo})
    how = {
        "measured": "from trials measured here",
        "scaled": "scaled from other trials measured here",
        "guess": "a guess; measured after the first run",
    }
    return Text(
        f"To train: {len(todo)} trials, {units.flops(total_flops)} FLOPs, about {units.duration(seconds)} with {slots} at a time"
        f" ({'; '.join(how[s] for s in sources)}).",
        style="bold",
    )


def _too_large(plan: Plan, *, slots: int) -> list[str]:
    """Return what this machine cannot do, as far as it can be seen from here."""
    notes = []
    cores = usable_cores()
    widest = max((t.spec.resources.cpus * t.spec.resources.ranks for t in plan.trials), default=1)
    if widest > cores:
        notes.append(
            f"a trial asks for {widest} cores (cpus x ranks) and this machine has {cores}; it will wait here for ever"
        )
    todo = [t for t in plan.trials if t.to_train]
    peak = max(
        (t.spec.accounting["peak_memory_bytes"] * t.spec.resources.ranks for t in todo), default=0.0
    )
    memory = psutil.virtual_memory().total
    if not visible_gpus() and peak * slots > 0.9 * memory:
        notes.append(
            f"{slots} trials at a time may take {units.size(peak * slots)} of {units.size(memory)} memory; "
            "set resources.micro_batch_tokens, or submit with fewer --cpus"
        )
    return notes


def doctor_table(checks: Sequence[Check]) -> RenderableType:
    """Return the doctor's report."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    style = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
    for check in checks:
        found = Text(check.found)
        if check.fix:
            found.append(f"\n→ {check.fix}", style=style[check.verdict])
        table.add_row(Text(check.verdict.value, style=style[check.verdict]), check.name, found)
    return table


def status_table(status: SweepStatus, *, rows: int = 200) -> RenderableType:
    """Return where every trial stands: what runs first, then what waits, failed and is done."""
    table = Table(box=None, pad_edge=False)
    table.add_column("trial", no_wrap=True)
    table.add_column("preset", no_wrap=True)
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
    for trial in trials[:rows]:
        table.add_row(*_status_row(trial))
    parts: list[RenderableType] = [table]
    if len(trials) > rows:
        parts.append(Text(f"… and {len(trials) - rows} more", style="dim"))
    parts += [Text(sentence, style="yellow") for sentence in status.excluded]
    parts.append(totals_text(status))
    return Group(*parts)


def _status_row(trial: TrialStatus) -> tuple[RenderableType, ...]:
    done = (
        trial.step
        if trial.step is not None
        else (trial.steps if trial.state is TrialState.DONE else 0)
    )
    remark = trial.wait or (
        trial.reason if trial.state in (TrialState.FAILED, TrialState.CANCELLED) else ""
    )
    if trial.state is TrialState.RUNNING:
        remark = {
            "data": "preparing data",
            "evaluate": "evaluating",
            "checkpoint": "checkpointing",
        }.get(trial.phase or "", "")
        if trial.attempt > 1:
            remark = f"attempt {trial.attempt} {remark}".strip()
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
    text = Text(f"{status.sweep}: ")
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
    if status.time_left_s is not None and not status.complete:
        text.append(f"about {units.duration(status.time_left_s)} left", style="bold")
    if status.stopping:
        text.append("  stopping: waiting for checkpoints", style="yellow")
    elif not status.controller_alive and not status.complete:
        text.append("  nothing is running it; submit it again to go on", style="dim")
    return text


class LiveSweep:
    """Shows a sweep while it runs: a table that redraws on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        """Draw on `console`; `quiet` leaves only a line now and then."""
        self._console = console
        self._live = (
            None
            if quiet or not console.is_terminal
            else Live(console=console, refresh_per_second=4, transient=True)
        )
        self._told: tuple[int, ...] = ()
        self._told_at = 0.0

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

    def update(self, status: SweepStatus) -> None:
        """Show where the sweep stands now."""
        if self._live:
            self._live.update(status_table(status, rows=MOST_ROWS))
            return
        ended = tuple(
            status.totals[s] for s in (TrialState.DONE, TrialState.FAILED, TrialState.CANCELLED)
        )
        now = time.monotonic()
        if ended != self._told or now - self._told_at >= QUIET_EVERY_S:
            self._told, self._told_at = ended, now
            self._console.print(totals_text(status))


def outcome_text(ended: Ended, *, runs_option: str) -> RenderableType:
    """Return how a submission ended and what to do next."""
    status = ended.status
    lines: list[RenderableType] = [totals_text(status)]
    for trial in status.trials:
        if trial.state is TrialState.FAILED:
            lines.append(Text(f"failed: {trial.trial_id}: {trial.reason}", style="red"))
            lines.append(
                Text(f"        {command()} logs {trial.trial_id}{runs_option}", style="dim")
            )
        elif trial.state is TrialState.WAITING and trial.wait and not ended.interrupted:
            lines.append(Text(f"waiting: {trial.trial_id}: {trial.wait}", style="yellow"))
    if not ended.drained.complete:
        lines.append(
            Text(
                f"{ended.drained.points_waiting:,} points are not in MLflow yet ({ended.drained.problem}); they are safe in the "
                f"journals: {command()} sync {status.sweep}{runs_option}",
                style="yellow",
            )
        )
    if ended.interrupted and not status.complete:
        lost = sum(
            t.state is TrialState.WAITING
            and t.outcome is not None
            and "before it could checkpoint" in t.reason
            for t in status.trials
        )
        what = (
            f"{lost} trials were ended before they could checkpoint and go back to their last one"
            if lost
            else "what ran has checkpointed"
        )
        lines.append(
            Text(f"Stopped on request; {what}. Submit the same file again to go on.", style="bold")
        )
    return Group(*lines)


def command() -> str:
    """Return how the reader can type this command: its name if it is on the PATH, else the path it was started by."""
    started = Path(sys.argv[0])
    if started.name != "memscale":
        return "memscale"
    found = shutil.which("memscale")
    if found and Path(found).resolve() == started.resolve():
        return "memscale"
    return os.path.relpath(started)


class PrintedTable(Protocol):
    """What `analysis.tables` makes; the orchestrator does not import analysis."""

    @property
    def title(self) -> str:
        """Heading."""

    @property
    def columns(self) -> Sequence[str]:
        """Headings of the columns."""

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """Text of the cells."""

    @property
    def numeric(self) -> Sequence[bool]:
        """Columns to align right."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences below it."""


def printed(tables: Sequence[PrintedTable]) -> RenderableType:
    """Return tables of text cells."""
    parts: list[RenderableType] = []
    for given in tables:
        table = Table(
            title=given.title, title_justify="left", title_style="bold", box=None, pad_edge=False
        )
        for column, numeric in zip(given.columns, given.numeric, strict=True):
            table.add_column(column, justify="right" if numeric else "left")
        for row in given.rows:
            table.add_row(*(Text(cell) for cell in row))
        parts += [table, *(Text(note, style="dim") for note in given.notes), Text("")]
    return Group(*parts)


def next_steps(
    page: Path, figures: Sequence[Path], *, sweep: str, runs_option: str
) -> RenderableType:
    """Return where the results are and the commands to try next."""
    memscale = command()
    commands = {
        f"{memscale} ui {sweep}{runs_option}": "the MLflow page with every run",
        f"{memscale} status {sweep}{runs_option}": "what became of each trial",
        f"{memscale} plan --show quickstart > my_sweep.yaml": f"edit it, then: {memscale} plan my_sweep.yaml",
    }
    width = max(len(command) for command in commands) + 3
    lines = [f"report: {page}", *(f"figure: {figure}" for figure in figures), "", "Try next:"]
    lines += [f"  {command.ljust(width)}{what}" for command, what in commands.items()]
    return Text("\n".join(lines))
