"""Block bucketize on CUDA: the reference on the CPU, bit for bit, any number of ranks and reads."""

import pytest
import torch
from torch import Tensor

from workloads.distributed.process_group import RankGroup
from workloads.kernels.block_bucketize import op
from workloads.sharding.table_route import added_up

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

SHAPES = [
    # bags, bag_size, n_rows
    (0, 4, 10),
    (4, 0, 10),
    (1, 1, 1),
    (37, 17, 1000),
    (513, 128, 2**20),
    (513, 129, 2**31 - 1),
    (300, 100, 2**31),
    (33, 64, 2**40 + 7),
    (9, 700, 5),
    (3, 5000, 12_345),
]
DTYPES = [torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.float64]


def _case(shape: tuple[int, int, int], id_type: torch.dtype) -> tuple[Tensor, torch.Generator]:
    bags, bag_size, n_rows = shape
    draw = torch.Generator().manual_seed(sum(shape))
    ids = torch.randint(n_rows, (bags, bag_size), generator=draw)
    # Every third bag reads rows of one rank only.
    ids[::3] = ids[::3, :1]
    if id_type == torch.int32 and n_rows > 2**31:
        pytest.skip("ids are of 64 bits")
    return ids.to(id_type), draw


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 8, 16, 33])
def test_the_reference_bit_for_bit(shape, id_type, n_ranks):
    ids, draw = _case(shape, id_type)
    n_rows = shape[2]
    for dtype in DTYPES:
        scalars = torch.randn(ids.shape, generator=draw).to(dtype)
        parts = torch.randn(n_ranks, *ids.shape, generator=draw).to(dtype)
        table = {"n_rows": n_rows, "n_ranks": n_ranks}

        found = [
            *op.bucketize(ids.cuda(), (ids.cuda(), scalars.cuda()), **table),
            *op.bucketize(ids.cuda().T.contiguous().T, [scalars.cuda().T.contiguous().T], **table),
            op.unbucketize(ids.cuda(), parts.cuda(), n_rows=n_rows),
        ]

        put = op.bucketize(ids, (ids, scalars), **table)
        expected = [*put, put[1], op.unbucketize(ids, parts, n_rows=n_rows)]
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("n_ranks", [1, 3, 16])
def test_local_ids_are_the_references(shape, id_type, n_ranks):
    ids, _ = _case(shape, id_type)
    if -(-shape[2] // n_ranks) > torch.iinfo(id_type).max:
        pytest.skip("these ids cannot say that a row lies elsewhere")
    parts = torch.tensor_split(ids, 3)
    for rank in range(n_ranks):
        rows = RankGroup(rank=rank, size=n_ranks).local_range(shape[2])

        found = op.local_ids([part.cuda() for part in parts], rows)

        assert found.dtype == ids.dtype
        assert torch.equal(found.cpu(), op.local_ids(parts, rows))


def test_the_host_does_not_wait(never_waiting):
    ids = torch.randint(1000, (64, 128), device="cuda", dtype=torch.int32)
    weights, parts = torch.rand(64, 128, device="cuda"), torch.rand(4, 64, 128, device="cuda")

    def everything() -> None:
        op.bucketize(ids, (ids, weights), n_rows=1000, n_ranks=4)
        op.unbucketize(ids, parts, n_rows=1000)
        op.local_ids([ids, ids], range(250, 500))

    everything()  # compiles
    with never_waiting():
        everything()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
def test_partial_results_are_summed_in_fp32_or_wider(dtype, autocast):
    wide = torch.promote_types(dtype, torch.float32)
    for n_ranks in range(1, 17):
        parts = (100 * torch.randn(n_ranks, 77, 1024, device="cuda")).to(dtype)
        expected = parts.sum(0, dtype=wide).to(dtype)

        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            found = added_up(parts)

        assert found.dtype == dtype
        assert torch.equal(found, expected)
