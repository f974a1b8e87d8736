"""Ranks that a benchmark starts for itself on this host."""

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from workloads.distributed import process_group
from workloads.training import device as devices

Work = Callable[[process_group.RankGroup, torch.device], Any]
"""What a rank does; what rank 0 returns must be plain values."""


def run_ranks(size: int, device: str, work: Work) -> Any:
    """Return `work`'s result on rank 0 of `size` ranks, one GPU each or all on the CPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spawn_ranks(size, _rank, size, device, work, folder)
        return json.loads((folder / "found.json").read_text())


def spawn_ranks(size: int, target: Callable[..., None], *arguments: Any) -> None:
    """Call `target(rank, *arguments)` in a process for each rank, and wait for all.

    Raises:
        SystemExit: If one of them fails.
    """
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=(rank, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a rank failed")


def _rank(rank: int, size: int, device: str, work: Work, folder: Path) -> None:
    here = devices.pick(device, rank=rank)
    with (
        devices.numerics(here, n_threads=1, bf16=here.type == "cuda"),
        process_group.join(rank=rank, size=size, device=here, rendezvous=folder / "meet") as world,
    ):
        found = work(world, here)
        if world.is_main:
            (folder / "found.json").write_text(json.dumps(found))
