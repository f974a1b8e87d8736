"""GPUs of a node as Ray counts them, and those that CUDA_VISIBLE_DEVICES leaves to it."""

import contextlib

import pytest

from orchestrator.launchers import ray as ray_launcher
from orchestrator.launchers import ray_supervisors
from orchestrator.launchers.ray_supervisors import SupervisorPool, _Starting
from orchestrator.node.hardware import chosen_gpus
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Node

MASKS = [
    (None, None),
    ("", ()),
    ("-1", ()),
    ("NoDevFiles", ()),
    ("2,3", ("2", "3")),
    ("2, 3,", ("2", "3")),
    ("3,-1,4", ("3",)),
    ("MIG-a,MIG-b", ("MIG-a", "MIG-b")),
]


@pytest.fixture(params=MASKS, ids=lambda mask: repr(mask[0]))
def chosen(request, monkeypatch):
    """Set the variable, or not; return the GPUs that it leaves."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if request.param[0] is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", request.param[0])
    return request.param[1]


@pytest.mark.parametrize("asked", [None, 1])
def test_an_embedded_ray_gets_the_gpus_that_are_left(tmp_path, monkeypatch, chosen, asked):
    counts = []

    def start_cluster(ray_environment, environment, *, cpus, gpus):
        counts.append(gpus)
        raise ExperimentError("that was all")

    monkeypatch.setattr(ray_launcher, "start_cluster", start_cluster)
    monkeypatch.setattr(ray_launcher, "log_errors", lambda log: None)
    monkeypatch.setattr(ray_launcher.RayLauncher, "_start_early", lambda self, environment: None)
    launcher = ray_launcher.RayLauncher(SweepDir(tmp_path), cpus=1, gpus=asked, job="no:job")

    with contextlib.suppress(ExperimentError):
        launcher.start()

    found_by_ray = None if chosen is None else len(chosen)
    assert counts == [found_by_ray if asked is None else asked]


def test_a_node_offers_no_gpu_that_is_hidden_there(tmp_path, monkeypatch, chosen):
    """Ray has counted three: some are none, or somebody else's."""
    node = Node(node_id="n", host="h", cpus=1, gpus=("0", "1", "2"))
    said = (1.0, (ProcessId.own().to_json(), chosen_gpus()), None, {})
    monkeypatch.setattr(ray_supervisors.ray, "get", lambda calls: said)
    pool = SupervisorPool(SweepDir(tmp_path), job="no:job", code=None)

    supervisor = pool._introduced(_Starting(node=node, actor=None, introduction=()))

    assert supervisor.node.gpus == (("0", "1", "2") if chosen is None else chosen)
