"""Sweeps for one GPU: what they say of cost and exposures is what they expand to."""

import re
from pathlib import Path

import pytest

from orchestrator.planning.pricing import account
from orchestrator.sweep.load import load_sweep
from workloads.data.sources import biographies

FOLDER = Path(__file__).parents[3] / "sweeps"
STUDIES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.glob("studies/**/*.yaml"))
H100_BYTES = 80e9


@pytest.mark.parametrize("name", ["quickstart_gpu.yaml", *STUDIES])
def test_a_study_says_what_it_costs_and_its_trials_fit_one_gpu_together(name):
    text = (FOLDER / name).read_text()
    trials = load_sweep(FOLDER / name).trials
    priced = [account(trial, on_gpu=True, gpu_bytes=H100_BYTES) for trial in trials]

    labels = set(re.findall(r"^# (\w+):", text, re.M))
    assert labels >= {"Question", "Run", "Cost", "Expect", "Source"}
    said = re.search(r"^# Cost: +(\d+) trials, (\S+) FLOPs", text, re.M)
    assert said
    assert int(said[1]) == len(trials)
    assert sum(p["training_flops"] for p in priced) == pytest.approx(float(said[2]), rel=6e-3)
    at_once = round(1 / trials[0].resources.gpus)
    largest = sorted(p["peak_memory_bytes"] for p in priced)[-at_once:]
    assert sum(largest) < H100_BYTES


@pytest.mark.parametrize("name", ["quickstart_gpu.yaml", *STUDIES])
def test_invented_people_are_seen_a_hundred_times(name):
    for trial in load_sweep(FOLDER / name).trials:
        people = {key: value for key, value in trial.data.items() if key != "source"}
        each = biographies.Config(**people).tokens_per_epoch()
        assert 95 < trial.train["tokens"] / each < 130, trial.origin
