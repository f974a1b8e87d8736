"""Captured steps of several ranks have the bits of steps that are launched kernel by kernel."""

import multiprocessing
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from orchestrator.sweep import registry
from workloads.distributed import process_group
from workloads.distributed.local_part import local_shard
from workloads.distributed.mesh import Mesh, make_mesh
from workloads.layers.modules.init import initialise
from workloads.sharding.materialise import Dense, Layout, materialise_model
from workloads.training.config import TrainConfig
from workloads.training.device import gpu_stream, numerics
from workloads.training.step.cuda_graph import CapturedStep, capture_if_possible
from workloads.training.step.train_step import WARM_UP_STEPS, TrainStep

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
VOCAB_SIZE = 64
N_STEPS = 2 * WARM_UP_STEPS + 4


def step_of(
    name: str,
    mesh: Mesh,
    here: torch.device,
    dense: Dense = "replicated",
    layout: Layout = "columns",
    **changes: object,
) -> TrainStep:
    config = registry.architecture(name)
    build = partial(config.Config(**config.PRESETS["d16"]).build, VOCAB_SIZE)
    model = materialise_model(build, mesh, layout=layout, here=here, dense=dense)
    initialise(model, 0)
    train = {"tokens": 10**6, "batch_tokens": 256, "seq_len": 32, "lr": 0.01, **changes}
    return TrainStep(
        model.train(), TrainConfig(**train), mesh, passes=1, autocast=nullcontext, seed=3
    )


def trained(step: TrainStep | CapturedStep, mesh: Mesh, here: torch.device) -> list[torch.Tensor]:
    """Return the numbers of all steps, under rates that change, and the weights they leave."""
    draw = torch.Generator().manual_seed(mesh.world.rank)
    numbers = []
    for number in range(N_STEPS):
        windows = torch.randint(VOCAB_SIZE, (8 // mesh.world.size, 33), generator=draw).to(here)
        asked = torch.full((), float(number == N_STEPS - 1), device=here)
        found = step(windows, lr=0.01 / (1 + number), also={"asked": asked})
        numbers.append(torch.stack([value for _, value in sorted(found.items())]))
    # Summed over the ranks, each of which asks in the last step.
    assert [float(each[0]) for each in numbers] == [0.0] * (N_STEPS - 1) + [float(mesh.world.size)]
    parameters = map(torch.detach, step.model.parameters())
    return [*numbers, *(local_shard(parameter) for parameter in parameters)]


def compare(
    rank: int, size: int, folder: Path, name: str, memory: int, changes: dict[str, object]
) -> None:
    here = torch.device("cuda", rank)
    torch.cuda.set_device(here)
    with (
        numerics(here, n_threads=1, bf16=False),
        gpu_stream(here),
        process_group.join(rank=rank, size=size, device=here, rendezvous=folder / "meet") as world,
    ):
        mesh = make_mesh(world, memory=memory)
        plain = step_of(name, mesh, here, **changes)
        captured = capture_if_possible(step_of(name, mesh, here, **changes), bf16=False)
        assert isinstance(captured, CapturedStep)
        expected, found = trained(plain, mesh, here), trained(captured, mesh, here)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        captured.drop_graphs()  # or the ranks never part


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("name", "copies", "changes"),
    [
        ("dense", "of all", {}),
        ("memory_plus", "of none", {}),
        ("memory_plus", "of all", {}),
        ("memory_plus", "of halves", {}),
        ("memory_plus", "of none", {"table_optimizer": "rowwise", "table_precision": "bf16"}),
        ("memory_plus", "of none", {"table_optimizer": "lazy_adamw", "table_clip": "previous"}),
        ("memory_plus", "of none", {"layout": "rows"}),
        ("memory_plus", "of none", {"layout": "rows", "table_optimizer": "rowwise"}),
        ("dense", "of all", {"dense": "sharded"}),
        ("memory_plus", "of none", {"dense": "sharded", "table_optimizer": "rowwise"}),
    ],
    ids=[
        "dense", "adamw", "adamw-replicated", "adamw-over-some", "rowwise", "lazy_adamw",
        "adamw-rows", "rowwise-rows", "dense-sharded", "rowwise-sharded",
    ],
)  # fmt: skip
def test_ranks_replay_what_they_would_have_launched(tmp_path, name, copies, changes, size):
    """Tables are held by each rank (`copies` of all), by pairs of ranks, or by all together."""
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs, there are {torch.cuda.device_count()}")
    memory = {"of all": 1, "of halves": size // 2, "of none": size}[copies]
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=compare, args=(rank, size, tmp_path, name, memory, changes))
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=200)
    left = [rank for rank in ranks if rank.is_alive()]
    for rank in left:
        rank.kill()

    assert not left
    assert [rank.exitcode for rank in ranks] == [0] * size
