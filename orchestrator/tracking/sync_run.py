"""Sync of one run: what its tracker lacks is sent; what it took is kept."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.tracking import run_schema, sweep_report, sync_state
from orchestrator.tracking.corpus_dataset import trial_datasets
from orchestrator.tracking.journal_reader import MAX_POINTS, Point, batches, final_points
from orchestrator.tracking.mlflow_client import (
    RefusedError,
    RunGoneError,
    TrackingClient,
    artifact_text,
)
from orchestrator.tracking.sync_state import ParentProgress, TrialProgress
from orchestrator.tracking.trial_view import ENDED, TrialSnapshot, terminal_states

LOG = logging.getLogger(__name__)
MODEL = "model"
"""Among a run's artifacts: what the registry points at."""
ProgressT = TypeVar("ProgressT", TrialProgress, ParentProgress)


class _RunSync(Generic[ProgressT]):
    """Sends tags and status to one run. Each method raises TrackerError."""

    def __init__(
        self,
        client: TrackingClient,
        run_id: str,
        *,
        kept: ProgressT,
        save: Callable[[ProgressT], None],
    ) -> None:
        """Go on from `kept`; progress that belongs to another run does not count."""
        self._client = client
        self._run_id = run_id
        self._save: Callable[[ProgressT], None] = save
        self.kept: ProgressT = kept if kept.run_id == run_id else type(kept)(run_id=run_id)

    def keep(self, **changes: Any) -> None:
        """Save what the tracker has taken."""
        changed = replace(self.kept, **changes)
        if changed != self.kept:
            self.kept = changed
            self._save(changed)

    def send_points(self, points: Sequence[Point]) -> None:
        """Send any number of points."""
        for first in range(0, len(points), MAX_POINTS):
            self._client.log_points(self._run_id, points[first : first + MAX_POINTS])

    def send_params(self, params: Mapping[str, str], *, of: str) -> None:
        """Send params; `of` names the run in the log."""
        try:
            self._client.log_params(self._run_id, params)
        except RunGoneError:
            raise
        except RefusedError as error:
            # A preset renamed, a default added: the first params stay, MLflow allows no change.
            LOG.warning("%s: its params stay as they were: %s", of, error)

    def sync_tags(self, tags: Mapping[str, str]) -> None:
        """Send the tags if any changed."""
        digest = sync_state.digest(tags)
        if digest != self.kept.tags:
            self._client.set_tags(self._run_id, tags)
            self.keep(tags=digest)

    def sync_status(self, status: str, *, ended_at_s: float | None) -> None:
        """Send the run's status if it changed."""
        if status != self.kept.status:
            ended_at_s = ended_at_s if status in ENDED else None
            self._client.set_status(self._run_id, status, ended_at_s=ended_at_s)
            self.keep(status=status)


def sync_parent(
    client: TrackingClient,
    sweep: SweepDir,
    submissions: Sequence[Mapping[str, Any]],
    *,
    run_id: str,
    snapshots: Mapping[str, TrialSnapshot],
    controlled: frozenset[str],
) -> None:
    """Send what is missing of a sweep's counts, tags, params, report, status and sweep file.

    Args:
        client: Of the tracker.
        sweep: Its folder.
        submissions: Its submissions, oldest first; at least one.
        run_id: The parent run.
        snapshots: By trial; trials that could not be read are missing.
        controlled: Trials that a live controller works on.

    Raises:
        TrackerError: If the tracker does not take it.
    """
    run = _RunSync(
        client,
        run_id,
        kept=sync_state.load_parent(sweep, client.uri) or ParentProgress(),
        save=lambda kept: sync_state.save_parent(sweep, client.uri, kept),
    )
    submitted_at_s = float(submissions[-1]["submitted_at"])
    ends = {
        i: terminal_states(sweep.trial(i), one.attempts, submitted_at_s=submitted_at_s)
        for i, one in snapshots.items()
    }
    points = run_schema.sweep_points(submissions, ends)
    run.send_points(points[run.kept.points :])
    run.keep(points=max(run.kept.points, len(points)))
    report = sweep_report.read_report(sweep.path)
    tags = run_schema.sweep_tags(sweep.name, submissions)
    run.sync_tags({**tags, **(report.tags if report is not None else {})})
    if params := run_schema.submission_params(submissions[run.kept.submissions :]):
        run.send_params(params, of=f"sweep {sweep.name}")
        run.keep(submissions=len(submissions))
    waiting = {i for i, one in snapshots.items() if one.view.state is TrialState.WAITING}
    status = run_schema.sweep_status(
        [one.view.state for one in snapshots.values()], controlled=bool(waiting & controlled)
    )
    last_end_s = max((at for of in ends.values() for at, _ in of), default=submitted_at_s)
    run.sync_status(status, ended_at_s=last_end_s)
    # Artifacts go last: where they are refused, the run has everything else.
    if report is not None and report.digest != run.kept.report:
        run.send_points(report.points)
        client.log_folder(run_id, report.folder, sweep_report.FOLDER)
        run.keep(report=report.digest)
    sweep_file = sweep.path / "sweep.yaml"
    if sweep_file.exists():
        text = artifact_text(sweep_file)
        digest = sync_state.digest({"text": text})
        if digest != run.kept.sweep_file:
            client.log_text(run_id, text, "config/sweep.yaml")
            run.keep(sweep_file=digest)


class TrialSync(_RunSync[TrialProgress]):
    """Sends one trial to one run. Each method sends what is missing and raises TrackerError."""

    def __init__(self, client: TrackingClient, trial: TrialDir, run_id: str) -> None:
        """Read how far the trial was sent."""
        super().__init__(
            client,
            run_id,
            kept=sync_state.load_trial(trial, client.uri),
            save=lambda kept: sync_state.save_trial(trial, client.uri, kept),
        )
        self._trial = trial

    def sync_artifact(self, name: str, path: Path) -> None:
        """Store a file once it exists."""
        if name not in self.kept.artifacts and path.exists():
            self._client.log_text(self._run_id, artifact_text(path), name)
            self.keep(artifacts=(*self.kept.artifacts, name))

    def sync_params(self, spec: TrialSpec, *, t: int) -> None:
        """Send params and accounting; `t` is the accounting's time, milliseconds since 1970."""
        params = run_schema.trial_params(spec)
        digest = sync_state.digest({"params": params, "accounting": dict(spec.accounting)})
        if digest == self.kept.described:
            return
        if spec.accounting:
            self._client.log_points(self._run_id, run_schema.trial_accounting(spec, t=t))
        self.send_params(params, of=f"trial {spec.trial_id}")
        self.keep(described=digest)

    def sync_datasets(self, spec: TrialSpec) -> None:
        """Send which corpora the trial reads."""
        datasets = trial_datasets(spec)
        digest = sync_state.digest({"datasets": [asdict(one) for one in datasets]})
        if digest != self.kept.datasets:
            self._client.log_datasets(self._run_id, datasets)
            self.keep(datasets=digest)

    def sync_model(self, spec: TrialSpec) -> None:
        """Store the final weights with their spec, and register them under the sweep's name."""
        weights = self._trial.checkpoints / "final"
        if self.kept.model_version or not weights.is_dir():
            return
        self._client.log_folder(self._run_id, weights, f"{MODEL}/{weights.name}")
        spec_text = artifact_text(self._trial.path / "spec.json")
        self._client.log_text(self._run_id, spec_text, f"{MODEL}/spec.json")
        version = self._client.register_model(
            self._run_id, name=spec.sweep, artifact=MODEL, tags=run_schema.model_tags(spec)
        )
        self.keep(model_version=version)

    def sync_journals(self, attempts: Sequence[AttemptDir]) -> None:
        """Send the measurements of all attempts, oldest first."""
        for attempt in attempts:
            number = str(attempt.number)
            offset = self.kept.offsets.get(number, 0)
            if not attempt.journal.exists() or attempt.journal.stat().st_size == offset:
                continue
            for batch in batches(attempt, offset=offset, marks=self.kept.marks):
                if batch.points:
                    self._client.log_points(self._run_id, batch.points)
                self.keep(offsets={**self.kept.offsets, number: batch.offset}, marks=batch.marks)

    def sync_final_metrics(self) -> None:
        """Make the last values those of result.json; `sync_evaluation` those of evaluations."""
        if self.kept.finals:
            return
        result = self._trial.result() or {}
        evaluated = self._trial.evaluation_metrics()
        points = final_points(
            {name: value for name, value in result["metrics"].items() if name not in evaluated},
            step=int(result["steps"]),
            t=round(float(result["finished_at"]) * 1000),
            marks=self.kept.marks,
        )
        self.send_points(points)
        self.keep(finals=True)

    def sync_evaluation(self) -> None:
        """Send the metrics of suites that were evaluated since."""
        found = self._trial.evaluation_metrics()
        if not found:
            return
        result = self._trial.result() or {}
        times = [float(one["finished_at"]) for one in self._trial.evaluations().values()]
        step = int(result["steps"])
        points = final_points(
            found,
            step=step,
            t=round(max(times) * 1000),
            # What training measured itself is in the journal, at the last step.
            marks={key: mark for key, mark in self.kept.marks.items() if mark.step == step},
        )
        digest = sync_state.digest({point.key: point.value for point in points})
        if not points or digest == self.kept.evaluation:
            return
        self.send_points(points)
        self.keep(evaluation=digest)

    def sync_artifacts(self, attempts: Sequence[AttemptDir]) -> None:
        """Store the spec, every attempt's environment and, once it ended, its log."""
        self.sync_artifact("config/spec.json", self._trial.path / "spec.json")
        for attempt in attempts:
            environment = attempt.path / "environment.json"
            self.sync_artifact(f"environment/attempt-{attempt.number}.json", environment)
            if attempt.end() is not None:
                self.sync_artifact(f"log/attempt-{attempt.number}.txt", attempt.log)
