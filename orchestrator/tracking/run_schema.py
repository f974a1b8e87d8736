"""Schema of the runs in MLflow: names, tags, params, metrics and status. Pure.

See docs/mlflow.md.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.records.units import plural
from orchestrator.tracking.journal_reader import Point, metric_name
from orchestrator.tracking.trial_view import TrialView

KIND = "memscale.kind"
SWEEP_KIND = "sweep"
"""Of the parent run. Earlier versions made one of kind "submission" for each submission."""
TRIAL_KIND = "trial"
FOLDER_ID = "memscale.folder_id"
"""Tag: which folder a run belongs to, so that two people's runs of one sweep stay apart."""
KEY = "memscale.key"
"""Tag: the trial's id; with FOLDER_ID it identifies a trial's run."""
PARENT = "mlflow.parentRunId"
STATE = "memscale.state"
"""Tag: the trial's state. A run without it was made and never written to."""
SUBMITTED_AT = "memscale.submitted_at"
"""Tag of the parent run: when the sweep was last submitted, seconds since 1970."""
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
    parent: str,
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
        STATE: view.state.value,
        "memscale.outcome": view.outcome,
        "memscale.reason": view.reason,
        PARENT: parent,
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


def sweep_tags(name: str, submissions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tags of a sweep's parent run.

    Args:
        name: Of the sweep.
        submissions: Its submissions, oldest first; at least one.
    """
    last = submissions[-1]
    return {
        "memscale.sweep": name,
        "memscale.trials": str(len(first_asked(submissions))),
        SUBMITTED_AT: str(last["submitted_at"]),
        "mlflow.runName": name,
        **({"mlflow.user": str(last["user"])} if last.get("user") else {}),
        **SOURCE,
    }


def submission_params(submissions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the params of the parent run: when each submission was, whose and of what."""
    params = {}
    for one in submissions:
        n_trials = plural(len(one["trial_ids"]), "trial")
        at = datetime.fromtimestamp(one["submitted_at"], UTC).isoformat(timespec="seconds")
        parts = (at, one.get("user"), n_trials)
        params[f"submission.{one['number']}"] = ", ".join(filter(None, parts))
    return params


def sweep_status(states: Sequence[TrialState], *, controlled: bool) -> str:
    """Return the parent run's status from those of the sweep's trials.

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


def sweep_points(
    submissions: Sequence[Mapping[str, Any]],
    ends: Mapping[str, Sequence[tuple[float, TrialState]]],
) -> list[Point]:
    """Return how the sweep went over time: counts after each submission and each end of a trial.

    What happens later only adds points. Ends before the first submission count at its start.

    Args:
        submissions: Oldest first. A trial that failed and is asked for again counts no longer as
            failed.
        ends: By trial id, when it ended for good, seconds since 1970, and how. More than one if
            somebody asked for a retry; then the last one so far counts.
    """
    asked = [(float(s["submitted_at"]), s["trial_ids"], None) for s in submissions]
    ended = [(at, (trial_id,), state) for trial_id, of in ends.items() for at, state in of]
    last: dict[str, TrialState | None] = {}
    counts: Counter[TrialState | None] = Counter()
    points: list[Point] = []
    step = 0
    for at, trial_ids, state in sorted([*asked, *ended], key=lambda event: event[0]):
        for trial_id in map(str, trial_ids):
            before = last.get(trial_id)
            if before is not TrialState.DONE:
                counts[before] -= trial_id in last
                counts[state] += 1
                last[trial_id] = state
        if at < asked[0][0]:
            continue
        t = round(at * 1000)
        if state is None:
            points.append(Point("trials/total", float(len(last)), t, step))
        points.append(Point("trials/done", float(counts[TrialState.DONE]), t, step))
        points.append(Point("trials/failed", float(counts[TrialState.FAILED]), t, step))
        step += 1
    return points


def first_asked(submissions: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return by trial id which submission first asked for it."""
    first: dict[str, Mapping[str, Any]] = {}
    for submission in submissions:
        for trial_id in submission.get("trial_ids", ()):
            first.setdefault(str(trial_id), submission)
    return first


def _text(value: Any) -> str:
    return (
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    )
