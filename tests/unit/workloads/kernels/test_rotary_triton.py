"""The gradient of rotary positions, in plain torch and by Triton's interpreter, against autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.rotary import reference
from workloads.kernels.rotary.op import rotary_gradient
from workloads.layers.mixers.attention import rotate, rotation_table

triton = pytest.importorskip(
    "workloads.kernels.rotary.triton", reason="a CPU build of torch comes without Triton"
)

INTERPRETED = settings.get_profile("interpreted")


@pytest.fixture
def _interpreted(interpreted, poisoned):
    interpreted(triton)


def _table(batch: int, seq: int, columns: int, *, per_sequence: bool) -> Tensor:
    positions = None
    if per_sequence:
        positions = torch.randint(
            3 * seq, (batch, seq), generator=torch.Generator().manual_seed(seq)
        )
    device = torch.device("cpu")
    return rotation_table(seq, columns, base=50.0, device=device, positions=positions)


def _gradients(
    batch: int, seq: int, heads: tuple[int, int], d_head: int, layout: str
) -> list[Tensor]:
    """Draw gradients of queries, keys and values [batch, seq, heads, d_head], stored as told."""
    generator = torch.Generator().manual_seed(d_head)

    def draw(n_heads: int) -> Tensor:
        sizes = {"batch": batch, "seq": seq, "heads": n_heads, "d_head": d_head}
        order = layout.split()
        grad = torch.randn([sizes[name] for name in order], generator=generator)
        return grad.permute([order.index(name) for name in sizes])

    return [draw(n) for n in (heads[0], heads[1], heads[1])]


def _autograd(grads: list[Tensor], rotation: Tensor) -> Tensor:
    """Return the gradient that autograd makes in float64."""
    query, key, _ = exact = [grad.double() for grad in grads]
    heads = torch.zeros_like(torch.cat(exact, dim=2), requires_grad=True)
    n_heads, n_kv_heads = query.shape[2], key.shape[2]
    parts = heads.split([n_heads, n_kv_heads, n_kv_heads], dim=2)
    rotated = [rotate(parts[0], rotation.double()), rotate(parts[1], rotation.double()), parts[2]]
    (found,) = torch.autograd.grad(rotated, heads, exact)
    return found


CASES = {
    "batch": st.integers(1, 2),
    "seq": st.sampled_from([1, 3, 40]),
    "heads": st.sampled_from([(1, 1), (4, 4), (5, 1), (6, 2)]),
    # Width of a head, and columns that turn.
    "widths": st.sampled_from([(2, 2), (12, 12), (16, 16), (16, 4), (24, 6), (40, 38)]),
    "layout": st.sampled_from(
        ["batch seq heads d_head", "batch heads seq d_head", "seq batch heads d_head"]
    ),
    "per_sequence": st.booleans(),
}


@INTERPRETED
@given(**CASES)
@pytest.mark.usefixtures("_interpreted")
def test_kernel_equals_autograd(batch, seq, heads, widths, layout, per_sequence):
    rotation = _table(batch, seq, widths[1], per_sequence=per_sequence)
    grads = _gradients(batch, seq, heads, widths[0], layout)

    found = triton.gradient(*grads, rotation)

    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), _autograd(grads, rotation), rtol=1e-6, atol=1e-6)


@given(**CASES)
def test_reference_equals_autograd(batch, seq, heads, widths, layout, per_sequence):
    rotation = _table(batch, seq, widths[1], per_sequence=per_sequence)
    grads = [grad.double() for grad in _gradients(batch, seq, heads, widths[0], layout)]

    found = reference.gradient(*grads, rotation)

    torch.testing.assert_close(found, _autograd(grads, rotation), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("rounded_before", [False, True])
def test_kernel_rounds_as_the_reference(rounded_before):
    rotation = _table(2, 37, 16, per_sequence=False)
    grads = [grad.half() for grad in _gradients(2, 37, (3, 1), 20, "batch heads seq d_head")]

    found = triton.gradient(*grads, rotation.half() if rounded_before else rotation)

    # A fused multiplication and addition may round the other way.
    expected = reference.gradient(*grads, rotation)
    torch.testing.assert_close(found, expected, rtol=2**-10, atol=0)
    assert (found != expected).double().mean() < 1e-3


@pytest.mark.usefixtures("_interpreted")
def test_gradients_without_neighbouring_columns():
    rotation = _table(2, 5, 8, per_sequence=False)
    grads = [torch.ones(()).expand(2, 5, n, 8) for n in (3, 1, 1)]

    torch.testing.assert_close(
        triton.gradient(*grads, rotation), reference.gradient(*grads, rotation)
    )


@pytest.mark.usefixtures("_interpreted")
def test_no_positions():
    grads = [torch.ones(2, 0, n, 8) for n in (3, 1, 1)]

    assert triton.gradient(*grads, torch.ones(2, 0, 1, 8)).shape == (2, 0, 5, 8)


def test_operation_of_torch():
    rotation = _table(2, 5, 8, per_sequence=False)
    grads = _gradients(2, 5, (4, 2), 12, "batch heads seq d_head")

    torch.library.opcheck(torch.ops.memscale.rotary_gradient.default, (*grads, rotation))

    assert torch.equal(rotary_gradient(*grads, rotation), reference.gradient(*grads, rotation))
