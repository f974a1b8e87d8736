"""List of the sweeps of a tracker, from their parent runs."""

from collections.abc import Mapping
from typing import Any

from orchestrator.control.sweep_list import SweepSummary, sort_by_age
from orchestrator.records.errors import NotFoundError
from orchestrator.records.redaction import without_password
from orchestrator.tracking.mlflow_client import TrackingClient
from orchestrator.tracking.tracking_uri import database_file

_STATES = {"RUNNING": "running", "FINISHED": "done", "FAILED": "failed", "KILLED": "stopped"}


def list_tracked_sweeps(uri: str) -> list[SweepSummary]:
    """Return the sweeps of a tracker, the last submitted first.

    A sweep that several runs folders sent has a row of each.

    Raises:
        StoreError: If there is no such tracker, or it does not answer.
    """
    file = database_file(uri)
    if file is not None and not file.is_file():
        # MLflow would make an empty one.
        raise NotFoundError(f"{without_password(uri)}: no such database; is the path right?")
    newest: dict[tuple[str, str], SweepSummary] = {}
    for parent in TrackingClient(uri).parents():
        newest[parent.sweep, parent.folder_id] = SweepSummary(
            name=parent.sweep,
            state=_STATES.get(parent.status, "stopped"),
            trials=_count(parent.metrics, "total"),
            counts={name: _count(parent.metrics, name) for name in ("done", "failed")},
            submitted_at=parent.submitted_at_s,
        )
    return sort_by_age(list(newest.values()))


def _count(metrics: Mapping[str, Any], name: str) -> int:
    return int(metrics.get(f"trials/{name}", 0))
