"""Weighted bag and row products on CUDA: the reference in float64, any shape, repeatable to the bit, one graph."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.gathered_dot import op as gathered_dot
from workloads.kernels.weighted_bag import gaps
from workloads.kernels.weighted_bag import op as weighted_bag

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

SHAPES = [
    # rows, width, bags, bag_size
    (1, 1, 1, 1),
    (7, 5, 3, 2),
    (3, 8, 0, 4),
    (3, 8, 4, 0),
    (1000, 96, 37, 17),
    (4096, 768, 129, 32),
    (30_000, 1000, 64, 128),
    # On tensor cores: whole groups of rows or not.
    (500, 64, 700, 64),
    (500, 192, 33, 17),
    (3, 256, 65, 4),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


def _case(shape: tuple[int, int, int, int], dtype: torch.dtype) -> list[Tensor]:
    rows, width, bags, bag_size = shape
    generator = torch.Generator("cuda").manual_seed(sum(shape))

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", generator=generator).to(dtype)

    ids = torch.randint(rows, (bags, bag_size), device="cuda", generator=generator)
    # Far from even: row 0 takes half of all reads, more than one program sums.
    ids *= torch.rand(bags, bag_size, device="cuda", generator=generator) < 0.5
    return [normal(rows, width), ids, normal(bags, bag_size), normal(bags, width)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_both_operations_equal_the_reference_in_float64(shape, dtype, id_type):
    table, ids, weights, x = _case(shape, dtype)

    def everything(kind: torch.dtype, index: Tensor) -> list[Tensor]:
        t, w, y = (v.to(kind).requires_grad_() for v in (table, weights, x))
        bags, products = (
            weighted_bag.weighted_bag(t, index, w),
            gathered_dot.gathered_dot(t, index, y),
        )
        return [
            bags,
            *torch.autograd.grad(bags, (t, w), x.to(kind)),
            products,
            *torch.autograd.grad(products, (t, y), weights.to(kind)),
        ]

    found, expected = everything(dtype, ids.to(id_type)), everything(torch.float64, ids)

    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        size = other.abs().max().clamp_min(1e-30) if other.numel() else 1.0
        torch.testing.assert_close(one.double() / size, other / size, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(40, 256, 700, 128), (40, 128, 33, 17), (900, 96, 50, 20)])
def test_reads_of_rows_elsewhere_are_skipped(shape, dtype, id_type):
    rows, _, bags, bag_size = shape
    table, ids, weights, x = _case(shape, dtype)
    # Of some bags all reads are here, of some none.
    lo, hi = torch.randint(bag_size + 1, (2, bags, 1), device="cuda").sort(0).values
    place = torch.arange(bag_size, device="cuda")
    here = (place >= lo) & (place < hi)
    ids = torch.where(here, ids, rows).to(id_type)

    sums = gaps.bag_with_gaps(table, ids, weights)
    products = gaps.products_with_gaps(table, ids, x)

    near = table.double()[ids.clamp(max=rows - 1).long()]
    expected = (torch.where(here, weights, 0).double()[:, :, None] * near).sum(1)
    size = expected.abs().max()
    torch.testing.assert_close(sums.double() / size, expected / size, rtol=0, atol=TOLERANCE[dtype])
    expected = (near * x.double()[:, None]).sum(2)
    size = expected.abs().max()
    torch.testing.assert_close(
        products[here].double() / size, expected[here] / size, rtol=0, atol=TOLERANCE[dtype]
    )


def test_repeats_are_bit_equal():
    table, ids, weights, x = _case((4096, 256, 8192, 64), torch.bfloat16)
    t, w = table.requires_grad_(), weights.requires_grad_()

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(weighted_bag.weighted_bag(t, ids, w), (t, w), x)

    first = gradients()

    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_need_not_be_contiguous(dtype):
    table, ids, weights, x = _case((1000, 96, 37, 17), dtype)
    t, w = table.requires_grad_(), weights.requires_grad_()
    bags = weighted_bag.weighted_bag(t, ids, w)
    expected = torch.autograd.grad(bags, (t, w), x, retain_graph=True)

    found = torch.autograd.grad(bags, (t, w), x.T.contiguous().T)

    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_products_of_rows_beyond_two_to_the_31(id_type):
    rows, width = 2**21 + 3, 1056
    table = torch.zeros(rows, width, device="cuda", dtype=torch.bfloat16)
    table[-1] = 1.0
    ids = torch.full((2, 3), rows - 1, device="cuda", dtype=id_type)
    x = torch.ones(2, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    table.requires_grad_()

    products = gathered_dot.gathered_dot(table, ids, x)
    table_grad, x_grad = torch.autograd.grad(products.float().sum(), (table, x))

    assert (products == width).all()
    assert (table_grad[-1] == 6.0).all()
    assert not table_grad[:-1].any()
    assert (x_grad == 3.0).all()


def test_offsets_beyond_two_to_the_31():
    rows, width = 2**21 + 3, 1056
    table = torch.zeros(rows, width, device="cuda", dtype=torch.bfloat16)
    table[-1] = 1.0
    ids = torch.full((2, 3), rows - 1, device="cuda")
    weights = torch.ones(2, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    table.requires_grad_()

    bags = weighted_bag.weighted_bag(table, ids, weights)
    table_grad, weights_grad = torch.autograd.grad(bags.sum(), (table, weights))

    assert (bags == 3.0).all()
    assert (table_grad[-1] == 6.0).all()
    assert not table_grad[:-1].any()
    assert (weights_grad == width).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_are_sound_custom_operations(dtype):
    table, ids, weights, x = _case((100, 96, 8, 5), dtype)
    t, w, y = (v.requires_grad_() for v in (table, weights, x))

    torch.library.opcheck(torch.ops.memscale.weighted_bag.default, (t, ids, w))
    torch.library.opcheck(torch.ops.memscale.gathered_dot.default, (t, ids, y))


def test_compile_keeps_one_graph():
    table, ids, weights, x = _case((100, 96, 8, 5), torch.float32)
    t, w = table.requires_grad_(), weights.requires_grad_()

    def both(t: Tensor, w: Tensor) -> Tensor:
        return (
            weighted_bag.weighted_bag(t, ids, w * 2) * gathered_dot.gathered_dot(t, ids, x).sum()
        ).sum()

    expected = torch.autograd.grad(both(t, w), (t, w))
    found = torch.autograd.grad(torch.compile(both, fullgraph=True)(t, w), (t, w))

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_host_does_not_wait(never_waiting):
    table, ids, weights, x = _case((4096, 256, 512, 64), torch.bfloat16)
    t, w = table.requires_grad_(), weights.requires_grad_()
    torch.autograd.grad(weighted_bag.weighted_bag(t, ids, w), (t, w), x)  # compiles
    with never_waiting():
        torch.autograd.grad(weighted_bag.weighted_bag(t, ids, w), (t, w), x)
