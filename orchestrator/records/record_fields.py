"""Fields of small records that readers require, checked when read.

A record may hold more than is named here: a newer memscale adds fields, and readers pass over them.
`spec.json` is stricter (`TrialSpec.from_json`), because a field decides what is trained.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.trial_spec import Outcome

_NUMBER = (int, float)
SUBMISSION = "submissions/N.json"
"""Stands for the files of submissions, which are named by their numbers."""
REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "end.json": {"outcome": Outcome, "reason": str, "final": bool},
    "retry.json": {"after": int},
    "result.json": {"metrics": dict},
    "error.json": {"kind": Outcome, "message": str},
    "controller.json": {"host": str, "pid": int, "start_ticks": int},
    SUBMISSION: {"number": int, "trial_ids": list},
}
OPTIONAL: Mapping[str, Mapping[str, Any]] = {
    "end.json": {"ended_at": _NUMBER},
    "result.json": {"attempt": int, "steps": int, "tokens": _NUMBER, "finished_at": _NUMBER},
    "launch.json": {
        "submission": int,
        "started_at": _NUMBER,
        **dict.fromkeys(("ranks", "cpus", "gpus"), _NUMBER),
    },
    "error.json": {"traceback": str},
    "controller.json": {
        "submission": int,
        "trial_ids": list,
        "waits": dict,
        **dict.fromkeys(("started_at", "updated_at", "ended_at", "time_left_s"), _NUMBER),
    },
    SUBMISSION: {"submitted_at": _NUMBER, "run": dict, "new": dict},
    "heartbeat.json": {"attempt": int, "step": int, "steps": int, "updated_at": _NUMBER},
}


def check_fields_of(path: Path, record: Mapping[str, Any]) -> None:
    """Check the record in a file, by the file's name and, of submissions, its folder.

    Raises:
        StoreError: If a field is missing or of another kind; names the first.
    """
    file = SUBMISSION if path.parent.name == "submissions" else path.name
    for name, kind in REQUIRED.get(file, {}).items():
        if name not in record:
            raise StoreError(f"{path}: field {name} is missing; restore the file or delete it")
        _check(path, name, kind, record[name])
    for name, kind in OPTIONAL.get(file, {}).items():
        if record.get(name) is not None:
            _check(path, name, kind, record[name])


def _check(path: Path, name: str, kind: Any, value: Any) -> None:
    if kind is Outcome:
        right = value in set(Outcome) if isinstance(value, str) else False
        expected = "one of " + ", ".join(Outcome)
    elif kind is list:
        right = isinstance(value, list) and all(isinstance(item, str) for item in value)
        expected = "a list of texts"
    else:
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        expected = {bool: "true or false", str: "text", dict: "an object"}.get(kind, "a number")
    if not right:
        raise StoreError(
            f"{path}: {name}: expected {expected}, got {str(value)[:60]!r}; "
            "restore the file or delete it"
        )
