"""Parsers of Slurm's commands, and missing commands. The texts are of Slurm 22.05, run by hand."""

import pytest

from orchestrator.launchers.slurm import commands
from orchestrator.launchers.slurm.commands import Partition, SlurmError


def test_partitions():
    text = "low*|3|2|gpu:4\nhigh|2|64+|gpu:a100:8(S:0-1),nvme:1\nhigh|1|32|(null)\n"
    assert commands.parse_partitions(text) == {
        "low": Partition(name="low", default=True, cpus=2, gpus=4, nodes=3),
        "high": Partition(name="high", default=False, cpus=32, gpus=8, nodes=3),
    }


def test_queue():
    found = commands.parse_queue("7_0|RUNNING|None\n7_1|PENDING|JobArrayTaskLimit\n9|PENDING|a|b\n")
    assert {job_id: (job.state, job.reason) for job_id, job in found.items()} == {
        "7_0": ("RUNNING", "None"),
        "7_1": ("PENDING", "JobArrayTaskLimit"),
        "9": ("PENDING", "a|b"),
    }


def test_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="sbatch, .* not found on PATH; submit from a login node"):
        commands.require()
    with pytest.raises(SlurmError, match="sinfo: not found on PATH"):
        commands.partitions()


def test_what_slurm_says_is_shown(monkeypatch, tmp_path):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2\nexit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(SlurmError, match="squeue -h: slurm_load_jobs error: Unable to contact"):
        commands.queued({"1"})
    assert commands.queued(set()) == {}
