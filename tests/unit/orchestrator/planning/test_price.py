"""Prices: of what is planned, and of what attempts have held."""

import dataclasses
from pathlib import Path

import pytest

from orchestrator.planning import price as prices
from orchestrator.planning.price import Price
from orchestrator.planning.pricing import PlannedTrial
from orchestrator.planning.runtime_prior import (
    GUESS_OVERHEAD_S_PER_TOKEN,
    GUESS_SHARE_OF_MATMUL,
    RuntimePrediction,
    params_within,
)
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec

SPEC = TrialSpec(sweep="s", data={"source": "x"}, model={"architecture": "dense"}, train={}, seed=0)
GPU, CORE = Price(amount=2.5), Price(amount=0.04, unit="core")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.5/gpu-hour", GPU),
        ("0.04/core-hour", CORE),
        (" €3/GPU-hour ", Price(amount=3.0, currency="€")),
        ("0/gpu-hour", Price(amount=0.0)),
    ],
)
def test_prices_are_read(text: str, expected: Price) -> None:
    assert prices.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "2.5", "2.5/gpu", "-1/gpu-hour", "nan/gpu-hour", "1e3/gpu-hour", "2,5/gpu-hour"]
)
def test_others_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be as 2\.5/gpu-hour or 0\.04/core-hour"):
        prices.parse(text)


def test_amounts_are_shown_with_their_hours() -> None:
    assert Price(amount=2.5, currency="$").text(1234.5) == "$3,086.25 (1,234.5 GPU-hours)"
    assert CORE.text(0.5) == "0.02 (0.5 core-hours)"
    assert GPU.text(0.0) == "0.00 (0 GPU-hours)"


def test_what_is_left_of_each_trial_is_priced() -> None:
    def planned(resources: Resources, status: str, remaining: float) -> PlannedTrial:
        return PlannedTrial(
            spec=dataclasses.replace(SPEC, resources=resources),
            status=status,
            why="",
            runtime=RuntimePrediction(seconds=7200.0, source="guess"),
            remaining=remaining,
        )

    trials = [
        planned(Resources(gpus=4, ranks=4, cpus=2), "new", 1.0),
        planned(Resources(gpus=0.25), "resume", 0.5),
        planned(Resources(gpus="auto", ranks=2), "new", 1.0),
        planned(Resources(gpus=8), "done", 0.0),
    ]

    assert prices.planned_hours(trials, GPU, gpus_there=True) == pytest.approx(8 + 0.25 + 4)
    assert prices.planned_hours(trials, GPU, gpus_there=False) == pytest.approx(8 + 0.25)
    assert prices.planned_hours(trials, CORE, gpus_there=True) == pytest.approx(16 + 1 + 4)


def test_every_attempt_counts_as_long_as_it_held_its_devices(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    for seed in range(3):
        spec = dataclasses.replace(SPEC, seed=seed)
        sweep.trial(spec.trial_id).create(spec)
    done, running, broken = sweep.trials()
    end = {"outcome": "killed", "reason": "", "final": False}
    for start, stop in ((0, 3600), (4000, 5800)):
        attempt = done.new_attempt({"started_at": float(start), "gpus": 2.0, "cpus": 4, "ranks": 2})
        write_json(attempt.path / "end.json", {**end, "ended_at": float(stop)})
    running.new_attempt({"started_at": 6000.0, "gpus": 1.0, "cpus": 1, "ranks": 1})
    write_json(running.path / "heartbeat.json", {"attempt": 1, "updated_at": 7800.0})
    broken.new_attempt({"started_at": "noon", "gpus": 99.0})

    assert prices.spent_hours(sweep, GPU, now=9000.0) == pytest.approx(2.0 * 1.5 + 0.5)
    assert prices.spent_hours(sweep, CORE, now=9000.0) == pytest.approx(8.0 * 1.5 + 0.5)
    assert prices.spent_hours(sweep, GPU, now=6900.0) == pytest.approx(3.0 + 0.25)


@pytest.mark.parametrize("matmul", [1e9, 1e11, 1e13])
def test_the_size_for_an_hour_takes_an_hour(matmul: float) -> None:
    n = params_within(3600.0, matmul)

    per_token = 6 * n / (GUESS_SHARE_OF_MATMUL * matmul) + GUESS_OVERHEAD_S_PER_TOKEN
    assert 20 * n * per_token == pytest.approx(3600.0)
