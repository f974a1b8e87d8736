"""The news of one submission to its parent run."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.records.trial_dir import AttemptDir, SweepDir, TrialDir
from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.tracking import run_schema, sync_state
from orchestrator.tracking.journal_reader import MAX_POINTS, batches, final_points
from orchestrator.tracking.mlflow_client import (
    RefusedError,
    RunGoneError,
    TrackingClient,
    artifact_text,
)
from orchestrator.tracking.sync_state import SubmissionProgress, TrialProgress
from orchestrator.tracking.trial_view import ENDED, TrialSnapshot, TrialView, endings


def sync_submission(
    store: TrackingClient,
    sweep: SweepDir,
    submission: Mapping[str, Any],
    *,
    run_id: str,
    looks: Mapping[str, TrialSnapshot],
    working_on: frozenset[str],
) -> None:
    """Send what is missing of a submission's counts, tags, status and sweep file.

    Args:
        store: The tracker.
        sweep: Its folder.
        submission: Its record.
        run_id: The parent run.
        looks: Trial id to how it looks; what is not there could not be read.
        working_on: Ids of the trials that a live controller works on.

    Raises:
        TrackerError: If the tracker does not take it.
    """
    number = int(submission["number"])
    kept = sync_state.load_submission(sweep, store.uri, number)
    if kept.run_id != run_id:
        kept = SubmissionProgress(run_id=run_id)
    news = kept
    seen = {i: looks[i] for i in map(str, submission["trial_ids"]) if i in looks}
    at_s = float(submission["submitted_at"])
    found = [
        endings(sweep.trial(i), look.attempts, submission=number, submitted_at_s=at_s)
        for i, look in seen.items()
    ]

    points = run_schema.submission_points(found, n_trials=len(seen), submitted_at_s=at_s)
    for first in range(kept.points, len(points), MAX_POINTS):
        store.log_points(run_id, points[first : first + MAX_POINTS])
    news = replace(news, points=max(kept.points, len(points)))
    tags = run_schema.submission_tags(sweep, submission, n_trials=len(seen))
    if sync_state.digest(tags) != kept.tags:
        store.set_tags(run_id, tags)
        news = replace(news, tags=sync_state.digest(tags))
    status = run_schema.submission_status(
        [look.view.state for look in seen.values()],
        controlled=any(
            look.view.state is TrialState.WAITING and i in working_on for i, look in seen.items()
        ),
    )
    if status != kept.status:
        ended_at_s = max((at for of in found for at, _ in of), default=at_s)
        store.set_status(run_id, status, ended_at_s=ended_at_s if status in ENDED else None)
        news = replace(news, status=status)
    sweep_file = sweep.path / "sweep.yaml"
    if sweep_file.exists() and not kept.artifacts:
        store.log_text(run_id, artifact_text(sweep_file), "config/sweep.yaml")
        news = replace(news, artifacts=("config/sweep.yaml",))
    if news != kept:
        sync_state.save_submission(sweep, store.uri, number, news)


# The news of one trial to its run. What the tracker took is kept at once.


LOG = logging.getLogger(__name__)


class TrialSync:
    """Sends one trial to one run. Each method sends what is missing and raises TrackerError if it is not taken."""

    def __init__(self, *, store: TrackingClient, trial: TrialDir, run_id: str) -> None:
        """Read how far the trial was sent; progress that belongs to another run does not count."""
        self._store = store
        self._trial = trial
        self._run_id = run_id
        kept = sync_state.load_trial(trial, store.uri)
        self._kept = kept if kept.run_id == run_id else TrialProgress(run_id=run_id)

    def ignore(self, ignored: bool) -> None:
        """Keep whether somebody deleted the run from the page; a restored one is taken up again."""
        self._keep(ignored=ignored)

    def _keep(self, **changes: Any) -> None:
        changed = replace(self._kept, **changes)
        if changed != self._kept:
            self._kept = changed
            sync_state.save_trial(self._trial, self._store.uri, changed)

    def describe(self, spec: TrialSpec, *, t: int) -> None:
        """Send params and accounting; `t` is the accounting's time, milliseconds since 1970."""
        params = run_schema.trial_params(spec)
        digest = sync_state.digest({"params": params, "accounting": dict(spec.accounting)})
        if digest == self._kept.described:
            return
        if spec.accounting:
            self._store.log_points(self._run_id, run_schema.trial_accounting(spec, t=t))
        try:
            self._store.log_params(self._run_id, params)
        except RunGoneError:
            raise
        except RefusedError as error:
            # A preset renamed, a default added: what the run said first stays, the tracker allows no change.
            LOG.warning("trial %s: its params stay as they were: %s", spec.trial_id, error)
        self._keep(described=digest)

    def journals(self, attempts: Sequence[AttemptDir]) -> None:
        """Send the measurements of all attempts, oldest first."""
        for attempt in attempts:
            number = str(attempt.number)
            offset = self._kept.offsets.get(number, 0)
            if not attempt.journal.exists() or attempt.journal.stat().st_size == offset:
                continue
            for batch in batches(attempt, offset=offset, marks=self._kept.marks):
                if batch.points:
                    self._store.log_points(self._run_id, batch.points)
                self._keep(offsets={**self._kept.offsets, number: batch.offset}, marks=batch.marks)

    def finals(self) -> None:
        """Make the last values those of result.json."""
        if self._kept.finals:
            return
        result = self._trial.result() or {}
        points = final_points(
            result["metrics"],
            step=int(result["steps"]),
            t=round(float(result["finished_at"]) * 1000),
            marks=self._kept.marks,
        )
        if points:
            self._store.log_points(self._run_id, points)
        self._keep(finals=True)

    def tags(self, tags: Mapping[str, str]) -> None:
        """Send the tags if any changed."""
        digest = sync_state.digest(tags)
        if digest != self._kept.tags:
            self._store.set_tags(self._run_id, tags)
            self._keep(tags=digest)

    def status(self, view: TrialView) -> None:
        """Send the run's status if it changed."""
        if view.status != self._kept.status:
            ended_at_s = view.ended_at_s if view.status in ENDED else None
            self._store.set_status(self._run_id, view.status, ended_at_s=ended_at_s)
            self._keep(status=view.status)

    def artifacts(self, attempts: Sequence[AttemptDir]) -> None:
        """Store the spec, and of every attempt its environment and, once it ended, its log."""
        files: dict[str, Path] = {"config/spec.json": self._trial.path / "spec.json"}
        for attempt in attempts:
            files[f"environment/attempt-{attempt.number}.json"] = attempt.path / "environment.json"
            if attempt.end() is not None:
                files[f"log/attempt-{attempt.number}.txt"] = attempt.log
        for name, path in files.items():
            if name not in self._kept.artifacts and path.exists():
                self._store.log_text(self._run_id, artifact_text(path), name)
                self._keep(artifacts=(*self._kept.artifacts, name))
