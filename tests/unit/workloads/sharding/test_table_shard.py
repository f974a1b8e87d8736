import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from workloads.architectures import dense, memory_plus
from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.mesh import Mesh, make_mesh
from workloads.distributed.process_group import RankGroup
from workloads.layers.modules.init import initialise, write_normal_part
from workloads.layers.modules.usage_stats import shard_imbalance
from workloads.sharding.column_parallel import (
    ALIGNED,
    ColumnParallelRoute,
    ColumnParallelShard,
    split_columns,
)
from workloads.sharding.materialise import materialise_model
from workloads.sharding.row_parallel import RowParallelShard
from workloads.sharding.table_shard import count_params, table_shards

BACKBONE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
MEMORY = memory_plus.Config(**BACKBONE, n_keys=12, knn=4, value_dim=24, memory_layers=(0, 1))
CPU = torch.device("cpu")


def second_of_three() -> Mesh:
    return Mesh(memory=RankGroup(rank=1, size=3))


@given(width=st.integers(1, 300), n_ranks=st.integers(1, 9))
def test_columns_are_complete_and_even_and_rows_of_a_part_aligned_where_they_can_be(width, n_ranks):
    of_each = split_columns(width, n_ranks)

    assert [column for columns in of_each for column in columns] == list(range(width))
    sizes = [len(columns) for columns in of_each]
    unit = ALIGNED if width % ALIGNED == 0 and width >= ALIGNED * n_ranks else 1
    assert max(sizes) - min(sizes) <= unit
    assert all(size % unit == 0 for size in sizes)
    assert min(sizes) > 0 or width < n_ranks


@given(
    bags=st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any),
    n_chunks=st.integers(1, 5),
    bag_size=st.integers(0, 3),
)
def test_chunks_are_all_bags_in_their_order_and_split_and_join_undo_each_other(
    bags, n_chunks, bag_size
):
    route = ColumnParallelRoute(
        RankGroup(rank=1, size=3),
        torch.zeros(bags[1], bag_size, dtype=torch.int32),
        bags=bags,
        columns=split_columns(8, 3),
        n_chunks=n_chunks,
    )

    own = [bag for piece in route.chunks() for bag in range(bags[1])[piece.bags]]
    assert own == list(range(bags[1]))
    whole = torch.arange(sum(bags))[:, None]
    cut = route.split_chunks(whole)
    assert len(cut) == len(route.chunks()) == n_chunks
    assert torch.equal(route.join_chunks(cut), whole)
    of_ranks = torch.split(whole, bags)
    for number, piece in enumerate(cut):
        shares = [RankGroup(rank=number, size=n_chunks).local_range(n) for n in bags]
        expected = [
            int(x)
            for of, share in zip(of_ranks, shares, strict=True)
            for x in of[share.start : share.stop]
        ]
        assert piece.flatten().tolist() == expected


@pytest.mark.parametrize(("asked", "found"), [(1, 1), (3, 3), (9, 4)])
def test_a_read_has_the_chunks_that_were_asked_for_but_no_more_than_bags(asked, found):
    mesh = second_of_three()
    mesh.n_chunks = asked
    shard = ColumnParallelShard(mesh, n_rows=5, width=16)

    with mesh.equal_bags():
        route = shard.route(torch.zeros(4, 2, dtype=torch.int64))

    assert len(route.chunks()) == found


def test_skew_is_what_the_busiest_rank_reads_over_the_mean():
    reads = torch.tensor([5, 1, 0, 0, 2, 4])
    held = HashPartition(6).rows(range(6)).split(2)

    busiest = max(int(reads[rows].sum()) for rows in held)

    assert shard_imbalance(reads, 3) == pytest.approx(busiest / 4)
    assert shard_imbalance(torch.ones(8, dtype=torch.long), 4) == 1.0


@given(
    n_rows=st.integers(1, 60),
    width=st.integers(1, 20),
    rows=st.lists(st.integers(0, 59), unique=True),
    columns=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    drawn_at_once=st.integers(1, 700),
)
def test_a_part_begins_as_the_whole_does_there(n_rows, width, rows, columns, drawn_at_once):
    down = torch.tensor([row for row in rows if row < n_rows], dtype=torch.int64)
    across = range(min(*columns, width), min(max(columns), width))
    whole = torch.empty(n_rows, width)
    whole.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(4))

    part = torch.full((len(down), len(across)), torch.nan)
    write_normal_part(
        part,
        0.3,
        torch.Generator().manual_seed(4),
        n_rows=n_rows,
        width=width,
        rows=down,
        columns=across,
        drawn_at_once=drawn_at_once,
    )

    assert torch.equal(part, whole[down, across.start : across.stop])


class Largest(TorchDispatchMode):
    """The most numbers that one tensor with storage has had."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("layout", ["columns", "rows"])
def test_no_rank_ever_holds_a_whole_table(monkeypatch, layout):
    monkeypatch.setitem(write_normal_part.__kwdefaults__, "drawn_at_once", 16 * 24)
    with Largest() as seen:
        model = materialise_model(
            lambda: MEMORY.build(20), second_of_three(), layout=layout, here=CPU
        )
        initialise(model, 0)

    assert 144 * 24 / 3 <= seen.numbers < 144 * 24 / 2
    (name,) = table_shards(model)
    assert name == "memory_table.weight"
    assert model.get_parameter(name).shape == ((144, 8) if layout == "columns" else (48, 24))
    assert count_params(model) == MEMORY.param_count(20).total
    assert all(not tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def test_a_model_without_tables_is_shared_by_nobody():
    model = materialise_model(
        lambda: dense.Config(**BACKBONE).build(20), second_of_three(), layout="rows", here=CPU
    )

    assert not table_shards(model)


def test_alone_a_table_is_whole_and_another_layout_is_refused():
    assert not table_shards(
        materialise_model(lambda: MEMORY.build(20), Mesh(), layout="columns", here=CPU)
    )
    with pytest.raises(ValueError, match="memory_layout must be one of columns, rows, got 'tiles'"):
        materialise_model(lambda: MEMORY.build(20), second_of_three(), layout="tiles", here=CPU)


def test_ranks_that_cannot_be_grouped_are_refused():
    with pytest.raises(
        ValueError, match=r"must divide the number of ranks \(6\), got 4; the nearest is 3"
    ):
        make_mesh(RankGroup(size=6), memory=4)
    with pytest.raises(ValueError, match="got 0; the nearest is 1"):
        make_mesh(RankGroup(size=6), memory=0)


def test_a_shared_out_memory_reports_how_unevenly_its_ranks_read():
    model = materialise_model(lambda: MEMORY.build(20), second_of_three(), layout="rows", here=CPU)
    initialise(model, 0)
    layer = model.get_submodule("layers.0.feed_forward")
    assert isinstance(layer, nn.Module)
    shard = table_shards(model)["memory_table.weight"]
    assert isinstance(shard, RowParallelShard)

    first, second, third = (HashPartition(144).rows(range(at, at + 2)) for at in (0, 48, 96))
    layer.usage.record(torch.stack([first, torch.stack([second[0], third[0]])]), torch.ones(2, 2))

    # Of four reads two are of rows of the first rank, one each of the others'.
    assert model.statistics()["memory/layer_00/shard_max_over_mean"] == pytest.approx(2 / (4 / 3))
