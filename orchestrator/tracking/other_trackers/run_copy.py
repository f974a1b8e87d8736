"""Trials in tracker-neutral form: settings, metrics per step, last values."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import UsageError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.varied_settings import trial_labels
from orchestrator.tracking import run_schema, sync_state
from orchestrator.tracking.journal_reader import Mark, batches

WRITERS = {
    "wandb": "orchestrator.tracking.other_trackers.wandb_offline",
    "trackio": "orchestrator.tracking.other_trackers.trackio_folder",
}
"""Format to the module whose `open_writer` makes a RunWriter."""


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """What was measured at one step."""

    step: int
    t: int
    """Milliseconds since 1970."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunCopy:
    """One trial, as it is written to another tracker."""

    sweep: str
    trial_id: str
    name: str
    state: str
    architecture: str
    config: Mapping[str, Any]
    """Sections of the spec, and its accounting."""
    rows: Sequence[MetricRow]
    """By step, each step once."""
    summary: Mapping[str, float]
    """Values of result.json; empty before the trial is done."""

    @property
    def digest(self) -> str:
        """Digest of all that is written: an unchanged copy need not be written again."""
        rows = [(row.step, row.t, dict(row.metrics)) for row in self.rows]
        summary = {"rows": rows, "summary": dict(self.summary), "config": dict(self.config)}
        return sync_state.digest({**summary, "name": self.name, "state": self.state})


class RunWriter(Protocol):
    """What writes copies of runs into a folder, as its tracker reads them."""

    def write(self, run: RunCopy) -> None:
        """Write a run whole; writing it twice leaves it there once."""


def copy_sweep(sweep: SweepDir, folder: Path, *, form: str) -> int:
    """Write every trial of a sweep that has started; return how many.

    Args:
        sweep: Its folder.
        folder: Made if it is not there.
        form: Of WRITERS.

    Raises:
        UsageError: If the tracker's package is not installed.
        StoreError: If a record cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        writer: RunWriter = importlib.import_module(WRITERS[form]).open_writer(folder.absolute())
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the Python package {error.name!r} is not installed; pip install 'memscale[{form}]'"
        ) from error
    copies = 0
    for run in run_copies(sweep):
        writer.write(run)
        copies += 1
    return copies


def run_copies(sweep: SweepDir) -> Iterator[RunCopy]:
    """Yield the trials of a sweep that have started."""
    started = [(trial, trial.attempts()) for trial in sweep.trials()]
    specs = {trial.trial_id: trial.spec() for trial, _ in started}
    labels = trial_labels(list(specs.values()))
    for trial, attempts in started:
        if not attempts:
            continue
        spec = specs[trial.trial_id]
        yield RunCopy(
            sweep=sweep.name,
            trial_id=trial.trial_id,
            name=run_schema.trial_name(spec, labels.get(trial.trial_id, "")),
            state=trial.state().value,
            architecture=spec.architecture,
            config={
                "preset": spec.preset,
                "recipe": spec.recipe,
                "seed": spec.seed,
                "model": dict(spec.model),
                "train": dict(spec.train),
                "data": dict(spec.data),
                "accounting": dict(spec.accounting),
            },
            rows=metric_rows(attempts),
            summary=_summary(trial),
        )


def metric_rows(attempts: Sequence[AttemptDir]) -> list[MetricRow]:
    """Return the rows of all attempts; steps that a resumed attempt repeated stand once."""
    marks: Mapping[str, Mark] = {}
    rows: dict[int, MetricRow] = {}
    for attempt in attempts:
        for batch in batches(attempt, offset=0, marks=marks):
            marks = batch.marks
            for point in batch.points:
                before = rows.get(point.step)
                known = {} if before is None else before.metrics
                rows[point.step] = MetricRow(
                    step=point.step, t=point.t, metrics={**known, point.key: point.value}
                )
    return [rows[step] for step in sorted(rows)]


def _summary(trial: TrialDir) -> dict[str, float]:
    result = trial.result()
    return {} if result is None else dict(result["metrics"])
