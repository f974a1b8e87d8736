"""Schema of the runs in MLflow: names, tags, params, metrics and status. Pure.

See docs/mlflow.md.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.tracking.journal_reader import Point, metric_name
from orchestrator.tracking.trial_view import TrialView

KIND = "memscale.kind"
SUBMISSION_KIND = "submission"
TRIAL_KIND = "trial"
FOLDER_ID = "memscale.folder_id"
"""Tag: which folder a run belongs to, so that two people's runs of one sweep stay apart."""
KEY = "memscale.key"
"""Tag: trial id or submission number; with KIND and FOLDER_ID it identifies a run."""
CANCEL = "memscale.cancel"
"""Tag that somebody sets on the page to stop a trial, or on the parent run to stop the sweep."""
CANCEL_TAKEN = "memscale.cancel_taken"
RETRY = "memscale.retry"
"""Tag that somebody sets on the page to retry a trial, or on the parent run to retry all that
failed or were cancelled."""
RETRY_TAKEN = "memscale.retry_taken"


def trial_name(spec: TrialSpec, varied: str = "") -> str:
    """Return the name of a trial's row, with the beginning of the id that `memscale logs` takes.

    Args:
        spec: Of the trial.
        varied: What varies in its sweep, as `records/varied_settings.py` writes it.
    """
    size = spec.preset or _short_count(spec.accounting.get("total_params"))
    short = spec.trial_id.removeprefix(f"{spec.architecture}-")[:6]
    parts = (spec.architecture, size, varied, f"seed {spec.seed}", short)
    return " ".join(part for part in parts if part)


def _short_count(count: float | None) -> str:
    if count is None:
        return ""
    for unit, size in (("b", 1e9), ("m", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def trial_params(spec: TrialSpec) -> dict[str, str]:
    """Return the params of a trial's run.

    All of them are on every child: a filter on the page sees one run at a time.
    """
    params = {"architecture": spec.architecture, "seed": str(spec.seed)}
    for key in ("preset", "recipe", "from_pretrained"):
        if getattr(spec, key) is not None:
            params[key] = getattr(spec, key)
    for section in ("model", "train", "data"):
        for key, value in getattr(spec, section).items():
            if value is not None and (section, key) != ("model", "architecture"):
                params[metric_name(f"{section}.{key}")] = _text(value)
    return params | {f"match.{key}": value for key, value in (spec.match or {}).items()}


def trial_accounting(spec: TrialSpec, *, t: int) -> list[Point]:
    """Return the counts known before training as metrics at step 0: columns and chart axes."""
    return [
        Point(metric_name(key), float(value), t, 0)
        for key, value in sorted(spec.accounting.items())
    ]


def trial_tags(
    spec: TrialSpec,
    view: TrialView,
    *,
    submission: int | None,
    environment: Mapping[str, Any],
    colour: str,
    varied: str = "",
) -> dict[str, str]:
    """Return the tags of a trial's run."""
    note = f"{view.outcome}: {view.reason}" if view.state is TrialState.FAILED else ""
    tags = {
        "memscale.sweep": spec.sweep,
        "memscale.trial_id": spec.trial_id,
        "memscale.architecture": spec.architecture,
        "memscale.preset": spec.preset or "",
        "memscale.recipe": spec.recipe or "",
        "memscale.not_causal": spec.not_causal or "",
        "memscale.submission": "" if submission is None else str(submission),
        "memscale.origin": spec.origin,
        "memscale.attempt": str(view.attempt),
        "memscale.state": view.state.value,
        "memscale.outcome": view.outcome,
        "memscale.reason": view.reason,
        "mlflow.runName": trial_name(spec, varied),
        "mlflow.runColor": colour,
        "mlflow.note.content": note,
        **SOURCE,
    }
    commit = (environment.get("git") or {}).get("commit")
    return {**tags, "mlflow.source.git.commit": str(commit)} if commit else tags


def model_tags(spec: TrialSpec) -> dict[str, str]:
    """Return the tags of a registered model's version."""
    return {
        "memscale.trial_id": spec.trial_id,
        "memscale.architecture": spec.architecture,
        "memscale.preset": spec.preset or "",
        "memscale.seed": str(spec.seed),
    }


def registers_models(submissions: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the trials whose models somebody asked to register."""
    asking = [submission for submission in submissions if submission.get("register")]
    return frozenset(str(i) for submission in asking for i in submission.get("trial_ids", ()))


SOURCE = {"mlflow.source.name": "memscale submit", "mlflow.source.type": "LOCAL"}
"""What the page's Source column shows."""


def submission_tags(
    sweep: SweepDir, submission: Mapping[str, Any], *, n_trials: int
) -> dict[str, str]:
    """Return the tags of a submission's parent run."""
    number = submission["number"]
    return {
        "memscale.sweep": sweep.name,
        "memscale.submission": str(number),
        "memscale.trials": str(n_trials),
        "mlflow.runName": f"{sweep.name} #{number}",
        **({"mlflow.user": str(submission["user"])} if submission.get("user") else {}),
        **SOURCE,
    }


def submission_status(states: Sequence[TrialState], *, controlled: bool) -> str:
    """Return the parent's status from those of the trials it asked for.

    Args:
        states: With trials of a dead controller already counted as waiting.
        controlled: Whether a live controller works on those that wait.
    """
    if TrialState.RUNNING in states:
        return "RUNNING"
    if all(state is TrialState.DONE for state in states):
        return "FINISHED"
    if controlled and TrialState.WAITING in states:
        return "RUNNING"
    return "FAILED" if TrialState.FAILED in states else "KILLED"


def submission_points(
    ends: Sequence[Sequence[tuple[float, TrialState]]], *, n_trials: int, submitted_at_s: float
) -> list[Point]:
    """Return how the sweep went over time: trials done and failed after each end.

    Args:
        ends: Of each trial, oldest first: when it ended for good in this submission, seconds since
            1970, and how. More than one if somebody asked for a retry; then the last one so far
            counts. Trials that were done before count at its start.
        n_trials: Trials the submission asked for.
        submitted_at_s: Its start; step 0.
    """
    earlier = [state for of in ends for at, state in of if at <= submitted_at_s]
    later = sorted(
        (at, state, before)
        for of in ends
        for (at, state), before in zip(of, (None, *(state for _, state in of)), strict=False)
        if at > submitted_at_s
    )
    done, failed = earlier.count(TrialState.DONE), earlier.count(TrialState.FAILED)
    start = round(submitted_at_s * 1000)
    points = [
        Point("trials/total", float(n_trials), start, 0),
        Point("trials/done", float(done), start, 0),
        Point("trials/failed", float(failed), start, 0),
    ]
    for step, (at, state, before) in enumerate(later, 1):
        done += state is TrialState.DONE
        failed += (state is TrialState.FAILED) - (before is TrialState.FAILED)
        points.append(Point("trials/done", float(done), round(at * 1000), step))
        points.append(Point("trials/failed", float(failed), round(at * 1000), step))
    return points


def first_asked(submissions: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return which submission first asked for each trial: trial id to number."""
    first: dict[str, int] = {}
    for submission in submissions:
        for trial_id in submission.get("trial_ids", ()):
            first.setdefault(str(trial_id), int(submission["number"]))
    return first


def _text(value: Any) -> str:
    return (
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    )
