"""Look-ups by signs on CUDA: the reference in float64, any shape, repeatable to the bit, one graph."""

import math

import pytest
import torch
from torch import Tensor

from workloads.kernels.hash_bag.op import hash_bag
from workloads.kernels.sign_hash import reference as sign_hash_reference
from workloads.kernels.sign_hash.op import sign_hash

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

SHAPES = [
    # tokens, chunks, bits, width
    (1, 1, 1, 1),
    (0, 3, 4, 8),
    (37, 5, 3, 7),
    (129, 17, 8, 96),
    (2048, 40, 8, 1024),  # half of those that one kernel takes
    (4097, 6, 10, 1280),  # enough for the kernel that reads one table after another
    (20_000, 3, 5, 1001),
    # Small tables of bf16, by products on tensor cores.
    (8192, 64, 4, 512),
    (8192, 64, 5, 512),
    (9001, 37, 4, 528),
    (9001, 5, 1, 784),
    (70_000, 2, 16, 66),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


def _case(
    shape: tuple[int, int, int, int], dtype: torch.dtype, z_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, chunks, bits, width = shape
    generator = torch.Generator("cuda").manual_seed(sum(shape))

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", generator=generator)

    # Codes far from even, so that the rows read most are split; zeros among the numbers.
    z = (normal(tokens, chunks, bits) + 0.8).clamp_min(-1.0)
    z *= torch.rand(z.shape, device="cuda", generator=generator) < 0.95
    return (
        normal(chunks << bits, width).to(dtype).requires_grad_(),
        z.to(z_dtype).requires_grad_(),
        normal(tokens, width).to(dtype),
    )


def _close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    size = expected.abs().max().clamp_min(1e-30) if expected.numel() else 1.0
    torch.testing.assert_close(found.double() / size, expected / size, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("times_l1", [False, True])
def test_everything_equals_the_reference_in_float64(shape, dtype, times_l1):
    table, z, grad = _case(shape, dtype)
    how = {"temperature": 0.7, "times_l1": times_l1}
    wide_table, wide_z = (v.detach().double().requires_grad_() for v in (table, z))

    found, rows, scores = hash_bag(table, z, **how)
    expected, wide_rows, wide_scores = hash_bag(wide_table, wide_z, **how)

    assert (found.dtype, rows.dtype, scores.dtype) == (dtype, torch.int32, torch.float32)
    assert torch.equal(rows, wide_rows)
    torch.testing.assert_close(scores.double(), wide_scores, rtol=4e-6, atol=0)
    _close(found, expected, TOLERANCE[dtype])
    grads = torch.autograd.grad(found, (table, z), grad)
    wide_grads = torch.autograd.grad(expected, (wide_table, wide_z), grad.double())
    for one, other in zip(grads, wide_grads, strict=True):
        _close(one, other, TOLERANCE[dtype])


@pytest.mark.parametrize("z_dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits(z_dtype):
    table, z, grad = _case((4097, 6, 10, 1280), torch.float32, z_dtype)
    wide = z.detach().float().requires_grad_()
    expected = hash_bag(table, wide, temperature=1.0, times_l1=True)

    found = hash_bag(table, z, temperature=1.0, times_l1=True)

    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    z_grad = torch.autograd.grad(found[0], z, grad)[0]
    assert z_grad.dtype == z_dtype
    expected_grad = torch.autograd.grad(expected[0], wide, grad)[0]
    torch.testing.assert_close(z_grad.float(), expected_grad, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("bits", range(1, 17))
def test_any_number_of_bits(bits):
    generator = torch.Generator("cuda").manual_seed(bits)
    z = torch.randn(1001, 13, bits, device="cuda", generator=generator)
    grad = torch.randn(13, 1001, device="cuda", generator=generator).T
    how = {"temperature": 1.5, "times_l1": True}
    z.requires_grad_()

    rows, scores = sign_hash(z, **how)
    found = torch.autograd.grad(scores, z, grad)[0]

    wide = z.detach().double()
    expected = sign_hash_reference.forward(wide, **how)
    assert torch.equal(rows, expected[0])
    torch.testing.assert_close(scores.double(), expected[1], rtol=4e-6, atol=0)
    expected_grad = sign_hash_reference.backward(wide, grad.double(), **how)
    torch.testing.assert_close(found.double(), expected_grad, rtol=2e-5, atol=1e-6)


def test_what_is_no_number_reads_no_other_table():
    table, z, _ = _case((4097, 6, 10, 1280), torch.bfloat16)
    z = z.detach()
    z[5] = math.nan
    z[6] = -math.inf
    expected = hash_bag(table, z[7:], temperature=1.0, times_l1=False)[0]

    found, rows, _ = hash_bag(table, z, temperature=1.0, times_l1=False)

    assert torch.equal(rows[5:7], (torch.arange(6, device="cuda") << 10).int().expand(2, 6))
    assert found[5].isnan().all()
    assert not found[6].isnan().any()
    assert torch.equal(found[7:], expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_one_kernel_and_two_find_the_same(dtype):
    from workloads.kernels.hash_bag import triton as kernel

    table, z, _ = _case((3000, 33, 7, 768), dtype)
    how = {"temperature": 1.0, "times_l1": True}

    found = kernel.forward(table.detach(), z.detach(), few=True, **how)
    expected = kernel.forward(table.detach(), z.detach(), few=False, **how)

    assert all(torch.equal(one, other) for one, other in zip(found[1:], expected[1:], strict=True))
    _close(found[0], expected[0].double(), TOLERANCE[dtype])


def test_a_matrix_made_in_parts_gives_the_same(monkeypatch):
    from workloads.kernels.hash_bag import one_hot

    case = table, z, grad = _case((8192, 64, 5, 512), torch.bfloat16)
    how = {"temperature": 1.0, "times_l1": False}
    found = hash_bag(table, z, **how)[0]
    expected = (found, *torch.autograd.grad(found, case[:2], grad))
    monkeypatch.setattr(one_hot, "MATRIX_BYTES", 2**20)

    found = hash_bag(table, z, **how)[0]

    for one, other in zip(
        (found, *torch.autograd.grad(found, case[:2], grad)), expected, strict=True
    ):
        _close(one, other.double(), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [300, 8192])
def test_repeats_are_bit_equal(tokens, bits):
    table, z, grad = _case((tokens, 64, bits, 512), torch.bfloat16)

    def everything() -> tuple[Tensor, ...]:
        found = hash_bag(table, z, temperature=1.0, times_l1=True)
        return (*found, *torch.autograd.grad(found[0], (table, z), grad))

    first = everything()

    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, everything(), strict=True))


def test_offsets_beyond_two_to_the_31():
    width = 2**15 + 64
    table = torch.zeros(2 << 15, width, device="cuda", dtype=torch.bfloat16)
    table[-1] = 1.0
    z = torch.full((2048, 2, 15), 50.0, device="cuda", requires_grad=True)
    table.requires_grad_()

    found = hash_bag(table, z, temperature=1.0, times_l1=False)[0]
    table_grad, z_grad = torch.autograd.grad(found[:3].sum(), (table, z))

    assert (found == 1.0).all()
    assert (table_grad[-1] == 3.0).all()
    assert (table_grad[2**15 - 1] == 3.0).all()
    assert not table_grad[: 2**15 - 1].any()
    assert z_grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_are_sound_custom_operations(dtype):
    table, z, _ = _case((100, 6, 4, 96), dtype)

    torch.library.opcheck(torch.ops.memscale.sign_hash.default, (z, 0.7, True))
    torch.library.opcheck(torch.ops.memscale.hash_bag.default, (table, z, 0.7, True))


def test_compile_keeps_one_graph():
    table, z, _ = _case((100, 6, 4, 96), torch.float32)

    def loss(t: Tensor, x: Tensor) -> Tensor:
        return hash_bag(t, x * 2, temperature=1.0, times_l1=True)[0].square().sum()

    expected = torch.autograd.grad(loss(table, z), (table, z))
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(table, z), (table, z))

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_host_does_not_wait(never_waiting, bits):
    table, z, grad = _case((8192, 64, bits, 512), torch.bfloat16)

    def everything() -> None:
        found = hash_bag(table, z, temperature=1.0, times_l1=True)[0]
        torch.autograd.grad(found, (table, z), grad)

    everything()  # compiles
    with never_waiting():
        everything()
