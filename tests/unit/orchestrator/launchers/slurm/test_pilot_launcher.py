"""Nodes of pilots that are excluded. Ray and Slurm are stood in for."""

import json
from types import SimpleNamespace

import pytest

from orchestrator.launchers.slurm import commands
from orchestrator.launchers.slurm.commands import Queued, SlurmError
from orchestrator.launchers.slurm.head_address import HeadAddressFile
from orchestrator.launchers.slurm.launcher import ADAPT_EVERY_S, PilotLauncher
from orchestrator.launchers.slurm.ray_bootstrap import mark
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Demand, Node

CAPACITY = Demand(cpus=8, gpus=4.0)
LABELS = {"A": "12-0", "B": "13-0"}
"""Nodes of the head's own allocation, and of a further pilot."""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A head with one further pilot, more trials than both hold, and a clock."""
    sweep, drained, asked = SweepDir(tmp_path / "s"), [], []
    (sweep.path / "nodes").mkdir(parents=True)
    head_address = HeadAddressFile(folder=tmp_path / "12", generation="12/0")
    head_address.folder.mkdir()
    there = [
        Node(node_id=name, host=f"host-{name}", cpus=8, gpus=("0", "1", "2", "3"))
        for name in LABELS
    ]
    ray = SimpleNamespace(
        nodes=lambda: [node for node in there if node.node_id not in drained],
        resources=lambda node_id: {mark(LABELS[node_id]): 1.0},
        drain_node=drained.append,
    )
    running = {
        name: Queued(job_id=name, state="RUNNING", reason="None", nodes=f"slurm-{name}")
        for name in ("12", "13")
    }
    monkeypatch.setattr(commands, "queued", lambda ids: {i: running[i] for i in ids & set(running)})
    monkeypatch.setattr(commands, "cancel", lambda ids: None)
    made = SimpleNamespace(sweep=sweep, drained=drained, asked=asked, now=0.0)
    made.launcher = PilotLauncher(
        sweep,
        head=None,
        token="",
        head_address=head_address,
        own="12",
        capacity=CAPACITY,
        max_nodes=2,
        ask=lambda n, avoid: asked.append((n, avoid)) or ["99"],
        clock=lambda: made.now,
    )
    made.launcher._ray = ray
    made.launcher._asked = {"13"}
    made.launcher._waiting = ("a", "b", "c")
    made.launcher._demands = dict.fromkeys("abc", CAPACITY)
    return made


def exclude(world, name):
    file = world.sweep.path / "nodes" / f"host-{name}.excluded.json"
    record = {"node": f"host-{name}", "since": 0, "why": "3 failed", "submission": 1}
    file.write_text(json.dumps(record))


def hosts(world, *, later=0.0):
    world.now += later
    return [node.host for node in world.launcher.nodes()]


def test_an_idle_pilot_on_an_excluded_node_is_replaced_on_another_node(world):
    assert hosts(world, later=ADAPT_EVERY_S) == ["host-A", "host-B"]
    exclude(world, "B")

    assert hosts(world, later=ADAPT_EVERY_S) == ["host-A"]
    assert world.asked == [(1, ["slurm-13"])]
    assert hosts(world) == ["host-A"]
    assert world.drained == ["B"]


def test_one_is_given_back_where_sbatch_refuses_another_beside_it(world, monkeypatch):
    def ask(n, avoid):
        if "B" not in world.drained:
            raise SlurmError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        world.asked.append((n, avoid))
        return ["99"]

    monkeypatch.setattr(world.launcher, "_ask", ask)
    exclude(world, "B")
    for _ in range(3):
        hosts(world, later=ADAPT_EVERY_S)

    assert world.drained == ["B"]
    assert world.asked[0] == (1, ["slurm-13"])


def test_a_job_of_several_nodes_does_not_say_which_of_them_to_avoid(world, monkeypatch):
    several = Queued(job_id="13", state="RUNNING", reason="None", nodes="slurm-[13-14]")
    monkeypatch.setattr(commands, "queued", lambda ids: {"13": several} if "13" in ids else {})
    exclude(world, "B")
    hosts(world, later=ADAPT_EVERY_S)

    assert world.asked == [(1, [])]


def test_a_node_that_is_admitted_again_is_avoided_no_longer(world):
    exclude(world, "B")
    hosts(world, later=ADAPT_EVERY_S)
    (world.sweep.path / "nodes" / "host-B.excluded.json").unlink()
    hosts(world, later=ADAPT_EVERY_S)

    assert world.asked == [(1, ["slurm-13"]), (1, [])]


def test_one_that_works_is_kept_until_it_is_idle(world):
    exclude(world, "B")
    world.launcher._running = {"x/1": ("B",)}
    assert hosts(world, later=ADAPT_EVERY_S) == ["host-A", "host-B"]
    world.launcher._running = {}
    assert hosts(world, later=ADAPT_EVERY_S) == ["host-A"]


def test_a_node_of_the_own_job_cannot_be_given_back(world):
    exclude(world, "A")
    assert hosts(world, later=ADAPT_EVERY_S) == ["host-A", "host-B"]
    assert world.asked == []
