"""Identity: what names a trial and what does not."""

import dataclasses
import hashlib
from typing import Any

import pytest

from orchestrator.records.trial_spec import (
    Logging,
    Resources,
    Retries,
    TrialSpec,
    canonical_json,
    identity_difference,
)


def spec(**changes: Any) -> TrialSpec:
    fields: dict[str, Any] = {
        "sweep": "test",
        "data": {"source": "triples", "path": "/facts.tsv", "max_facts": None},
        "model": {"architecture": "dense", "d_model": 64, "memory_layers": [1, 2]},
        "train": {"tokens": 1_000_000, "lr": 3e-3},
        "seed": 0,
        "data_sha256": {"path": "aa"},
    }
    return TrialSpec(**{**fields, **changes})


def test_a_trial_is_named_by_architecture_and_hash() -> None:
    text = (
        '{"data":{"path_sha256":"aa","source":"triples"},'
        '"model":{"architecture":"dense","d_model":64,"memory_layers":[1,2]},'
        '"schema":1,"seed":0,"train":{"lr":0.003,"tokens":1000000}}'
    )

    assert canonical_json(spec().identity()) == text
    assert spec().trial_id == f"dense-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@pytest.mark.parametrize(
    "change",
    [
        {"sweep": "other"},
        {"preset": "1m"},
        {"recipe": "pythia_70m"},
        {"not_causal": "in training: experts choose tokens"},
        {"origin": "trials[3], seed 0"},
        {"resources": Resources(gpus=1, ranks=2)},
        {"resources": Resources(ranks=4, memory_ranks=2, memory_layout="rows")},
        {"resources": Resources(memory_tables="host")},
        {"resources": Resources(compile=False)},
        {"resources": Resources(micro_batch_tokens=4096, activation_checkpointing=True)},
        {"resources": Resources(ranks=2, dense_parameters="sharded")},
        {"retries": Retries(failure=7)},
        {"logging": Logging(every_steps=1)},
        {"accounting": {"total_params": 5.0}},
        {"train": {"tokens": 1_000_000, "lr": 3e-3, "value_lr_final_ratio": None}},
        {"train": {"tokens": 1_000_000, "lr": 3e-3, "table_moments": None}},
        {"data": {"source": "triples", "path": "/moved/facts.tsv", "max_facts": None}},
        {"data": {"source": "triples", "path": "/facts.tsv"}},
        {"train": {"tokens": 1_000_000.0, "lr": 3e-3}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_decide_the_result_does_not_rename_it(change: dict[str, Any]) -> None:
    assert spec(**change).trial_id == spec().trial_id


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"data_sha256": {"path": "bb"}},
        {"data": {"source": "triples", "path": "/facts.tsv", "max_facts": 10}},
        {"model": {"architecture": "dense", "d_model": 64, "memory_layers": [2, 1]}},
        {"train": {"tokens": 1_000_000, "lr": 1e-3}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_the_result_renames_it(change: dict[str, Any]) -> None:
    assert spec(**change).trial_id != spec().trial_id


def test_a_record_survives_json_and_tampering_is_seen() -> None:
    record = spec(resources=Resources(gpus=0.25)).to_json()

    assert TrialSpec.from_json(record) == spec(resources=Resources(gpus=0.25))
    record["train"] = {"tokens": 5, "lr": 3e-3}
    with pytest.raises(ValueError, match=r"spec\.json says dense-.* its content hashes to dense-"):
        TrialSpec.from_json(record)


def test_a_record_holds_every_field_of_its_parts() -> None:
    written = spec(
        resources=Resources(gpus=0.25, time_limit_s=60.0),
        retries=Retries(failure=3),
        logging=Logging(usage_every_steps=7),
    )

    record, whole = written.to_json(), dataclasses.asdict(written)
    assert {key: record[key] for key in whole} == whole


def test_a_record_of_an_earlier_version_can_be_read() -> None:
    record = spec().to_json()
    for added in ("recipe", "not_causal"):
        del record[added]
    del record["logging"]["usage_every_steps"]

    assert TrialSpec.from_json(record) == spec()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": {1, 2}}, object()])
def test_what_has_no_one_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"canonical form|keys must be text"):
        canonical_json({"x": value} if not isinstance(value, dict) else value)


def test_differences_are_told_leaf_by_leaf() -> None:
    old = spec().identity()
    new = spec(seed=2, train={"tokens": 1_000_000, "lr": 1e-3}, data={"source": "text"}).identity()

    assert identity_difference(old, new) == [
        "data.source triples → text",
        "seed 0 → 2",
        "train.lr 0.003 → 0.001",
    ]
    assert identity_difference({"a": None}, {"a": 1}) == ["a unset → 1"]
    assert identity_difference(old, old) == []


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (Resources, {"gpus": "all"}, "gpus must be auto or a number"),
        (Resources, {"gpus": 1.5}, "gpus must be a fraction of one GPU or a whole number"),
        (Resources, {"gpus": -1}, "gpus must be"),
        (Resources, {"cpus": 0}, "cpus must be at least 1"),
        (Resources, {"ranks": 0}, "ranks must be at least 1"),
        (Resources, {"micro_batch_tokens": 0}, "micro_batch_tokens must be at least 1"),
        (
            Resources,
            {"ranks": 4, "memory_ranks": 3},
            r"memory_ranks must divide ranks \(4\), got 3; the nearest is 2",
        ),
        (Resources, {"memory_ranks": 2}, "memory_ranks must divide ranks"),
        (Resources, {"memory_layout": "tiles"}, "memory_layout must be one of columns, rows"),
        (
            Resources,
            {"dense_parameters": "fsdp"},
            "dense_parameters must be one of replicated, sharded, got 'fsdp'",
        ),
        (
            Resources,
            {"memory_tables": "disk"},
            "memory_tables must be one of device, host, got 'disk'",
        ),
        (
            Resources,
            {"ranks": 2, "memory_ranks": 2, "memory_tables": "host"},
            "memory_tables: host holds whole tables, got memory_ranks 2; set memory_ranks to 1",
        ),
        (Resources, {"time_limit_s": 0.0}, "time_limit_s must be positive"),
        (Resources, {"hang_after_s": 0.0}, "hang_after_s must be positive"),
        (Retries, {"failure": -1}, "failure must be at least 0"),
        (Retries, {"preemption": -1}, "preemption must be at least 0"),
        (Logging, {"every_steps": 0}, "every_steps must be at least 1"),
        (Logging, {"evaluations": 0}, "evaluations must be at least 1"),
        (Logging, {"checkpoint_every_s": -1.0}, "checkpoint_every_s must be at least 0"),
        (Logging, {"usage_every_steps": 0}, "usage_every_steps must be at least 1 or null"),
    ],
)
def test_impossible_values_are_refused(cls: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**values)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec().seed = 3  # type: ignore[misc]
