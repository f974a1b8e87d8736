"""Gradients of rotary positions on CUDA: against float64, and within a compiled attention block."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.rotary import reference
from workloads.kernels.rotary.op import rotary_gradient
from workloads.layers.context import Context
from workloads.layers.mixers import attention as module
from workloads.layers.mixers.attention import AttentionShape, CausalAttention, rotation_table
from workloads.layers.modules.init import initialise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
CUDA = torch.device("cuda")
CASES = {
    # Batch, seq, heads of queries and of keys, head width, turning columns.
    "30m": (4, 512, 8, 8, 64, 64),
    "1.3b": (2, 2048, 16, 16, 128, 128),
    "grouped": (3, 130, 6, 2, 128, 128),
    "quarter": (2, 77, 5, 1, 64, 16),
    "odd": (1, 33, 3, 3, 40, 38),
    "one": (1, 1, 1, 1, 16, 16),
}
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("by_head", [False, True], ids=["positions first", "heads first"])
@pytest.mark.parametrize("name", CASES)
def test_equals_float64(name, by_head, dtype, never_waiting):
    batch, seq, n_heads, n_kv_heads, d_head, columns = CASES[name]
    torch.manual_seed(0)

    def draw(heads: int) -> Tensor:
        if by_head:  # as cuDNN's attention may leave them
            shape = (batch, heads, seq, d_head)
            return torch.randn(shape, device=CUDA).to(dtype).transpose(1, 2)
        return torch.randn(batch, seq, heads, d_head, device=CUDA).to(dtype)

    grads = [draw(n) for n in (n_heads, n_kv_heads, n_kv_heads)]
    positions = torch.randint(3 * seq, (batch, seq), device=CUDA) if by_head else None
    rotation = rotation_table(seq, columns, base=1e4, device=CUDA, positions=positions)
    expected = reference.gradient(*(grad.double() for grad in grads), rotation.to(dtype))

    rotary_gradient(*grads, rotation.to(dtype))
    with never_waiting():
        found = rotary_gradient(*grads, rotation.to(dtype))

    assert found.is_contiguous()
    error = (found.double() - expected).abs()
    assert (error <= TOLERANCES[dtype] * expected.abs() + 1e-6).all()
    assert torch.equal(found, rotary_gradient(*grads, rotation))


def test_compiled_block_has_the_gradients_of_the_plain_one(monkeypatch):
    shape = AttentionShape(d_model=256, n_heads=4, n_kv_heads=2)
    block = CausalAttention(shape, norm_eps=1e-5).to(CUDA)
    initialise(block, 0)
    torch.manual_seed(0)
    x = torch.randn(2, 200, 256, device=CUDA, requires_grad=True)
    grad = torch.randn(2, 200, 256, device=CUDA).bfloat16()
    rotation = rotation_table(200, 64, base=1e4, device=CUDA)
    context = Context(tokens=torch.zeros(2, 200, dtype=torch.long, device=CUDA), rotation=rotation)

    def gradients(*, compiled: bool) -> list[Tensor]:
        torch.compiler.reset()
        call = torch.compile(block, fullgraph=True) if compiled else block
        with torch.autocast("cuda", torch.bfloat16):
            output = call(x, context)
        return [output, *torch.autograd.grad(output, [x, *block.parameters()], grad)]

    found = [gradients(compiled=True), gradients(compiled=False)]
    monkeypatch.setattr(module, "uses_triton", lambda heads: False)
    plain = [gradients(compiled=True), gradients(compiled=False)]

    assert torch.equal(found[1][0], plain[1][0])
    for mine in found:
        for one, other in zip(mine, plain[1], strict=True):
            assert other.any()
            assert (one.double() - other.double()).norm() <= 2e-2 * other.double().norm()
