"""Selection by Tucker-decomposed scores on CUDA: the reference's slots and gradients."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.tucker_topk import op, reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

# tokens, heads, rank, queries, n_keys, half_key_dim, knn
SHAPES = [
    (4096, 1, 2, 2, 480, 128, 16),
    (1000, 1, 2, 1, 1024, 192, 32),
    (257, 2, 3, 3, 97, 24, 7),
    (65, 1, 4, 4, 362, 64, 16),
    (1, 1, 1, 1, 1, 1, 1),
]


def _case(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    tokens, heads, rank, queries, n_keys, half, _ = shape
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, heads, queries, tokens, half, generator=generator)
    sub_keys = torch.randn(2, heads, rank, n_keys, half, generator=generator) / half**0.5
    core = torch.rand(heads, rank, rank, generator=generator)
    return query.to("cuda", dtype), sub_keys.cuda(), core.cuda()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_slots_and_gradients(shape, dtype):
    from workloads.kernels.tucker_topk import triton as kernels

    knn, n_keys = shape[-1], shape[4]
    leaves = [x.requires_grad_() for x in _case(shape, dtype)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    assert kernels.applies(*leaves, knn)
    best, expected_ids = reference.tucker_topk(*exact, knn)

    scores, ids = op.tucker_topk(*leaves, knn)

    # fp16's 11 bits of a sub-key move ids whose scores are that close.
    assert (ids == expected_ids).double().mean() > (0.999 if dtype == torch.float32 else 0.9)
    rows, columns = reference.half_scores(exact[0], exact[1])
    slots = ids.transpose(0, 1)[:, None].expand(-1, shape[2], -1, -1)
    row, column = rows.gather(-1, slots // n_keys), columns.gather(-1, slots % n_keys)
    expected = torch.einsum("hatk,hab,hbtk->thk", row, exact[2], column)
    tolerance = 3e-6 if dtype == torch.float32 else 1e-3
    assert (scores.double() - expected).norm() < tolerance * expected.norm() + 1e-6
    assert (scores.double() - best).norm() < 5e-3 * best.norm() + 1e-6
    grad = torch.randn_like(scores)
    found = torch.autograd.grad(scores, leaves, grad, retain_graph=True)
    for one, other in zip(found, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        # Products of the sub-keys' gradients keep 16 bits of each factor; a query's is bf16.
        limit = 1e-4 if dtype == torch.float32 else 5e-3
        assert (one.double() - other).norm() < limit * other.norm() + 1e-6
    again = torch.autograd.grad(scores, leaves, grad)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def test_a_choice_is_captured():
    query, sub_keys, core = _case(SHAPES[0], torch.bfloat16)
    expected = op.tucker_topk(query, sub_keys, core, 16)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        op.tucker_topk(query, sub_keys, core, 16)
    torch.cuda.synchronize()

    with torch.cuda.graph(graph):
        found = op.tucker_topk(query, sub_keys, core, 16)
    graph.replay()

    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
