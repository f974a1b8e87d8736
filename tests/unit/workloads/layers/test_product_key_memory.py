"""The memory layer against its formula."""

import dataclasses

import pytest
import torch

from workloads.layers.context import Context
from workloads.layers.initialise import initialise
from workloads.layers.memory_table import MemoryTable
from workloads.layers.product_key_memory import MemoryShape, ProductKeyMemory
from workloads.layers.product_keys import LookupShape

CONTEXT = Context(tokens=torch.zeros(1, 1, dtype=torch.long))


def _memory(**fields: object) -> tuple[ProductKeyMemory, torch.Tensor]:
    sizes = {"d_model": 6, "n_keys": 5, "n_heads": 2, "knn": 3, "key_dim": 4}
    value_dim = fields.pop("value_dim", 7)
    lookup = LookupShape(**{**sizes, **fields})
    table = MemoryTable(lookup.n_slots, value_dim).double()
    memory = ProductKeyMemory(MemoryShape(lookup=lookup, value_dim=value_dim), table).double()
    initialise(memory, 0)
    initialise(table, 0)
    return memory, table.weight


@pytest.mark.parametrize("qk_norm", [False, True])
def test_equals_the_formula_over_all_slots(qk_norm):
    memory, table = _memory(qk_norm=qk_norm)
    torch.nn.init.normal_(memory.query.bias, generator=torch.Generator().manual_seed(1))
    x = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.zeros(2, 9, 7, dtype=torch.float64)
    queries = (x @ memory.query.weight.T + memory.query.bias).view(2, 9, 2, 2, 2)
    for head in range(2):
        halves = []
        for half in range(2):
            query, keys = queries[:, :, head, half], memory.sub_keys[half, head]
            if memory.score_scale is not None:
                query = query / query.norm(dim=-1, keepdim=True) * memory.score_scale[head]
                keys = keys / keys.norm(dim=-1, keepdim=True)
            halves.append(query @ keys.T)
        scores = (halves[0][..., :, None] + halves[1][..., None, :]).flatten(-2)
        best = scores.topk(3)
        weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
        expected = expected + weights @ table
    gate = torch.nn.functional.silu(x @ memory.gate.weight.T + memory.gate.bias)
    expected = (expected * gate) @ memory.output.weight.T + memory.output.bias

    torch.testing.assert_close(memory(x, CONTEXT), expected)


def test_gradients_by_finite_differences():
    memory, table = _memory(qk_norm=True, d_model=3, n_keys=4, value_dim=2, key_dim=4)
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = (x.requires_grad_(), table, *memory.parameters())
    memory.eval()

    assert torch.autograd.gradcheck(lambda x, *_: memory(x, CONTEXT), inputs)


def test_reading_the_same_table_twice_adds_the_gradients():
    memory, table = _memory()
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    once = torch.autograd.grad(memory(x, CONTEXT).sum(), table)[0]

    twice = torch.autograd.grad(memory(x, CONTEXT).sum() + memory(x, CONTEXT).sum(), table)[0]

    torch.testing.assert_close(twice, 2 * once)


def test_what_is_observed_is_recorded_and_nothing_else():
    memory, _ = _memory()
    x = torch.zeros(1, 6, dtype=torch.float64)

    memory(x, CONTEXT)
    assert memory.usage.report() == {}

    memory(x, dataclasses.replace(CONTEXT, observe=True))
    assert {"usage", "kl", "effective_rows"} <= memory.usage.report().keys()
