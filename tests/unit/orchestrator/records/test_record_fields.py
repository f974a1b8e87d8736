"""Records from elsewhere: of a newer or older version, or well-formed and wrong."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import trial_spec
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialSpec

SPEC = TrialSpec(
    sweep="s",
    data={"source": "x"},
    model={"architecture": "dense"},
    train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
    seed=0,
)
END = {"outcome": "killed", "reason": "signal 9", "final": False, "ended_at": 1.0}


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    """A sweep of two trials."""
    sweep = SweepDir(tmp_path / "s")
    for seed in (0, 1):
        spec = dataclasses.replace(SPEC, seed=seed)
        sweep.trial(spec.trial_id).create(spec)
    return sweep


def alter(trial: TrialDir, **fields: Any) -> None:
    record = json.loads((trial.path / "spec.json").read_text())
    write_json(trial.path / "spec.json", {**record, **fields})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"colour": "red"}, "unknown field colour: a newer memscale wrote it, or it was altered"),
        ({"resources": {"gpus": 0, "tpus": 1}}, "unknown field tpus: "),
        ({"schema": 2, "colour": "red"}, "a newer memscale wrote it .schema 2, this one reads up"),
        ({"schema": "2"}, "its content hashes to"),
        ({"seed": 7}, "its content hashes to"),
        ({"model": None}, "spec.json: "),
        ({"model": 3}, "spec.json: "),
        ({"retries": []}, "spec.json: "),
        ({"accounting": {"total_params": "x"}}, "accounting: expected an object of numbers"),
        ({"match": "pythia"}, "match: expected an object of texts, got 'pythia'"),
        ({"preset": ["d8"]}, "preset: expected text"),
    ],
)
def test_a_spec_that_is_not_understood_is_set_aside(
    sweep: SweepDir, fields: dict[str, Any], told: str
) -> None:
    trial, other = sweep.trials()
    alter(trial, **fields)

    with pytest.raises(StoreError, match=told):
        trial.spec()
    snapshot = sweep.snapshot()
    assert list(snapshot.trials) == [other.trial_id]
    assert list(snapshot.unreadable) == [trial.trial_id]


def test_a_spec_of_an_older_version_keeps_its_name(
    sweep: SweepDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = sweep.trials()[0]
    record = json.loads((trial.path / "spec.json").read_text())
    del record["schema"], record["not_causal"]
    write_json(trial.path / "spec.json", record)

    assert trial.spec().trial_id == trial.trial_id
    monkeypatch.setattr(trial_spec, "SCHEMA_VERSION", 2)
    assert trial.spec().trial_id == trial.trial_id
    assert dataclasses.replace(trial.spec(), schema=2).trial_id != trial.trial_id


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        ("end.json", {"outcome": "exploded"}, "outcome: expected one of done, .* got 'exploded'"),
        ("end.json", {"outcome": 3}, "outcome: expected one of"),
        ("end.json", {"outcome": ["done"]}, "outcome: expected one of"),
        ("end.json", {"reason": None}, "reason: expected text"),
        ("end.json", {"final": "no"}, "final: expected true or false"),
        ("end.json", {"ended_at": "noon"}, "ended_at: expected a number"),
        ("launch.json", {"submission": "one"}, "submission: expected a number"),
        ("../../result.json", {"metrics": []}, "metrics: expected an object"),
        ("../../retry.json", {"after": True}, "after: expected a number"),
        ("../../result.json", {"metrics": {}, "attempt": "x"}, "attempt: expected a number"),
        ("../../controller.json", {"pid": 1}, "field host is missing"),
    ],
)
def test_a_wrong_field_sets_the_trial_aside(
    sweep: SweepDir, name: str, fields: dict[str, Any], told: str
) -> None:
    trial, other = sweep.trials()
    attempt = trial.new_attempt({"submission": 1})
    write_json(attempt.path / "end.json", END)
    path = (attempt.path / name).resolve()
    write_json(path, {**(END if name == "end.json" else {}), **fields})

    with pytest.raises(StoreError, match=f"{path.name}: {told}"):
        trial.record()
    assert list(sweep.snapshot().trials) == [other.trial_id]


def test_a_missing_field_is_named_and_a_further_one_passed_over(sweep: SweepDir) -> None:
    attempt = sweep.trials()[0].new_attempt({})
    write_json(attempt.path / "end.json", {**END, "colour": "red"})
    assert (attempt.end() or {})["colour"] == "red"

    write_json(attempt.path / "end.json", {"outcome": "killed"})
    with pytest.raises(StoreError, match=r"end\.json: field reason is missing"):
        attempt.end()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "field kind is missing"),
        ({"kind": "quota", "message": "m"}, "kind: expected one of done, .* got 'quota'"),
        ({"kind": "diverged", "message": None}, "message: expected text"),
    ],
)
def test_a_wrong_error_of_a_rank_names_its_file(
    sweep: SweepDir, fields: dict[str, Any], told: str
) -> None:
    attempt = sweep.trials()[0].new_attempt({})
    write_json(attempt.path / "error.json", fields)

    with pytest.raises(StoreError, match=rf"error\.json: {told}"):
        attempt.error()


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        ("controller.json", {"pid": 1, "start_ticks": 1}, "field host is missing"),
        ("controller.json", {"host": "n", "pid": "x", "start_ticks": 1}, "pid: expected a number"),
        ("submissions/0001.json", {"number": 1}, "field trial_ids is missing"),
        ("submissions/0001.json", {"number": 1, "trial_ids": [3]}, "trial_ids: expected a list"),
        (
            "submissions/0001.json",
            {"number": 1, "trial_ids": [], "run": []},
            "run: expected an object",
        ),
    ],
)
def test_a_wrong_record_of_the_sweep_names_its_file(
    sweep: SweepDir, name: str, fields: dict[str, Any], told: str
) -> None:
    (sweep.path / "submissions").mkdir()
    write_json(sweep.path / name, fields)

    with pytest.raises(StoreError, match=f"{name}: {told}"):
        sweep.snapshot()
