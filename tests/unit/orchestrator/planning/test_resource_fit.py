import pytest
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.planning import resource_fit
from orchestrator.planning.pricing import make_plan
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep.load import load_sweep

SWEEP = """
name: small
data: {source: biographies, n_people: 100, style: compact}
train: {tokens: 8192, batch_tokens: 1024, seq_len: 64, lr: 1.0e-2}
model: {architecture: dense, preset: d16}
seeds: [0, 1]
"""
NONE = "2 trials cannot start: {} asks for 1 GPU and there are none"
FEW = "2 trials cannot start: {} asks for 64 cores and there are 2"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "small.yaml"


def planned(file, resources):
    file.write_text(f"{SWEEP}resources: {{{resources}}}\n", encoding="utf-8")
    return make_plan(load_sweep(file), SweepDir(file.parent / "runs" / "small").snapshot(), ())


def visible(monkeypatch, *gpus):
    monkeypatch.setattr(resource_fit, "visible_gpus", lambda: gpus)


@pytest.mark.parametrize(
    ("asked", "there", "fits"),
    [
        ("auto", (), True),
        (0, (), True),
        (0.25, (), False),
        (1, (), False),
        (0.25, ("0",), True),
        (1, ("0",), True),
        (2, ("0",), False),
    ],
)
def test_trials_that_ask_for_more_gpus_than_there_are(file, monkeypatch, asked, there, fits):
    visible(monkeypatch, *there)

    assert (resource_fit.fits_not_here(planned(file, f"gpus: {asked}")) == []) == fits


def test_of_the_gpus_of_a_machine_fewer_may_be_used(file, monkeypatch):
    visible(monkeypatch, "0", "1")
    plan = planned(file, "gpus: 2")

    assert resource_fit.fits_not_here(plan) == []
    (problem,) = resource_fit.fits_not_here(plan, gpus=1)
    assert problem.message.endswith("asks for 2 GPUs and there is 1 (--gpus 1)")


@pytest.mark.parametrize(
    ("asked", "cores", "fits"),
    [("cpus: 2", 2, True), ("cpus: 3", 2, False), ("cpus: 2, ranks: 2", 3, False)],
)
def test_trials_that_ask_for_more_cores_than_there_are(file, monkeypatch, asked, cores, fits):
    monkeypatch.setattr(resource_fit, "usable_cores", lambda: cores)

    assert (resource_fit.fits_not_here(planned(file, asked)) == []) == fits
    assert (resource_fit.fits_not_here(planned(file, asked), cpus=1)) != []
    assert (resource_fit.fits_not_here(planned(file, asked), cpus=4)) == []


@pytest.mark.parametrize("launcher", ["ray", "process", "debug"])
@pytest.mark.parametrize(("resources", "lacking"), [("gpus: 1", NONE), ("cpus: 64", FEW)])
def test_submit_refuses_at_once_what_cannot_start(file, monkeypatch, launcher, resources, lacking):
    visible(monkeypatch)
    monkeypatch.setattr(resource_fit, "usable_cores", lambda: 2)
    said = lacking.format(planned(file, resources).trials[0].spec.trial_id)
    runs = file.parent / "runs"

    refused, plan = (
        CliRunner().invoke(cli.app, [*words, str(file), "--runs", str(runs)])
        for words in (["submit", "--launcher", launcher], ["plan"])
    )

    assert refused.exit_code == 2
    assert said in refused.output
    assert not runs.exists()
    assert plan.exit_code == 0
    assert f"note: not on this machine: {said}" in " ".join(plan.output.split())
