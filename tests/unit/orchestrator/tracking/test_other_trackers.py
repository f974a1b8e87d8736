"""Copies of sweeps for other trackers, read back from their files."""

import json
import os
import sqlite3
import struct
import subprocess
import sys

import pytest

from orchestrator.records.errors import UsageError
from orchestrator.tracking.other_trackers import run_copy

BLOCK, HEADER = 32_768, 7
"""Of LevelDB's log format, in which .wandb files are written."""


def resumed(sweep, disk):
    """A trial that was killed at step 19 and resumed from step 10, and one that waits."""
    spec = disk.make_spec(0)
    sweep.submit([spec, disk.make_spec(1)])
    first = sweep.start(spec)
    sweep.measure(first, range(20))
    sweep.end(first, "killed", final=False)
    second = sweep.start(spec)
    sweep.measure(second, range(10, 30), late_ms=50_000)
    sweep.finish(second, step=29)
    return spec


def copied(sweep, folder, form):
    """Copy in a process of its own: trackio fixes its folder while it is imported."""
    pytest.importorskip(form)
    code = (
        "import sys; from pathlib import Path; from orchestrator.records.sweep_dir import SweepDir; "
        "from orchestrator.tracking.other_trackers.run_copy import copy_sweep; "
        "print(copy_sweep(SweepDir(Path(sys.argv[1])), Path(sys.argv[2]), form=sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, str(sweep.disk.path), str(folder), form]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_a_row_holds_each_step_once_with_what_was_measured_first(sweep, disk):
    spec = resumed(sweep, disk)
    trial = sweep.disk.trial(spec.trial_id)

    (run,) = run_copy.run_copies(sweep.disk)

    found = {(k, row.step): (row.t, v) for row in run.rows for k, v in row.metrics.items()}
    assert found == disk.expected_points(trial)
    assert [row.step for row in run.rows] == list(range(30))
    assert run.summary == trial.result()["metrics"]
    assert (run.config["data"]["n_people"], run.config["seed"], run.state) == (100, 0, "done")


def test_a_missing_package_is_a_sentence(sweep, disk, tmp_path, monkeypatch):
    resumed(sweep, disk)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="pip install 'memscale.wandb."):
        run_copy.copy_sweep(sweep.disk, tmp_path / "copies", form="wandb")


def log_records(data):
    """Yield the records of a file in LevelDB's log format, after its own header of 7 bytes."""
    at, record = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.long
def test_wandb_reads_every_row_once(sweep, disk, tmp_path):
    spec = resumed(sweep, disk)
    copied(sweep, tmp_path, "wandb")
    (before,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    copied(sweep, tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert file == before, "an unchanged trial is not written again"
    from wandb.proto import wandb_internal_pb2

    records = []
    for raw in log_records(file.read_bytes()):
        records.append(wandb_internal_pb2.Record())
        records[-1].ParseFromString(raw)

    (run,) = [one.run for one in records if one.HasField("run")]
    assert (run.run_id, run.project, run.run_group) == (spec.trial_id, "demo", "dense")
    rows = {}
    for one in (record.history for record in records if record.HasField("history")):
        values = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in one.item
        }
        assert rows.setdefault(one.step.num, values) is values, "a step stands twice"
    expected = disk.expected_points(sweep.disk.trial(spec.trial_id))
    assert {(k, s): v for s, row in rows.items() for k, v in row.items() if k[0] != "_"} == {
        key: value for key, (_, value) in expected.items()
    }
    assert rows[7]["_timestamp"] == disk.T0 / 1000 + 0.07


@pytest.mark.long
def test_trackio_reads_every_row_once(sweep, disk, tmp_path):
    spec = resumed(sweep, disk)
    for _ in range(2):
        copied(sweep, tmp_path, "trackio")

    with sqlite3.connect(tmp_path / "demo.db") as database:
        stored = database.execute("SELECT run_id, step, metrics FROM metrics").fetchall()
    expected = disk.expected_points(sweep.disk.trial(spec.trial_id))
    rows = [(step, json.loads(text)) for _, step, text in stored]
    measured = [(k, s, v) for s, row in rows for k, v in row.items() if "final/" not in k]
    assert sorted(measured) == sorted((key, step, v) for (key, step), (_, v) in expected.items())
    assert {run_id for run_id, _, _ in stored} == {spec.trial_id}
