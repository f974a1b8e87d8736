"""Causal linear attention on a GPU: its sums, repeatable, compiled and captured as one operation."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.linear_attention.op import is_fused, linear_attention

pytestmark = [
    pytest.mark.gpu,
    # The oracle's first product in autograd's thread makes that thread's CUDA context.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

CASES = {
    # Batch, heads, seq, widths of key and value, what heads share.
    "performer": (2, 3, 512, 256, 64, None),
    "cosformer": (2, 3, 320, 128, 64, None),
    "ragged": (1, 2, 130, 110, 40, None),
    "linformer scores": (2, 3, 256, 64, 128, 2),
    "linformer mixture": (2, 3, 256, 128, 64, 1),
    "widest": (1, 2, 200, 256, 256, None),
    "narrow": (3, 1, 70, 3, 1, None),
}


def _case(name: str) -> tuple[list[Tensor], list[Tensor]]:
    batch, heads, seq, key_width, value_width, shared = CASES[name]
    torch.manual_seed(0)
    inputs = []
    for index, width in enumerate((key_width, key_width, value_width)):
        x = torch.rand(batch, seq, heads, width, device="cuda").bfloat16().transpose(1, 2)
        inputs.append((x[0, 0] if index == shared else x).detach().requires_grad_())
    grads = [
        torch.randn(batch, heads, seq, value_width, device="cuda").bfloat16(),
        torch.randn(batch, heads, seq, device="cuda"),
    ]
    return inputs, grads


def _both(inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    results = linear_attention(*inputs, weigh=True)
    return [*results, *torch.autograd.grad(results, inputs, grads)]


@pytest.mark.parametrize("name", CASES)
def test_equals_its_sums_with_all_gradients(name, never_waiting):
    inputs, grads = _case(name)
    assert is_fused(*inputs)
    query, key, value = exact = [x.detach().double().requires_grad_() for x in inputs]
    weights = (query @ key.mT).tril()
    expected = (weights @ value, weights.sum(-1))
    expected = [*expected, *torch.autograd.grad(expected, exact, [g.double() for g in grads])]

    first = _both(inputs, grads)
    with never_waiting():
        found = _both(inputs, grads)

    for one, again, other in zip(found, first, expected, strict=True):
        assert torch.equal(one, again)
        # Scores and states are rounded to bf16 before they are read.
        assert (one.double() - other).norm() < 6e-3 * other.norm()


def test_compiled_is_one_operation_of_the_same_numbers():
    inputs, grads = _case("performer")

    def mean(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        mixed, weights = linear_attention(query, key, value, weigh=True)
        assert weights is not None
        return mixed * 1.0, weights * 1.0

    results = torch.compile(mean, fullgraph=True)(*inputs)
    found = [*results, *torch.autograd.grad(results, inputs, grads)]

    for one, other in zip(found, _both(inputs, grads), strict=True):
        assert torch.equal(one, other)
