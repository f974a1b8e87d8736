"""Sweeps for one GPU: what they say of cost and exposures, and their pages, is what they expand to."""

import contextlib
import gzip
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from orchestrator.planning.pricing import account
from orchestrator.sweep import registry
from orchestrator.sweep.load import Sweep, load_sweep
from workloads.data.sources import biographies

FOLDER = Path(__file__).parents[3] / "sweeps"
STUDIES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.glob("studies/**/*.yaml"))
BY_NAME = {
    re.search(r"^name: (\S+)", (FOLDER / name).read_text(), re.M)[1]: name  # type: ignore[index]
    for name in (*STUDIES, "quickstart.yaml", "quickstart_gpu.yaml", "biographies_10m.yaml")
}
H100_BYTES = 80e9


class EqualSteps:
    """A timer by which all models take equally long: no GPU is needed to plan."""

    def time(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ten equal seconds of each model."""
        seconds = [[0.01] * 10 for _ in request["models"]]
        return {"seconds": seconds, "device": "none", "n_threads": 1, "versions": {}}


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the text and the facts that the files look for in the current folder."""
    (tmp_path / "data").mkdir()
    article = json.dumps({"text": "a few words " * 300})
    for part in ("train-00", "valid"):
        with gzip.open(tmp_path / "data" / f"simplewiki-2018.{part}.jsonl.gz", "wt") as file:
            file.write(f"{article}\n" * 20)
    with gzip.open(tmp_path / "data" / "entity_facts.tsv.gz", "wt") as file:
        file.write("relation_id\tsubject\trelation\tobject\nP36\tFrance\tcapital\tParis\n")
    wordings = {"relation": "capital", "train_statements": ["{s}: {o}."]}
    wordings |= {"heldout_statements": ["{o} leads {s}."], "questions": ["Capital of {s}?"]}
    (tmp_path / "data" / "relation_templates.json").write_text(json.dumps({"P36": wordings}))
    monkeypatch.chdir(tmp_path)


def _load(name: str, *, timed: bool = False) -> Sweep:
    """Return the sweep of a copy, beside which step times may be kept; with `timed` its own are."""
    copy = shutil.copy(FOLDER / name, Path.cwd())
    step_times = (FOLDER / name).with_suffix(".step_times.json")
    if timed and step_times.exists():
        shutil.copy(step_times, Path.cwd())
    timer = contextlib.nullcontext(EqualSteps())
    workloads = SimpleNamespace(**{**vars(registry), "step_timer": lambda: timer})
    return load_sweep(Path(copy), workloads=workloads, evaluates=False)


@pytest.mark.parametrize("name", ["quickstart_gpu.yaml", *STUDIES])
def test_a_study_says_what_it_costs_and_its_trials_fit_one_gpu_together(name):
    text = (FOLDER / name).read_text()
    trials = _load(name).trials
    # Seeds of a trial cost the same.
    first = [account(t, on_gpu=True, gpu_bytes=H100_BYTES) for t in trials if t.seed == 0]
    seeds = len(trials) / len(first)

    labels = set(re.findall(r"^# (\w+):", text, re.M))
    assert labels >= {"Question", "Run", "Cost", "Expect", "Source"}
    said = re.search(r"^# Cost: +(\d+) trials, (\S+) FLOPs", text, re.M)
    assert said
    assert int(said[1]) == len(trials)
    flops = seeds * sum(p["training_flops"] for p in first)
    assert flops == pytest.approx(float(said[2]), rel=6e-3)
    at_once = round(1 / trials[0].resources.gpus)
    largest = sorted([p["peak_memory_bytes"] for p in first] * round(seeds))[-at_once:]
    assert sum(largest) < H100_BYTES


@pytest.mark.parametrize("name", ["quickstart_gpu.yaml", *STUDIES])
def test_invented_people_are_seen_a_hundred_times(name):
    for trial in _load(name).trials:
        if trial.data["source"] != "biographies":
            continue
        people = {key: value for key, value in trial.data.items() if key != "source"}
        each = biographies.Config(**people).tokens_per_epoch()
        # Tokens that a match solved for may be many more.
        most = 400 if (trial.match or {}).get("solve") == "tokens" else 130
        assert 95 < trial.train["tokens"] / each < most, trial.origin


RESULTS = sorted(
    path.stem for path in (FOLDER.parent / "docs" / "results").glob("*.csv") if path.stem in BY_NAME
)
OTHERWISE: dict[str, int] = {}
"""Trials on pages of results that their sweep no longer has."""


@pytest.mark.parametrize("name", RESULTS)
def test_a_sweep_still_has_the_trials_of_its_page(name):
    runs = pd.read_csv(FOLDER.parent / "docs" / "results" / f"{name}.csv")
    trials = _load(BY_NAME[name], timed=True).trials
    known = {replace(t, data_sha256=dict.fromkeys(t.data_sha256, "")).trial_id for t in trials}

    assert runs["settings_id"].notna().all()
    assert len(set(runs["settings_id"]) - known) == OTHERWISE.get(name, 0)
