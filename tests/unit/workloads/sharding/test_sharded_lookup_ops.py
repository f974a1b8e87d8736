"""Shared-out reads as operations of a compiled graph.

Of one rank, which holds all and sends to itself.
"""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from workloads.distributed.mesh import Mesh
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.sharding.column_parallel import ColumnParallelShard
from workloads.sharding.row_parallel import RowParallelShard
from workloads.sharding.sharded_lookup_ops import sharded_read, sharded_read_backward
from workloads.sharding.table_shard import TableShard

ROWS, WIDTH, BAGS, BAG_SIZE = 7, 5, 4, 3
KINDS = pytest.mark.parametrize("kind", [ColumnParallelShard, RowParallelShard])
OPERATIONS = pytest.mark.parametrize("operation", ["weighted_bag", "gathered_dot"])


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def tensors(operation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return a table, ids as they are sent, and weights or x."""
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS, WIDTH, generator=draw)
    ids = torch.randint(ROWS, (BAGS, BAG_SIZE), generator=draw, dtype=torch.int32)
    shape = (BAGS, BAG_SIZE if operation == "weighted_bag" else WIDTH)
    return table, ids, torch.randn(shape, generator=draw)


def backward(
    shard: TableShard, operation: str, deferred: SparseGradient | None
) -> tuple[Tensor, list[Tensor], tuple[object, ...]]:
    """Return an output's gradient, what forward keeps, and the arguments of backward."""
    table, ids, second = tensors(operation)
    name, anchor = None, None
    if deferred is not None:
        name, anchor = deferred.handle, deferred.anchor.detach()
    output, *kept = sharded_read(table, ids, second, anchor, operation, shard.number, name)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return (
        grad,
        kept,
        (grad, table, ids, kept, anchor, operation, shard.number, name, True, True, 0),
    )


@pytest.mark.parametrize(
    ("kind", "operation", "deferred"),
    [
        (ColumnParallelShard, "weighted_bag", SparseGradient()),
        pytest.param(ColumnParallelShard, "gathered_dot", None, marks=pytest.mark.long),
        pytest.param(RowParallelShard, "weighted_bag", None, marks=pytest.mark.long),
        (RowParallelShard, "gathered_dot", SparseGradient()),
    ],
)
def test_torch_finds_the_operations_as_they_are_declared(kind, operation, deferred):
    shard = kind(Mesh(), n_rows=ROWS, width=WIDTH)
    table, ids, second = tensors(operation)
    anchor, name = (None, None) if deferred is None else (deferred.anchor, deferred.handle)
    checked = table.requires_grad_(), ids, second.requires_grad_(), anchor

    torch.library.opcheck(sharded_read, (*checked, operation, shard.number, name))
    _, _, arguments = backward(shard, operation, deferred)
    torch.library.opcheck(sharded_read_backward, arguments)


@KINDS
@OPERATIONS
def test_what_is_left_is_no_buffer_of_the_graph(kind, operation):
    deferred = SparseGradient()
    # The operation finds it by name, so somebody must hold it.
    shard = kind(Mesh(), n_rows=ROWS, width=WIDTH)
    grad, kept, arguments = backward(shard, operation, deferred)
    sharded_read_backward(*arguments)
    for buffer in (grad, *kept):
        buffer.zero_()

    hits = deferred.take()

    assert hits is not None
    table, ids, second = tensors(operation)
    again = torch.randn(grad.shape, generator=torch.Generator().manual_seed(1))
    weights, x = (second, again) if operation == "weighted_bag" else (again, second)
    expected = torch.zeros_like(table)
    expected.index_add_(0, ids.flatten(), (weights[:, :, None] * x[:, None, :]).flatten(0, 1))
    found = torch.zeros_like(table)
    for i in range(hits.ids.shape[1]):
        found.index_add_(0, hits.ids[:, i], hits.weights[:, i, None] * hits.x)
    torch.testing.assert_close(found, expected)
