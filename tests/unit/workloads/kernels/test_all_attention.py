"""All-attention: fused kernels against the plain form, and that against softmax."""

import pytest
import torch
from torch import Tensor, nn

from workloads.kernels.all_attention import fused, reference
from workloads.kernels.all_attention.op import all_attention

SHAPES = [
    # batch, heads, positions, columns, persistent vectors
    (2, 3, 37, 6, 19),
    (1, 1, 1, 2, 1),
    (3, 2, 65, 8, 1),
    (1, 2, 16, 64, 300),
    (2, 2, 7, 5, 4),
]


def _arguments(
    batch: int, heads: int, seq: int, d_head: int, n: int, dtype: torch.dtype
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)

    # Heads come after positions in memory, as a projection leaves them.
    key_value = [random(batch, seq, heads, d_head).transpose(1, 2) for _ in range(4)]
    return [*key_value, random(heads, n, d_head), random(heads, n, d_head)]


def test_reference_is_one_softmax_over_all_scores():
    query, key, value, own, keys, values = _arguments(2, 3, 5, 4, 6, torch.float64)
    found = reference.all_attention(query, key, value, own, keys, values)

    for b in range(2):
        for h in range(3):
            for t in range(5):
                scores = [query[b, h, t] @ key[b, h, j] / 2 for j in range(t + 1)]
                scores += [own[b, h, t] @ keys[h, i] / 2 for i in range(6)]
                weights = torch.stack(scores).exp()
                mixed = (weights / weights.sum()) @ torch.cat((value[b, h, : t + 1], values[h]))
                torch.testing.assert_close(found[b, h, t], mixed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 3e-2)],
    ids=["float64", "float32", "bfloat16"],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_equals_the_reference_with_gradients(shape, dtype, tolerance):
    arguments = _arguments(*shape, dtype)
    assert fused.applies(arguments[0], arguments[1])
    found_in = [x.detach().requires_grad_() for x in arguments]
    expected_in = [x.detach().double().requires_grad_() for x in arguments]
    found, expected = fused.all_attention(*found_in), reference.all_attention(*expected_in)
    gradient = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(dtype)

    found.backward(gradient)
    expected.backward(gradient.double())

    assert found.dtype == dtype
    pairs = [
        (found, expected),
        *((x.grad, y.grad) for x, y in zip(found_in, expected_in, strict=True)),
    ]
    for x, y in pairs:
        torch.testing.assert_close(x.double(), y, rtol=tolerance, atol=tolerance)


def test_fused_has_the_gradient_of_what_it_computes():
    arguments = [x.requires_grad_() for x in _arguments(2, 2, 4, 3, 5, torch.float64)]

    assert torch.autograd.gradcheck(fused.all_attention, arguments)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_the_operation_is_as_torch_asks(shape):
    arguments = [x.requires_grad_() for x in _arguments(*shape, torch.float32)]

    torch.library.opcheck(torch.ops.memscale.all_attention.default, (*arguments, 0.4))


def test_queries_may_be_fewer_than_keys():
    """The last positions of a sequence, as decoding asks for them."""
    query, key, value, own, keys, values = _arguments(2, 3, 9, 4, 6, torch.float64)
    whole = all_attention(query, key, value, own, keys, values)

    assert not fused.applies(query[:, :, 6:], key)
    last = all_attention(query[:, :, 6:], key, value, own[:, :, 6:], keys, values)

    torch.testing.assert_close(last, whole[:, :, 6:], rtol=1e-12, atol=1e-12)


def test_persistent_vectors_far_below_all_others_leave_torchs_causal_attention():
    query, key, value, own, keys, values = _arguments(2, 3, 9, 4, 6, torch.float64)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    for form in (fused, reference):
        silent = form.all_attention(
            query, key, value, torch.ones_like(own), torch.full_like(keys, -1e4), values
        )
        torch.testing.assert_close(silent, expected, rtol=1e-12, atol=1e-12)


def test_large_scores_on_either_side_stay_finite():
    arguments = _arguments(2, 2, 8, 4, 3, torch.float32)
    for which in (0, 3):
        large = [200.0 * x if index == which else x for index, x in enumerate(arguments)]
        found = fused.all_attention(*large)
        expected = reference.all_attention(*(x.double() for x in large))
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
