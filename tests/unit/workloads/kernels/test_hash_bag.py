"""The look-up by signs equals its definition, forward and backward."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.hash_bag.op import hash_bag
from workloads.kernels.sign_hash.op import sign_hash
from workloads.kernels.weighted_bag.op import weighted_bag


def _case(
    dtype: torch.dtype, shape: tuple[int, int, int, int] = (6, 3, 4, 5)
) -> tuple[Tensor, Tensor, Tensor]:
    """Table, numbers and the output's gradient for a shape of tokens, chunks, bits and width."""
    tokens, chunks, bits, width = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=dtype, generator=generator)

    table = normal(chunks << bits, width).requires_grad_()
    return table, normal(tokens, chunks, bits).requires_grad_(), normal(tokens, width)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (6, 3, 4, 5), (0, 2, 3, 4), (33, 7, 2, 16)])
@pytest.mark.parametrize("times_l1", [False, True])
def test_is_a_sum_of_one_row_of_every_table(shape, times_l1):
    table, z, grad = _case(torch.float64, shape)
    _, chunks, bits, width = shape
    code = ((z >= 0) * (1 << torch.arange(bits - 1, -1, -1))).sum(dim=-1)
    score = (2 * z.abs() / 0.7).sigmoid().prod(dim=-1)
    score = score * z.abs().sum(dim=-1) if times_l1 else score
    tables = table.view(chunks, 1 << bits, width)
    expected = sum(score[:, k, None] * tables[k][code[:, k]] for k in range(chunks))
    assert isinstance(expected, Tensor)

    found, rows, scores = hash_bag(table, z, temperature=0.7, times_l1=times_l1)

    assert torch.equal(rows.long(), code + torch.arange(chunks) * 2**bits)
    torch.testing.assert_close(scores, score, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(found, (table, z), grad),
        torch.autograd.grad(expected, (table, z), grad),
        rtol=1e-12,
        atol=1e-12,
    )


def test_is_bit_for_bit_sign_hash_and_weighted_bag():
    table, z, grad = _case(torch.float32)
    ids, weights = sign_hash(z, temperature=1.0, times_l1=True)
    expected = weighted_bag(table, ids, weights)
    expected_grads = torch.autograd.grad(expected, (table, z), grad)

    found, rows, scores = hash_bag(table, z, temperature=1.0, times_l1=True)

    for one, other in zip((found, rows, scores), (expected, ids, weights), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(
        torch.autograd.grad(found, (table, z), grad), expected_grads, strict=True
    ):
        assert torch.equal(one, other)


def test_tables_side_by_side_are_read_as_one():
    """Queries, keys and values: one hash, and the gradient of z is the sum of all three."""
    table, z, _ = _case(torch.float64, (6, 3, 4, 15))
    grads = torch.randn(3, 6, 5, dtype=torch.float64)
    alone = [hash_bag(t, z, temperature=1.0, times_l1=False)[0] for t in table.split(5, dim=1)]
    expected = torch.autograd.grad(alone, (table, z), list(grads))

    together = hash_bag(table, z, temperature=1.0, times_l1=False)[0]
    found = torch.autograd.grad(together, (table, z), torch.cat(list(grads), dim=1))

    assert torch.equal(together, torch.cat(alone, dim=1))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_scores_of_a_16_bit_table_are_single():
    table, z, grad = _case(torch.float32)
    narrow = table.detach().bfloat16().requires_grad_()

    found, _, scores = hash_bag(narrow, z, temperature=1.0, times_l1=False)
    table_grad, z_grad = torch.autograd.grad(found, (narrow, z), grad.bfloat16())

    assert (found.dtype, scores.dtype, table_grad.dtype, z_grad.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.bfloat16,
        torch.float32,
    )
    expected = hash_bag(narrow.float(), z, temperature=1.0, times_l1=False)[0]
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)


def test_only_what_wants_a_gradient_gets_one():
    table, z, _ = _case(torch.float32)

    hash_bag(table.detach(), z, temperature=1.0, times_l1=False)[0].sum().backward()
    assert table.grad is None
    assert z.grad is not None

    z.grad = None
    hash_bag(table, z.detach(), temperature=1.0, times_l1=False)[0].sum().backward()
    assert table.grad is not None
    assert z.grad is None


def test_gradients_by_finite_differences():
    table, z, _ = _case(torch.float64, (3, 2, 2, 3))

    assert torch.autograd.gradcheck(
        lambda t, x: hash_bag(t, x, temperature=0.7, times_l1=True)[0], (table, z)
    )


def test_is_a_sound_custom_operation():
    table, z, _ = _case(torch.float32)

    torch.library.opcheck(torch.ops.memscale.hash_bag.default, (table, z, 0.7, True))


def test_gradients_of_the_operation_are_those_of_its_definition():
    """Through the output, through the scores, and through both."""
    table, z, grad = _case(torch.float64)
    more = torch.randn(6, 3, dtype=torch.float64)
    expected = hash_bag(table, z, temperature=0.7, times_l1=True)

    found = torch.ops.memscale.hash_bag(table, z, 0.7, True)

    assert all(torch.equal(found[i], expected[j]) for i, j in enumerate((0, 2, 1)))
    for wanted in (table, z):
        for outputs, grads in (((0,), (grad,)), ((0, 1), (grad, more))):
            torch.testing.assert_close(
                torch.autograd.grad([found[i] for i in outputs], wanted, grads, retain_graph=True),
                torch.autograd.grad(
                    [expected[(0, 2)[i]] for i in outputs], wanted, grads, retain_graph=True
                ),
            )
    torch.testing.assert_close(
        torch.autograd.grad(found[1], z, more), torch.autograd.grad(expected[2], z, more)
    )


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # dynamo's own
def test_compile_keeps_one_graph():
    table, z, grad = _case(torch.float32)

    def output(t: Tensor, x: Tensor) -> Tensor:
        return hash_bag(t, x * 2, temperature=1.0, times_l1=True)[0]

    expected = torch.autograd.grad(output(table, z), (table, z), grad)
    compiled = torch.compile(output, backend="aot_eager", fullgraph=True)

    found = torch.autograd.grad(compiled(table, z), (table, z), grad)

    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
