"""Which steps are captured; that captured ones are right, `tests/gpu` shows."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from orchestrator.sweep import registry
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.init import initialise
from workloads.sharding.column_parallel import ColumnParallelShard
from workloads.sharding.row_parallel import RowParallelShard
from workloads.training.config import TrainConfig
from workloads.training.step import cuda_graph
from workloads.training.step.train_step import WARM_UP_STEPS, TrainStep


def step_of(name, *, passes=1, mesh=None, batch_tokens=64, **train):
    module = registry.architecture(name)
    model = module.Config(**module.PRESETS["d32"]).build(64)
    initialise(model, 0)
    config = TrainConfig(tokens=64, batch_tokens=batch_tokens, seq_len=16, lr=0.1, **train)
    return TrainStep(model.train(), config, mesh, passes=passes, autocast=nullcontext)


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))


def test_steps_of_all_architectures_are_captured_but_those_of_experts_here():
    """The table of docs/architecture.md, "One optimizer step": no kernel of experts runs here."""
    captured = {
        name: isinstance(
            cuda_graph.capture_if_possible(step_of(name), bf16=True),
            cuda_graph.CapturedStep,
        )
        for name in registry.architectures()
    }

    assert [name for name, can in captured.items() if not can] == ["moe"]


@pytest.mark.parametrize(("name", "captured"), [("dense", True), ("memory_plus", False)])
def test_steps_of_several_passes_are_where_no_lookups_are_summed_between(name, captured):
    step = step_of(name, passes=4, table_optimizer="rowwise")
    taken = cuda_graph.capture_if_possible(step, bf16=True)

    assert isinstance(taken, cuda_graph.CapturedStep) is captured


RANKS = {"world": RankGroup(size=4)}
TOGETHER = {**RANKS, "memory": RankGroup(size=4)}
APART = {**RANKS, "memory": RankGroup(size=2), "data": RankGroup(size=2)}


@pytest.mark.parametrize(
    ("name", "mesh", "shard", "how", "captured"),
    [
        ("dense", RANKS, None, {}, True),
        ("dense", RANKS, None, {"backend": "gloo"}, False),
        ("dense", RANKS, None, {"batch_tokens": 48}, False),
        ("memory_plus", TOGETHER, ColumnParallelShard, {"table_optimizer": "rowwise"}, True),
        ("memory_plus", TOGETHER, RowParallelShard, {"table_optimizer": "rowwise"}, True),
        ("memory_plus", APART, ColumnParallelShard, {}, True),
        ("memory_plus", APART, ColumnParallelShard, {"table_optimizer": "rowwise"}, False),
        ("memory_plus", RANKS, None, {}, True),
        ("memory_plus", RANKS, None, {"table_optimizer": "rowwise"}, False),
    ],
)
def test_steps_of_several_ranks_are_where_nobody_waits_for_the_host(
    monkeypatch, name, mesh, shard, how, captured
):
    backend = how.pop("backend", "nccl")
    monkeypatch.setattr(cuda_graph.dist, "get_backend", lambda: backend)
    mesh = Mesh(**mesh)
    step = step_of(name, mesh=mesh, **how)
    for module in step.model.modules():
        if isinstance(module, MemoryTable) and shard is not None:
            module.shard = shard(mesh, n_rows=len(module.weight), width=8)
    taken = cuda_graph.capture_if_possible(step, bf16=True)

    assert isinstance(taken, cuda_graph.CapturedStep) is captured


@pytest.mark.parametrize(("fused", "captured"), [(True, True), (False, False)])
def test_experts_are_where_one_kernel_takes_their_products(monkeypatch, fused, captured):
    monkeypatch.setattr(cuda_graph.expert_mlp, "is_fused", lambda x: fused)
    taken = cuda_graph.capture_if_possible(step_of("moe"), bf16=True)

    assert isinstance(taken, cuda_graph.CapturedStep) is captured


def test_tables_in_the_hosts_memory_are_not(monkeypatch):
    step = step_of("memory")
    for module in step.model.modules():
        if isinstance(module, MemoryTable):
            module.on_host = True

    assert cuda_graph.capture_if_possible(step, bf16=True) is step


class Device:
    """Stands in for a GPU's graphs and memory: a capture takes 40 bytes of 100."""

    def __init__(self, allowed):
        self.allowed, self.reserved, self.captures = allowed, 50, 0
        self.pool = 0

    @contextmanager
    def graph(self, graph, **_):
        self.captures += 1
        self.reserved += 40 if not self.pool else 0
        self.pool = 40
        yield

    def empty_cache(self):
        pass

    def new_pool(self):
        self.reserved -= self.pool
        self.pool = 0
        return (0, 0)

    def stand_in(self, monkeypatch):
        for name, value in {
            "graph": self.graph,
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
            "current_stream": lambda: None,
            "empty_cache": self.empty_cache,
            "graph_pool_handle": self.new_pool,
            "memory_reserved": lambda: self.reserved,
            "mem_get_info": lambda: (0, 100),
            "get_per_process_memory_fraction": lambda: self.allowed / 100,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)


def test_ranks_replay_what_is_summed_with_the_losses_and_drop_their_graphs(monkeypatch):
    """With a stand-in for the messages: each doubles what it is given, as two ranks would."""
    Device(1000).stand_in(monkeypatch)
    monkeypatch.setattr(cuda_graph.dist, "get_backend", lambda: "nccl")

    def doubled(group, tensors):
        for tensor in tensors if group.size > 1 else ():
            tensor.mul_(2)

    monkeypatch.setattr(RankGroup, "all_reduce_sum", doubled)
    step = step_of("dense", mesh=Mesh(world=RankGroup(size=2)))
    monkeypatch.setattr(step._gradients, "_buckets", [])
    monkeypatch.setattr(step._gradients, "_order", [])
    taken = cuda_graph.capture_if_possible(step, bf16=True)
    windows = torch.randint(64, (4, 17))
    asked = [
        float(taken(windows, lr=0.1, also={"asked": torch.tensor(1.0)})["asked"])
        for _ in range(WARM_UP_STEPS + 1)
    ]

    assert asked == [2.0] * (WARM_UP_STEPS + 1)
    assert taken._graphs
    taken.drop_graphs()
    assert not taken._graphs


def test_all_ranks_drop_their_graphs_where_one_has_no_room(monkeypatch):
    device = Device(1000)
    device.stand_in(monkeypatch)
    monkeypatch.setattr(cuda_graph.dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(RankGroup, "all_gather_objects", lambda group, mine: [mine, True])
    monkeypatch.setattr(RankGroup, "all_reduce_sum", lambda group, tensors: None)
    step = step_of("dense", mesh=Mesh(world=RankGroup(size=2)))
    monkeypatch.setattr(step._gradients, "_buckets", [])
    monkeypatch.setattr(step._gradients, "_order", [])
    taken = cuda_graph.capture_if_possible(step, bf16=True)

    for recording in (False, True):
        taken.model.recording_usage = recording
        for _ in range(WARM_UP_STEPS + 1):
            taken(torch.randint(64, (4, 17)), lr=0.1)

    assert [kind.records for kind in taken._graphs] == [True]


@pytest.mark.parametrize("at_the_end", [None, RuntimeError("unjoined work")])
def test_a_capture_that_fails_says_why_and_leaves_no_graph(monkeypatch, at_the_end):
    """Ending it fails too, while other streams still capture; the first error is the reason."""
    device, reset = Device(1000), []
    device.stand_in(monkeypatch)

    @contextmanager
    def graph(graph, **_):
        yield
        if at_the_end:
            raise at_the_end

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(
        torch.cuda, "CUDAGraph", lambda: SimpleNamespace(reset=lambda: reset.append(True))
    )
    taken = cuda_graph.capture_if_possible(step_of("dense"), bf16=True)
    windows = torch.randint(64, (4, 17))
    for _ in range(WARM_UP_STEPS):
        taken(windows, lr=0.1)

    def fails(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(taken._step, "update", fails)
    with pytest.raises(torch.OutOfMemoryError):
        taken(windows, lr=0.1)

    assert reset == [True]
    assert not taken._graphs


@pytest.mark.parametrize(("allowed", "captures"), [(130, 2), (129, 4)])
def test_graphs_are_dropped_where_a_step_without_one_might_not_fit(monkeypatch, allowed, captures):
    device = Device(allowed)
    device.stand_in(monkeypatch)
    taken = cuda_graph.capture_if_possible(step_of("memory"), bf16=True)
    windows = torch.randint(64, (4, 17))
    most = 0

    for step in range(1, 60):
        taken.model.recording_usage = step % 16 == 1
        eager, warm, before = not taken._step.is_warm, taken.is_warm, device.captures
        taken(windows, lr=0.1)
        most = max(most, device.reserved + 40 * eager)
        # Neither a step as it is nor one that is captured tells how long the later ones take.
        assert warm is (not eager and device.captures == before)

    assert device.captures == captures
    assert len(taken._graphs) == 2
    assert most <= allowed
