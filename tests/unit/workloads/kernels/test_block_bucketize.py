"""Reads in the order of the ranks that hold their rows, and back, against loops over the reads."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.distributed.process_group import RankGroup
from workloads.kernels.block_bucketize import op

INTERPRETED = settings.get_profile("interpreted")
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Case(NamedTuple):
    n_ranks: int
    n_rows: int
    bags: int
    bag_size: int
    rows_read: int
    """At most so many rows are read: of one, the whole bag is one rank's."""
    dtype: torch.dtype
    turned: bool
    """Whether ids and scalars lie column by column."""
    seed: int


CASES = st.builds(
    Case,
    n_ranks=st.integers(1, 17),
    n_rows=st.sampled_from([1, 2, 5, 16, 61, 1000, 2**31 - 1, 2**31, 2**40 + 7]),
    bags=st.sampled_from([0, 1, 2, 5]),
    bag_size=st.sampled_from([0, 1, 2, 3, 8, 17, 33]),
    rows_read=st.sampled_from([1, 2, 1000]),
    dtype=st.sampled_from(
        [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]
    ),
    turned=st.booleans(),
    seed=st.integers(0, 9),
)
# A rank has as many reads as its field of a shared counter just cannot count: in the lowest field,
# in the highest, and with several counters.
FULL = [
    Case(4, 64, 1, 128, 1, torch.bfloat16, False, 0),
    Case(4, 1, 2, 16, 1, torch.bfloat16, False, 0),
    Case(9, 64, 1, 128, 2, torch.float32, False, 1),
    Case(16, 1000, 1, 129, 1000, torch.float32, True, 2),
]


def bits(shape: tuple[int, ...], dtype: torch.dtype, draw: torch.Generator) -> Tensor:
    """Return numbers of any bits, but no NaN: on a CPU, `gather` of 16 bits changes some of these."""
    if dtype == torch.bool:
        return torch.rand(shape, generator=draw) < 0.5
    sixteen = torch.randint(-(2**15), 2**15, (*shape, dtype.itemsize // 2), generator=draw)
    numbers = sixteen.to(torch.int16).view(dtype).view(shape)
    return torch.where(numbers.isnan(), 0, numbers)


def same(found: Tensor, expected: Tensor) -> bool:
    kind = INTEGERS[expected.element_size()]
    return found.dtype == expected.dtype and torch.equal(found.view(kind), expected.view(kind))


def reads(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, the rank that holds each one's row, and its place, found read by read."""
    draw = torch.Generator().manual_seed(case.seed)
    kind = torch.int32 if case.n_rows < 2**31 and case.seed % 2 else torch.int64
    rows = torch.randint(case.n_rows, (case.rows_read,), generator=draw, dtype=torch.int64)
    shape = case.bags, case.bag_size
    ids = rows[torch.randint(len(rows), shape, generator=draw)].to(kind)
    parts = [RankGroup(rank=i, size=case.n_ranks).local_range(case.n_rows) for i in range(case[0])]
    ranks, places = [], []
    for bag in ids.tolist():
        holders = [next(i for i, rows in enumerate(parts) if row in rows) for row in bag]
        in_order = sorted(range(len(bag)), key=lambda read: (holders[read], read))
        ranks.append(holders)
        places.append([in_order.index(read) for read in range(len(bag))])
    return ids, *(torch.tensor(each, dtype=torch.int64).view(shape) for each in (ranks, places))


def turned(x: Tensor) -> Tensor:
    return x.T.contiguous().T


def check(kernel: ModuleType, case: Case) -> None:
    ids, ranks, places = reads(case)
    draw = torch.Generator().manual_seed(case.seed)
    scalars = bits((case.bags, case.bag_size), case.dtype, draw)
    parts = bits((case.n_ranks, case.bags, case.bag_size), case.dtype, draw)
    put = [x.clone().scatter_(1, places, x) for x in (ids, scalars)]
    bag = torch.arange(case.bags)[:, None]
    own_ids, own = (turned(ids), turned(scalars)) if case.turned else (ids, scalars)
    table = {"n_rows": case.n_rows, "n_ranks": case.n_ranks}

    both = kernel.bucketize(own_ids, (own_ids, own), **table)
    (alone,) = kernel.bucketize(own_ids, [own], **table)
    out = [torch.empty_like(x) for x in (ids, scalars)]
    assert kernel.bucketize(own_ids, (own_ids, own), **table, out=out) is out
    taken = kernel.unbucketize(own_ids, parts, n_rows=case.n_rows)

    for found in (both, out, (put[0], alone)):
        assert all(same(*each) for each in zip(found, put, strict=True))
    assert same(taken, parts[ranks, bag, places])
    back = kernel.unbucketize(ids, alone.expand_as(parts).contiguous(), n_rows=case.n_rows)
    assert same(back, scalars)


def check_local(kernel: ModuleType, case: Case) -> None:
    ids, ranks, _ = reads(case)
    for rank in {0, case.n_ranks // 2, case.n_ranks - 1}:
        rows = RankGroup(rank=rank, size=case.n_ranks).local_range(case.n_rows)

        local = kernel.local_ids([ids[:1], ids[1:1], ids[1:]], rows)

        assert local.dtype == ids.dtype
        assert torch.equal(local, torch.where(ranks == rank, ids - rows.start, len(rows)))


def examples(check_one: Callable[..., None]) -> Callable[..., None]:
    for each in FULL:
        check_one = example(case=each)(check_one)
    return check_one


@pytest.mark.usefixtures("poisoned")
@given(case=CASES)
@examples
def test_reads_of_a_bag_are_put_in_the_order_of_the_ranks_and_taken_back(case):
    check(op, case)


@pytest.mark.usefixtures("poisoned")
@given(case=CASES)
def test_ids_are_counted_from_the_first_row_here(case):
    check_local(op, case)


@pytest.fixture
def triton(interpreted, poisoned, monkeypatch):
    module = pytest.importorskip(
        "workloads.kernels.block_bucketize.triton",
        reason="a CPU build of torch comes without Triton",
    )
    interpreted(module)
    monkeypatch.setattr(module, "_READS", 16)  # several programs
    return module


@INTERPRETED
@given(case=CASES)
@examples
def test_so_they_are_in_triton(triton, case):
    check(triton, case)


@INTERPRETED
@given(case=CASES)
@examples
def test_so_they_are_counted_in_triton(triton, case):
    check_local(triton, case)


def test_int32_ids_of_a_larger_table(triton):
    ids = torch.tensor([[2**31 - 1, 0, 2**30, 2**31 - 2]], dtype=torch.int32)

    for kernel in (op, triton):
        (found,) = kernel.bucketize(ids, [ids], n_rows=2**32 - 2, n_ranks=4)

        assert found.tolist() == [[0, 2**30, 2**31 - 2, 2**31 - 1]]
