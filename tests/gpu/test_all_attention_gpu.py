"""All-attention on CUDA: the fused kernels against the plain form in float64."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.all_attention import fused, reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 37, 6, 19), (2, 4, 128, 64, 300), (3, 2, 65, 8, 1), (1, 2, 200, 128, 77)],
    ids=str,
)
def test_equals_the_reference_with_gradients(shape, dtype, tolerance):
    """Largest difference over the largest number: odd widths and lengths, and fewer vectors than a block has."""
    torch.set_float32_matmul_precision("highest")
    batch, heads, seq, d_head, n = shape
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to("cuda", dtype)

    arguments = [random(batch, seq, heads, d_head).transpose(1, 2) for _ in range(4)]
    arguments += [random(heads, n, d_head) for _ in range(2)]
    assert fused.applies(arguments[0], arguments[1])
    found_in = [x.detach().requires_grad_() for x in arguments]
    expected_in = [x.detach().double().requires_grad_() for x in arguments]
    found, expected = fused.all_attention(*found_in), reference.all_attention(*expected_in)
    gradient = random(batch, heads, seq, d_head)

    found.backward(gradient)
    expected.backward(gradient.double())

    pairs = [
        (found, expected),
        *((x.grad, y.grad) for x, y in zip(found_in, expected_in, strict=True)),
    ]
    for x, y in pairs:
        assert (x.double() - y).abs().max() <= tolerance * y.abs().max()
