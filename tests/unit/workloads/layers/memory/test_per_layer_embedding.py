"""Scales of per-layer embeddings, against equations for one token and layer."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from workloads.layers.context import Context
from workloads.layers.memory.per_layer_embedding import (
    PER_LAYER_INPUTS,
    PerLayerGate,
    PerLayerInputs,
    PerLayerShape,
)
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.init import initialise

D, P, LAYERS, VOCAB_SIZE = 6, 4, 3, 9
# Large, so that a factor before the norm shows.
EPS = 0.1
SHAPE = PerLayerShape(d_model=D, n_layers=LAYERS, width=P)


def _inputs() -> PerLayerInputs:
    table = MemoryTable(VOCAB_SIZE, LAYERS * P, std=1.0).double()
    inputs = PerLayerInputs(SHAPE, table, norm_eps=EPS).double()
    initialise(table, 0)
    initialise(inputs, 0)
    with torch.no_grad():
        inputs.norm.gain.copy_(torch.tensor([1.0, 2.0, 0.5, 3.0]))
    return inputs


def _case() -> tuple[Tensor, Tensor, Context]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB_SIZE, (2, 5), generator=generator)
    embedded = torch.randn(2, 5, D, dtype=torch.float64, generator=generator)
    return tokens, embedded, Context(tokens=tokens)


def _rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean() + EPS) ** 0.5 * gain


def _gemma(
    inputs: PerLayerInputs,
    tokens: Tensor,
    embedded: Tensor,
    *,
    row_scale: float = 2.0,  # sqrt(4)
    embedding_scale: float = 6**0.5,
    projection_scale: float = 6**-0.5,
    sum_scale: float = 2**-0.5,
) -> Tensor:
    result = torch.zeros(*tokens.shape, LAYERS, P, dtype=torch.float64)
    for b, s in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        row = inputs.table.module.weight[tokens[b, s]] * row_scale
        projected = inputs.projection.weight @ (embedded[b, s] * embedding_scale) * projection_scale
        for layer in range(LAYERS):
            mine = slice(layer * P, (layer + 1) * P)
            context = _rms_norm(projected[mine], inputs.norm.gain)
            result[b, s, layer] = (row[mine] + context) * sum_scale
    return result.detach()


def test_what_layers_read_has_all_of_gemmas_scales():
    inputs, (tokens, embedded, context) = _inputs(), _case()

    found = inputs(embedded, tokens, context)

    torch.testing.assert_close(found, _gemma(inputs, tokens, embedded))


@pytest.mark.parametrize("scale", ["row_scale", "embedding_scale", "projection_scale", "sum_scale"])
def test_each_scale_matters(scale):
    inputs, (tokens, embedded, context) = _inputs(), _case()
    without: dict[str, Any] = {scale: 1.0}

    found = inputs(embedded, tokens, context)

    assert not torch.allclose(found, _gemma(inputs, tokens, embedded, **without), rtol=0.02)


def test_a_layer_adds_the_norm_of_its_gated_slice():
    inputs, (tokens, embedded, context) = _inputs(), _case()
    gate = PerLayerGate(SHAPE, inputs, layer=1, norm_eps=EPS).double()
    initialise(gate, 0)
    x = embedded.flip(0)
    context.shared[PER_LAYER_INPUTS] = inputs(embedded, tokens, context)

    found = gate(x, context)

    for b, s in [(0, 0), (1, 3)]:
        gated = functional.gelu(gate.gate.weight @ x[b, s], approximate="tanh")
        mine = gate.output.weight @ (gated * context.shared[PER_LAYER_INPUTS][b, s, 1])
        torch.testing.assert_close(found[b, s], _rms_norm(mine, gate.norm.gain))


def test_both_halves_begin_with_variance_one():
    shape = PerLayerShape(d_model=64, n_layers=4, width=32)
    # As the architecture makes it.
    table = MemoryTable(500, shape.all_widths, std=32**-0.5)
    inputs = PerLayerInputs(shape, table, norm_eps=1e-5)
    initialise(table, 0)
    initialise(inputs, 0)
    tokens = torch.arange(500)[None]
    embedded = torch.randn(1, 500, 64, generator=torch.Generator().manual_seed(0)) / 8
    context = Context(tokens=tokens)

    both = inputs(embedded, tokens, context)
    with torch.no_grad():
        inputs.norm.gain.zero_()
    row = inputs(embedded, tokens, context)

    assert (row * 2**0.5).std().item() == pytest.approx(1.0, rel=0.02)
    assert ((both - row) * 2**0.5).std().item() == pytest.approx(1.0, rel=0.02)
    assert both.std().item() == pytest.approx(1.0, rel=0.02)


def test_gradients_reach_the_rows_of_the_tokens_and_no_others():
    inputs, (tokens, embedded, context) = _inputs(), _case()

    inputs(embedded, tokens, context).square().sum().backward()

    read = inputs.table.module.weight.grad.abs().sum(dim=1) > 0
    assert read.nonzero().flatten().tolist() == sorted(set(tokens.flatten().tolist()))


def test_gradients_by_finite_differences():
    inputs, (tokens, embedded, context) = _inputs(), _case()
    gate = PerLayerGate(SHAPE, inputs, layer=1, norm_eps=EPS).double()
    initialise(gate, 0)

    def output(embedded: Tensor) -> Tensor:
        context.shared[PER_LAYER_INPUTS] = inputs(embedded, tokens, context)
        added: Tensor = gate(embedded, context)
        return added

    assert torch.autograd.gradcheck(output, (embedded.requires_grad_(),), fast_mode=True)
