"""Product-key selection on CUDA: exact where scores are, else the best slots to fp32 rounding; nothing waits."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.product_key_topk import op, reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

# tokens, heads, n_keys, half_key_dim, knn
SHAPES = [
    (4096, 4, 1024, 128, 32),
    (1000, 2, 1024, 256, 32),
    (1, 1, 1, 1, 1),
    (131, 3, 97, 24, 16),
    (257, 1, 480, 100, 7),
    (129, 2, 2000, 64, 64),
    (65, 1, 3000, 256, 32),
    (65, 1, 4096, 128, 32),
    (33, 1, 10_000, 128, 32),
    (17, 1, 10_000, 256, 64),
    (9, 1, 11_585, 192, 32),
    (200, 2, 512, 192, 32),
    (200, 2, 512, 300, 16),
]


def _normal(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    tokens, heads, n_keys, half, _ = shape
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(tokens, heads, 2 * half, generator=generator)
    sub_keys = torch.randn(2, heads, n_keys, half, generator=generator) / half**0.5
    return query.to("cuda", dtype), sub_keys.cuda()


def _kernels():
    from workloads.kernels.product_key_topk import triton

    return triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_best_slots_to_fp32_rounding(shape, dtype):
    query, sub_keys = _normal(shape, dtype)
    n_keys, half, knn = shape[2:]
    assert _kernels().applies(query, sub_keys, knn)
    expected, expected_ids = reference.product_key_topk(query.double(), sub_keys.double(), knn)

    scores, ids = op.product_key_topk(query, sub_keys, knn)

    # Scores are of size 1 to 10. A sum of fp32 products errs by some of its last places, 2**-21 at 8: at 64k tokens and
    # half**0.5 = 11, 8.7e-6 was the largest error here where plain torch's was 3.8e-6.
    tolerance = {"rtol": 0.0, "atol": 2**-24 * 16 * max(8.0, half**0.5)}
    torch.testing.assert_close(scores.double(), expected, **tolerance)
    halves = query.double().unflatten(-1, (2, half)).permute(2, 1, 0, 3) @ sub_keys.double().mT
    left, right = halves[0].transpose(0, 1), halves[1].transpose(0, 1)
    claimed = left.gather(-1, ids // n_keys) + right.gather(-1, ids % n_keys)
    torch.testing.assert_close(scores.double(), claimed, **tolerance)
    assert (ids == expected_ids).double().mean() > 0.999
    assert ids.sort(dim=-1).values.diff(dim=-1).gt(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("largest", [0, 1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_scores_and_ties(shape, largest, dtype):
    tokens, heads, n_keys, half, knn = shape
    generator = torch.Generator().manual_seed(0)
    query = torch.randint(-largest, largest + 1, (tokens, heads, 2 * half), generator=generator)
    sub_keys = torch.randint(-largest, largest + 1, (2, heads, n_keys, half), generator=generator)
    query, sub_keys = query.to("cuda", dtype), sub_keys.cuda().float()
    expected, expected_ids = reference.product_key_topk(query.double(), sub_keys.double(), knn)

    scores, ids = op.product_key_topk(query, sub_keys, knn)

    assert torch.equal(ids, expected_ids)
    assert torch.equal(scores.double(), expected)


@pytest.mark.parametrize("half_key_dim", [128, 192])
def test_many_rows_of_equal_scores_at_once(half_key_dim):
    """All search on their own, side by side, each in the room of its program."""
    tokens, n_keys, knn = 2000, 40, 7
    query = torch.randint(1, 4, (tokens, 2, 2 * half_key_dim), device="cuda").float()
    sub_keys = torch.ones(2, 2, n_keys, half_key_dim, device="cuda")

    scores, ids = op.product_key_topk(query, sub_keys, knn)

    assert torch.equal(scores, query.sum(-1, keepdim=True).expand(-1, -1, knn))
    assert torch.equal(ids, torch.arange(knn, device="cuda").expand_as(ids))


def test_chunks_and_strides():
    query, sub_keys = _normal((300, 2, 64, 32, 8), torch.float32)
    strided = query.transpose(0, 1).contiguous().transpose(0, 1)
    shared = sub_keys[:, :1].expand(-1, 2, -1, -1)
    expected = op.product_key_topk(query, shared.contiguous(), 8)

    found = _kernels().select(strided, shared, 8, chunk_bytes=1)

    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_of_the_same_slots(shape, dtype, tolerance):
    """Largest difference over the largest number. A bf16 query has bf16 products."""
    query, sub_keys = _normal(shape, dtype)
    leaves = query.requires_grad_(), sub_keys.requires_grad_()
    scores, ids = op.product_key_topk(*leaves, shape[-1])
    grad = torch.randn_like(scores)
    exact = query.detach().double().requires_grad_(), sub_keys.detach().double().requires_grad_()
    n_keys, half = shape[2:4]
    halves = exact[0].unflatten(-1, (2, half)).permute(2, 1, 0, 3) @ exact[1].mT
    left, right = halves[0].transpose(0, 1), halves[1].transpose(0, 1)
    chosen = left.gather(-1, ids // n_keys) + right.gather(-1, ids % n_keys)
    expected = torch.autograd.grad(chosen, exact, grad.double())

    found = torch.autograd.grad(scores, leaves, grad, retain_graph=True)
    again = torch.autograd.grad(scores, leaves, grad)

    for x, y, z in zip(found, expected, again, strict=True):
        assert (x.double() - y).abs().max() <= tolerance * y.abs().max()
        assert torch.equal(x, z)


def test_the_operator_keeps_its_promises():
    query, sub_keys = _normal((130, 2, 64, 32, 8), torch.bfloat16)

    torch.library.opcheck(op._select, (query.requires_grad_(), sub_keys.requires_grad_(), 8))


def test_compiles_to_one_graph():
    query, sub_keys = _normal((130, 2, 64, 32, 8), torch.bfloat16)
    leaves = query.requires_grad_(), sub_keys.requires_grad_()

    def loss(query: Tensor, sub_keys: Tensor) -> Tensor:
        scores, ids = op.product_key_topk(query, sub_keys, 8)
        return (scores.softmax(-1) * ids).sum() / 1000

    expected = torch.autograd.grad(loss(*leaves), leaves)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*leaves), leaves)

    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-2 * y.abs().max().item())


def test_nothing_waits_for_the_device(never_waiting):
    query, sub_keys = _normal((130, 2, 64, 32, 8), torch.bfloat16)
    leaves = query.requires_grad_(), sub_keys.requires_grad_()

    def run() -> None:
        torch.autograd.grad(op.product_key_topk(*leaves, 8)[0].sum(), leaves)

    run()
    with never_waiting():
        run()


def test_what_the_kernels_leave_out_is_the_references():
    query, sub_keys = _normal((9, 2, 16, 8, 1), torch.float32)

    for arguments in [(query, sub_keys, 200), (query.double(), sub_keys.double(), 4)]:
        assert not _kernels().applies(*arguments)
        expected = reference.product_key_topk(*arguments)
        for x, y in zip(op.product_key_topk(*arguments), expected, strict=True):
            assert torch.equal(x, y)
