"""What `match` chose, where people and programs look for it."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from orchestrator.cli.plan import plan_row
from orchestrator.cli.render import plan as plans
from orchestrator.planning.pricing import make_plan
from orchestrator.planning.runtime_prior import Measurement
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.submit.submission import Submission
from orchestrator.sweep.load import load_sweep

SWEEP = """
name: equal
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense, preset: d16}
trials:
  - grid: {model.preset: [d16]}
  - set: {model.architecture: memory_plus}
    grid: {model.n_keys: [16, 20], train.lr: [1.0e-2, 2.0e-2]}
    match: {training_flops: dense}
seeds: [0, 1]
"""
MEASURED = [Measurement(architecture="dense", device="cpu", flops_per_token=1e5, s_per_token=1e-5)]


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "equal.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return make_plan(load_sweep(file), SweepDir(tmp_path / "runs" / "equal").snapshot(), MEASURED)


def told(plan):
    console = Console(width=200, file=io.StringIO(), highlight=False, color_system="standard")
    console.print(plans.plan_tables(plan, slots=1))
    return [line for line in console.file.getvalue().splitlines() if "match:" in line]


def test_the_plan_says_it_once_per_configuration_and_not_as_a_warning(plan):
    first, second = told(plan)

    assert first.startswith("match: memory_plus d16, n_keys 16: d_ff 48 → ")
    assert second.startswith("match: memory_plus d16, n_keys 20: d_ff 48 → ")
    assert ", training FLOPs " in first
    assert first.rstrip().endswith("× dense")


def test_a_long_list_is_cut_and_counted(plan, monkeypatch):
    monkeypatch.setattr(plans, "MOST_MATCHES", 1)

    assert told(plan)[1:] == ["match: … and 1 more"]


def test_every_row_of_the_json_has_it(plan):
    rows = [json.loads(json.dumps(plan_row(trial, plan.sweep))) for trial in plan.trials]

    assert [row["match"] is None for row in rows] == [True] * 2 + [False] * 8
    for trial, row in zip(plan.trials[2:], rows[2:], strict=True):
        assert row["match"]["field"] == "d_ff"
        assert row["match"]["chosen"] == trial.spec.model["d_ff"]
        assert row["match"]["reached"] == pytest.approx(row["training_flops"])
        assert row["match"]["target"] == pytest.approx(rows[0]["training_flops"])


def test_a_submission_keeps_the_step_times_that_its_trials_rest_on(plan, tmp_path):
    sweep = SweepDir(tmp_path / "runs" / "equal")
    pinned = {"0123456789ab": {"value": 61, "device": "abacus"}}
    timed = dataclasses.replace(plan, sweep=dataclasses.replace(plan.sweep, step_times=pinned))

    Submission(plan=plan, runs=tmp_path / "runs").write_records(sweep)
    assert not (sweep.path / "sweep.step_times.json").exists()
    Submission(plan=timed, runs=tmp_path / "runs").write_records(sweep)

    kept = json.loads((sweep.path / "sweep.step_times.json").read_text(encoding="utf-8"))
    assert kept["solutions"] == pinned
