"""What a job asks of sbatch, whatever the shell has."""

import os
from pathlib import Path

import pytest

from orchestrator.launchers.slurm import submitit_adapter
from orchestrator.launchers.slurm.commands import SlurmError
from orchestrator.launchers.slurm.options import SlurmOptions


@pytest.mark.parametrize(
    ("gpus", "asked", "gres"),
    [
        (4, "", "gpu:4"),
        (0, "", ""),
        (4, "gpu:a100", "gpu:a100:4"),
        (2, "lscratch:20", "gpu:2,lscratch:20"),
        (0, "gpu:a100,lscratch:20", "lscratch:20"),
    ],
)
def test_other_resources_do_not_replace_the_gpus(gpus, asked, gres):
    request = SlurmOptions(backend="slurm", options={"gres": asked} if asked else {})
    parameters = submitit_adapter._parameters(
        request, name="x", nodes=1, cpus=1, gpus=gpus, requeue=True, code=None
    )
    assert parameters.get("gres", "") == gres
    assert "gres" not in parameters["additional_parameters"]
    assert "export SLURM_EXPORT_ENV=ALL" in parameters["setup"]


def test_the_shell_does_not_replace_what_is_set(monkeypatch):
    hidden = ("TIMELIMIT", "PARTITION", "SIGNAL", "ARRAY_INX", "MEM_PER_CPU", "QOS")
    kept = ("ACCOUNT", "RESERVATION", "CONSTRAINT", "GRES")
    for name in (*hidden, *kept):
        monkeypatch.setenv(f"SBATCH_{name}", "x")
    request = SlurmOptions(backend="slurm", partition="low", options={"mem": "4G", "qos": "long"})

    with submitit_adapter._outside_any_job(explicit=submitit_adapter._explicit(request, cpus=None)):
        inside = {name.removeprefix("SBATCH_") for name in os.environ if name.startswith("SBATCH_")}

    assert inside >= set(kept)
    assert not inside & set(hidden)
    assert os.environ["SBATCH_TIMELIMIT"] == "x"


def test_an_option_that_is_left_to_slurm_is_left_to_the_shell():
    explicit = submitit_adapter._explicit(SlurmOptions(backend="slurm"), cpus=2)
    assert not explicit & {"partition", "mem", "account", "exclusive"}


def test_a_path_that_slurm_would_not_take_literally():
    with pytest.raises(SlurmError, match="/runs/100%j/s: Slurm reads % in paths as a placeholder"):
        submitit_adapter.submit(
            [print], name="x", folder=Path("/runs/100%j/s"), request=SlurmOptions(backend="slurm")
        )
