"""Parsers of Slurm's commands, and missing commands. The texts are of Slurm 22.05, run by hand."""

import socket

import pytest

from orchestrator.launchers.slurm import commands
from orchestrator.launchers.slurm.commands import NodeKind, Partition, SlurmError


def test_partitions():
    text = "low*|3|2|gpu:4\nhigh|2|64+|gpu:a100:8(S:0-1),nvme:1\nhigh|1|32|(null)\n"
    high = (
        NodeKind(cpus=64, gpus_by_type={"a100": 8}, nodes=2),
        NodeKind(cpus=32, gpus_by_type={}, nodes=1),
    )
    low = NodeKind(cpus=2, gpus_by_type={"": 4}, nodes=3)
    found = commands.parse_partitions(text)
    assert found == {
        "low": Partition(name="low", default=True, kinds=(low,)),
        "high": Partition(name="high", default=False, kinds=high),
    }
    assert (found["high"].nodes, found["high"].most_gpus) == (3, 8)
    assert found["high"].kinds_with(cpus=48) == high[:1]
    assert found["high"].kinds_with(cpus=48, gpus=9) == ()
    assert str(found["high"]) == (
        "partition high has 2 nodes of 64 cores and 8 a100 GPUs, 1 node of 32 cores"
    )
    assert str(low) == "3 nodes of 2 cores and 4 GPUs"


def test_gpus_of_one_type():
    text = "p*|2|64|gpu:a100:2(S:0,1),gpu:t4:4,gpu:a100:2\np*|1|32|gpu:v100:8,gpu:1,gpu:t4:0\n"
    partition = commands.parse_partitions(text)["p"]
    assert [kind.gpus for kind in partition.kinds] == [8, 9]
    assert str(partition.kinds[0]) == "2 nodes of 64 cores and 4 a100 GPUs and 4 t4 GPUs"
    for name, gpus in {"a100": [4, 0], "t4": [4, 0], "v100": [0, 8], "x": [0, 0]}.items():
        assert [kind.gpus for kind in partition.with_gpu_type(name).kinds] == gpus


def test_queue():
    found = commands.parse_queue(
        "7_0|RUNNING|n1|None\n7_1|PENDING||JobArrayTaskLimit\n9|PENDING||a|b\n"
    )
    assert {job_id: (job.state, job.nodes, job.reason) for job_id, job in found.items()} == {
        "7_0": ("RUNNING", "n1", "None"),
        "7_1": ("PENDING", "", "JobArrayTaskLimit"),
        "9": ("PENDING", "", "a|b"),
    }


def test_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="sbatch, .* not found on PATH; submit from a login node"):
        commands.require()
    with pytest.raises(SlurmError, match="sinfo: not found on PATH"):
        commands.partitions()


def program(monkeypatch, folder, name, script):
    """Put a command of Slurm on the path."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


@pytest.fixture
def names(monkeypatch):
    """Names and the addresses that they stand for; only these are known."""
    known = {socket.gethostname(): ["127.0.1.1"]}

    def look_up(name, port, **rest):
        if name not in known and not name[0].isdigit() and ":" not in name:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in a], 1, 6, "", (a, 0)) for a in known.get(name, [name])]

    monkeypatch.setattr(commands.socket, "getaddrinfo", look_up)
    return known


NODE = {"SLURMD_NODENAME": "n1"}


def test_a_node_is_reached_by_the_address_that_slurm_knows(monkeypatch, tmp_path, names):
    names["node1.cluster"] = ["fd00::5", "10.0.0.5"]
    program(monkeypatch, tmp_path, "scontrol", "echo '   NodeAddr=node1.cluster Version=22.05'")
    assert commands.node_address(NODE) == "10.0.0.5"
    names["node1.cluster"] = ["fd00::5"]
    assert commands.node_address(NODE) == "fd00::5"


def test_the_loopback_address_of_the_own_name_is_the_last_resort(monkeypatch, tmp_path, names):
    program(monkeypatch, tmp_path, "scontrol", "echo NodeAddr=$HOSTNAME_OF_NODE")
    monkeypatch.setenv("HOSTNAME_OF_NODE", socket.gethostname())
    program(monkeypatch, tmp_path, "sinfo", "echo 127.0.0.1; echo gone; echo 10.0.0.7")
    monkeypatch.setattr(commands.socket, "socket", Route)
    assert commands.node_address(NODE) == "10.0.0.2"
    program(monkeypatch, tmp_path, "sinfo", "echo 127.0.0.1")
    assert commands.node_address(NODE) == "127.0.1.1"


class Route(socket.socket):
    """A socket that leads out by the interface 10.0.0.2, or by the loopback interface."""

    def connect(self, address):
        self.to = address[0]

    def getsockname(self):
        return ("10.0.0.2" if self.to.startswith("10.") else "127.0.0.1", 1)


def test_a_node_without_slurms_commands_goes_by_its_own_name(monkeypatch, tmp_path, names):
    monkeypatch.setenv("PATH", str(tmp_path))
    names["n1"] = ["10.0.0.9"]
    assert commands.node_address(NODE) == "10.0.0.9"
    names.clear()
    with pytest.raises(SlurmError, match="its name stands for no address, .* add it to DNS"):
        commands.node_address(NODE)


def test_defaults_of_a_shell_change_nothing(monkeypatch, tmp_path):
    for name in ("SQUEUE_STATES", "SINFO_PARTITION", "SCANCEL_STATE", "SCONTROL_ALL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/here")
    program(monkeypatch, tmp_path, "squeue", 'echo "1|$SLURM_CONF|n1|$(env | grep -c ^S.*_.*=x)"')
    job = commands.queued({"1"})["1"]
    assert (job.state, job.reason) == ("/etc/here", "0")


def test_what_slurm_says_is_shown(monkeypatch, tmp_path):
    program(
        *(monkeypatch, tmp_path, "squeue"),
        "echo 'slurm_load_jobs error: Unable to contact' >&2\nexit 1",
    )
    with pytest.raises(SlurmError, match="squeue -h: slurm_load_jobs error: Unable to contact"):
        commands.queued({"1"})
    assert commands.queued(set()) == {}
