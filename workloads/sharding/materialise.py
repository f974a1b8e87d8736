"""Materialisation of a model's parameters on GPU, mesh or host.

The model is built on the meta device; then each parameter is allocated where it belongs: on one
GPU, sharded over the ranks of a mesh, or, for tables, in pinned host memory.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from workloads.distributed.mesh import Mesh
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.usage_stats import MemoryUsage
from workloads.sharding.column_parallel import ColumnParallelShard
from workloads.sharding.fsdp import shard_dense
from workloads.sharding.row_parallel import RowParallelShard

LOG = logging.getLogger(__name__)
Layout = Literal["columns", "rows"]
Place = Literal["device", "host"]
Dense = Literal["replicated", "sharded"]
LAYOUTS: dict[str, type[ColumnParallelShard] | type[RowParallelShard]] = {
    "columns": ColumnParallelShard,
    "rows": RowParallelShard,
}


def materialise_model(
    make: Callable[[], nn.Module],
    mesh: Mesh,
    *,
    layout: Layout,
    here: torch.device,
    place: Place = "device",
    dense: Dense = "replicated",
    host_dtype: torch.dtype | None = None,
) -> nn.Module:
    """Return the model of `make` on `here`, with sharded tables and uninitialised values.

    No rank ever holds a whole table: the model is made without storage first. So it is where
    `place` is host, whose tables are then whole and lie in the host's memory
    (`layers/memory/host_offload.py`), and where all other parameters are sharded over all ranks
    (`dense`). `host_dtype` is the type of tables on the host; None is the model's.

    Raises:
        ValueError: If ranks on one GPU are to share a table, or dense parameters: they talk through
            gloo, which cannot send what it takes; if they are to share a table that lies on the
            host; if there is no such place, or no such way to hold dense parameters.
    """
    if place not in ("device", "host"):
        raise ValueError(f"memory_tables must be device or host, got {place!r}")
    if dense not in ("replicated", "sharded"):
        raise ValueError(f"dense_parameters must be replicated or sharded, got {dense!r}")
    if place == "host" and mesh.memory.size > 1:
        raise ValueError(
            f"memory_tables: host holds whole tables, got memory_ranks {mesh.memory.size}; "
            "set memory_ranks to 1, or memory_tables to device"
        )
    sharded = dense == "sharded" and mesh.world.size > 1
    if place == "device" and mesh.memory.size == 1 and not sharded:
        with here:
            return make()
    if (
        mesh.memory.size > 1
        and here.type == "cuda"
        and dist.get_backend(mesh.memory.group) == "gloo"
    ):
        raise ValueError(
            f"memory_ranks {mesh.memory.size} needs a GPU for each rank, these share one; "
            "set resources.gpus to the number of ranks, or memory_ranks to 1"
        )
    with torch.device("meta"):
        model = make()
    if mesh.memory.size > 1:
        shard_tables(model, mesh, layout=layout)
    tables = [module for module in model.modules() if isinstance(module, MemoryTable)]
    if place == "host":
        _put_on_host(tables, here, host_dtype)
    if sharded:
        shard_dense(model, mesh.world, here=here, without=[table.weight for table in tables])
    for module in model.modules():
        if not (isinstance(module, MemoryTable) and module.on_host):
            module.to_empty(device=here, recurse=False)
    return model


def _put_on_host(
    tables: Sequence[MemoryTable], here: torch.device, dtype: torch.dtype | None
) -> None:
    if not tables:
        LOG.info("memory_tables host: this model has no table")
    for table in tables:
        table.to_host(here, dtype=dtype)


def shard_tables(model: nn.Module, mesh: Mesh, *, layout: Layout) -> None:
    """Replace every table of a model by this rank's part, with open values.

    Raises:
        ValueError: If there is no such layout.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"memory_layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    tables = [module for module in model.modules() if isinstance(module, MemoryTable)]
    if not tables:
        LOG.info("memory_ranks %d: this model has no table to share out", mesh.memory.size)
    for table in tables:
        n_rows, width = table.weight.shape
        table.shard = LAYOUTS[layout](mesh, n_rows=n_rows, width=width)
        part = table.weight.new_empty(table.shard.shape)
        table.weight = nn.Parameter(part, requires_grad=table.weight.requires_grad)
    if layout == "rows":
        for module in model.modules():
            if isinstance(module, MemoryUsage):
                module.row_shards = mesh.memory.size
