"""Sums by random features on a GPU: plain torch's, repeatable, compiled as one operation."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.random_feature_attention.op import is_fused, random_feature_sums

pytestmark = [
    pytest.mark.gpu,
    # The oracle's first product in autograd's thread makes that thread's CUDA context.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

CASES = {
    # Batch, heads, seq, d_head, features.
    "30m": (2, 3, 512, 64, 256),
    "ragged": (1, 2, 130, 40, 110),
    "narrow": (3, 1, 70, 16, 44),
    "few": (2, 2, 33, 8, 3),
}
EPS = 1e-6


def _case(name: str) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    batch, heads, seq, width, n_features = CASES[name]
    torch.manual_seed(0)
    packed = torch.randn(batch, seq, 3, heads, width, device="cuda").bfloat16()
    inputs = [x.detach().requires_grad_() for x in packed.permute(2, 0, 3, 1, 4)]
    vectors = torch.randn(n_features, width, device="cuda").bfloat16()
    grads = [
        torch.randn(batch, heads, seq, width, device="cuda").bfloat16(),
        torch.randn(batch, heads, seq, device="cuda"),
    ]
    return inputs, vectors, grads


def _both(inputs: list[Tensor], vectors: Tensor, grads: list[Tensor]) -> list[Tensor]:
    results = random_feature_sums(*inputs, vectors, eps=EPS)
    return [*results, *torch.autograd.grad(results, inputs, grads)]


@pytest.mark.parametrize("name", CASES)
def test_equals_plain_torch_with_all_gradients(name, never_waiting):
    inputs, vectors, grads = _case(name)
    assert is_fused(*inputs, vectors)
    query, key, value = exact = [x.detach().double().requires_grad_() for x in inputs]
    y, z = (x / query.shape[-1] ** 0.25 for x in (query, key))
    exponents = y @ vectors.double().T
    of_query = (exponents - exponents.detach().amax(-1, keepdim=True)).exp() + EPS
    of_key = (z @ vectors.double().T - z.square().sum(-1, keepdim=True) / 2).exp() + EPS
    weights = (of_query @ of_key.mT).tril()
    expected = (weights @ value, weights.sum(-1))
    expected = [*expected, *torch.autograd.grad(expected, exact, [g.double() for g in grads])]

    first = _both(inputs, vectors, grads)
    with never_waiting():
        found = _both(inputs, vectors, grads)

    for one, again, other in zip(found, first, expected, strict=True):
        assert torch.equal(one, again)
        # Features, scores, slopes and states are rounded to bf16 before they are read.
        assert (one.double() - other).norm() < 1e-2 * other.norm()


def test_compiled_is_one_operation_of_the_same_numbers():
    inputs, vectors, grads = _case("30m")

    def sums(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        found, weights = random_feature_sums(query, key, value, vectors, eps=EPS)
        return found * 1.0, weights * 1.0

    results = torch.compile(sums, fullgraph=True)(*inputs)
    found = [*results, *torch.autograd.grad(results, inputs, grads)]

    for one, other in zip(found, _both(inputs, vectors, grads), strict=True):
        assert torch.equal(one, other)
