"""The news of one submission to its parent run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.records import TrialState
from orchestrator.tracking import layout, progress
from orchestrator.tracking.journal_points import MAX_POINTS
from orchestrator.tracking.look import ENDED, Look, endings
from orchestrator.tracking.progress import SubmissionProgress
from orchestrator.tracking.store import Store, artifact_text
from orchestrator.trial_dir import SweepDir


def send_submission(
    store: Store,
    sweep: SweepDir,
    submission: Mapping[str, Any],
    *,
    run_id: str,
    looks: Mapping[str, Look],
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
    kept = progress.load_submission(sweep, store.uri, number)
    if kept.run_id != run_id:
        kept = SubmissionProgress(run_id=run_id)
    news = kept
    seen = {i: looks[i] for i in map(str, submission["trial_ids"]) if i in looks}
    at_s = float(submission["submitted_at"])
    found = [
        endings(sweep.trial(i), look.attempts, submission=number, submitted_at_s=at_s)
        for i, look in seen.items()
    ]

    points = layout.submission_points(found, n_trials=len(seen), submitted_at_s=at_s)
    for first in range(kept.points, len(points), MAX_POINTS):
        store.log_points(run_id, points[first : first + MAX_POINTS])
    news = replace(news, points=max(kept.points, len(points)))
    tags = layout.submission_tags(sweep, submission, n_trials=len(seen))
    if progress.digest(tags) != kept.tags:
        store.set_tags(run_id, tags)
        news = replace(news, tags=progress.digest(tags))
    status = layout.submission_status(
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
        progress.save_submission(sweep, store.uri, number, news)
