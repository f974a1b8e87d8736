"""The papers' tables as sweep files: each can be planned at its true size and says its own price."""

import gzip
import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch

from orchestrator.planning.paper_convention import block_flops
from orchestrator.planning.pricing import account
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep

FOLDER = Path(__file__).parents[3] / "sweeps" / "papers"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.yaml"))
WHOLE = [name for name in FILES if not name.endswith("-mini.yaml")]
MINIS = [name for name in FILES if name.endswith("-mini.yaml")]
H200_BYTES = 141e9
QUICKSTART_FLOPS = 2.0e12
"""About four minutes on two cores; a mini may take fifteen."""


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the text that the files look for in the current folder."""
    (tmp_path / "data").mkdir()
    text = json.dumps({"text": "a few words " * 300})
    with gzip.open(tmp_path / "data" / "corpus-0.jsonl.gz", "wt") as file:
        file.write(f"{text}\n" * 200)
    monkeypatch.chdir(tmp_path)


def _header(name: str) -> dict[str, str]:
    """Return label -> text of the comment at the top."""
    comment = re.match(r"(#.*\n)+", (FOLDER / name).read_text())
    assert comment, name
    joined = re.sub(r"\n# {5,}", " ", comment[0])
    return dict(re.findall(r"^# (\w+): +(.*)$", joined, flags=re.MULTILINE))


@cache
def _params_on_meta(model: str) -> int:
    """Return the parameters of a model that is built without memory for its values."""
    fields = json.loads(model)
    module = registry.architecture(fields.pop("architecture"))
    with torch.device("meta"):
        built = registry.build_config(module.Config, fields).build(1_000)
    return sum(parameter.numel() for parameter in built.parameters())


def _counted(spec: TrialSpec) -> int:
    fields = {key: value for key, value in spec.model.items() if key != "architecture"}
    config = registry.build_config(registry.architecture(spec.architecture).Config, fields)
    total: int = config.param_count(1_000).total
    return total


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_what_it_asks_and_what_it_costs(name):
    header = _header(name)
    trials = load_sweep(FOLDER / name).trials
    flops = sum(account(trial)["training_flops"] for trial in trials)

    assert {"Question", "Run", "Cost", "Expect", "Source"} <= header.keys()
    assert header["Run"].startswith("memscale ")
    assert header["Run"].endswith(f"sweeps/papers/{name}")
    said = re.match(r"(\d+) trials, (\S+) FLOPs", header["Cost"])
    assert said, header["Cost"]
    assert int(said[1]) == len(trials)
    assert flops == pytest.approx(float(said[2]), rel=0.06 if name in MINIS else 6e-3)
    if name in WHOLE:
        hours = re.search(r"([\d,.]+) GPU-hours at 4e14 FLOP/s", header["Cost"])
        assert hours, header["Cost"]
        assert float(hours[1].replace(",", "")) == pytest.approx(flops / 4e14 / 3600, rel=0.06)


@pytest.mark.parametrize("name", WHOLE)
def test_models_are_built_on_the_meta_device_and_fit_the_gpus_that_are_asked_for(name):
    for trial in load_sweep(FOLDER / name).trials:
        assert _params_on_meta(json.dumps(trial.model)) == _counted(trial)
        priced = account(trial, on_gpu=True, gpu_bytes=H200_BYTES)
        assert priced["peak_memory_bytes"] < H200_BYTES, trial.origin


@pytest.mark.parametrize("name", WHOLE)
def test_a_mini_asks_the_same_question_in_minutes(name):
    mini = name.replace(".yaml", "-mini.yaml")

    assert mini in MINIS
    assert _header(mini)["Question"] == _header(name)["Question"]
    trials = load_sweep(FOLDER / mini).trials
    assert sum(account(t)["training_flops"] for t in trials) < 3 * QUICKSTART_FLOPS
    whole = {trial.architecture for trial in load_sweep(FOLDER / name).trials}
    assert {trial.architecture for trial in trials} >= whole


def test_totals_of_table_1_are_those_that_the_paper_prints():
    trials = load_sweep(FOLDER / "memory_layers" / "table1.yaml").trials
    totals = {(t.architecture, t.preset): account(t)["total_params"] / 1e9 for t in trials}

    # Gains of norms, at most 1e5, are left out there.
    printed = {
        ("moe", "1.3b"): 3.545,
        ("peer", "1.3b"): 3.646,
        ("memory", "1.3b"): 3.377,
        ("memory", "134m"): 0.937,
        ("moe", "134m"): 0.984,
        ("peer", "134m"): 1.037,
    }
    assert {key: totals[key] for key in printed} == pytest.approx(printed, abs=6e-4)


def test_blocks_of_figure_1_have_a_fifth_of_the_flops_by_the_papers_count():
    counted = {
        (t.architecture, t.model["d_model"], t.train["seq_len"]): block_flops(t)
        for t in load_sweep(FOLDER / "memoryformer" / "figure1.yaml").trials
    }

    ratio = counted["memoryformer", 2048, 2048] / counted["pythia", 2048, 2048]
    # Read off the figure: about 19 %.
    assert ratio == pytest.approx(0.19, abs=0.01)
    # 12 s d^2 + 2 s^2 d multiply-adds, by hand.
    assert counted["pythia", 2048, 8192] == 12 * 8192 * 2048**2 + 2 * 8192**2 * 2048


def test_only_architectures_of_the_papers_table_have_its_flops():
    trials = load_sweep(FOLDER / "memoryformer" / "table2.yaml").trials
    counted = {trial.architecture: block_flops(trial) for trial in trials}

    assert {name for name, flops in counted.items() if flops is not None} == {
        "pythia",
        "memoryformer",
    }
    # Table 1: 34.4 G and 10.2 G.
    assert round(counted["pythia"] / 1e9, 1) == 34.4
    assert round(counted["memoryformer"] / 1e9, 1) == 10.2
