"""The memory layer against its formula."""

import dataclasses
import math

import pytest
import torch

from workloads.layers.context import Context
from workloads.layers.memory.product_key_memory import MemoryShape, ProductKeyMemory
from workloads.layers.memory.product_keys import LookupShape
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.init import initialise

CONTEXT = Context(tokens=torch.zeros(1, 1, dtype=torch.long))


def _memory(**fields: object) -> tuple[ProductKeyMemory, torch.Tensor]:
    sizes = {"d_model": 6, "n_keys": 5, "n_heads": 2, "knn": 3, "key_dim": 4}
    value_dim, gate = fields.pop("value_dim", 7), fields.pop("gate", "swilu")
    output_bias = fields.pop("output_bias", False)
    lookup = LookupShape(**{**sizes, **fields})
    shape = MemoryShape(lookup=lookup, value_dim=value_dim, gate=gate, output_bias=output_bias)
    table = MemoryTable(lookup.n_slots, value_dim).double()
    memory = ProductKeyMemory(shape, table).double()
    initialise(memory, 0)
    initialise(table, 0)
    return memory, table.weight


def _weights_of_all_slots(memory: ProductKeyMemory, tokens: torch.Tensor) -> torch.Tensor:
    """Weight of every slot in every head, by scoring all of them: (tokens, heads, slots)."""
    lookup = memory.lookup
    queries = tokens @ memory.query.weight.T + memory.query.bias
    if memory.query_norm is not None:
        queries = (queries - queries.mean(0)) / (queries.var(0, correction=0) + 1e-5).sqrt()
        queries = queries * memory.query_norm.gain + memory.query_norm.bias
    queries = queries.view(len(tokens), lookup.n_heads, 2, lookup.key_dim // 2)
    heads = []
    for head in range(lookup.n_heads):
        halves = []
        for half in range(2):
            query = queries[:, head, half]
            keys = memory.sub_keys[half, 0 if lookup.shared_keys else head]
            if memory.score_scale is not None:
                query = query / query.norm(dim=-1, keepdim=True) * memory.score_scale[head]
                keys = keys / keys.norm(dim=-1, keepdim=True)
            halves.append(query @ keys.T)
        scores = (halves[0][:, :, None] + halves[1][:, None, :]).flatten(-2)
        best = scores.topk(lookup.knn)
        weigh = {"softmax": lambda s: s.softmax(-1), "sigmoid": torch.sigmoid, "relu": torch.relu}
        weights = weigh[lookup.score](best.values)
        heads.append(torch.zeros_like(scores).scatter(-1, best.indices, weights))
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize("knn", [3, 25])
@pytest.mark.parametrize("shared_keys", [False, True])
@pytest.mark.parametrize("query_batch_norm", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "relu"])
def test_equals_the_formula_over_all_slots(score, qk_norm, query_batch_norm, shared_keys, knn):
    memory, table = _memory(
        score=score,
        qk_norm=qk_norm,
        query_batch_norm=query_batch_norm,
        shared_keys=shared_keys,
        knn=knn,
    )
    generator = torch.Generator().manual_seed(1)
    torch.nn.init.normal_(memory.query.bias, generator=generator)
    if memory.query_norm is not None:
        torch.nn.init.normal_(memory.query_norm.gain, generator=generator)
        torch.nn.init.normal_(memory.query_norm.bias, generator=generator)
    x = torch.randn(2, 9, 6, dtype=torch.float64, generator=generator)
    tokens = x.view(18, 6)
    expected = torch.einsum("ths,sv->tv", _weights_of_all_slots(memory, tokens), table)
    gate = torch.nn.functional.silu(tokens @ memory.gate.weight.T + memory.gate.bias)
    expected = (expected * gate) @ memory.output.weight.T + memory.output.bias

    torch.testing.assert_close(memory(x, CONTEXT), expected.view(2, 9, 6))


@pytest.mark.parametrize("value_dim", [6, 4])
def test_without_a_gate_it_is_the_bag_projected_where_the_widths_differ(value_dim):
    memory, table = _memory(gate="none", value_dim=value_dim)
    x = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.einsum("ths,sv->tv", _weights_of_all_slots(memory, x), table)
    if value_dim != 6:
        expected = expected @ memory.output.weight.T

    assert (memory.output is None) == (value_dim == 6)
    torch.testing.assert_close(memory(x, CONTEXT), expected)


def _by_hand(memory: ProductKeyMemory, table: list[list[float]], x: list[float]) -> list[float]:
    """The layer's output for one token, number by number, over all slots of all heads."""
    lookup, shape = memory.lookup, memory.shape
    n, half = lookup.n_keys, lookup.key_dim // 2

    def dot(a: list[float], b: list[float]) -> float:
        return sum(one * other for one, other in zip(a, b, strict=True))

    def affine(linear: torch.nn.Module, v: list[float]) -> list[float]:
        rows = linear.weight.tolist()
        added = [0.0] * len(rows) if linear.bias is None else linear.bias.tolist()
        return [dot(row, v) + bias for row, bias in zip(rows, added, strict=True)]

    query, keys = affine(memory.query, x), memory.sub_keys.tolist()
    bag = [0.0] * shape.value_dim
    for head in range(lookup.n_heads):
        first, second = (query[(2 * head + i) * half : (2 * head + i + 1) * half] for i in (0, 1))
        scores = [
            dot(first, keys[0][head][i]) + dot(second, keys[1][head][j])
            for i in range(n)
            for j in range(n)
        ]
        best = sorted(range(n * n), key=lambda slot: -scores[slot])[: lookup.knn]
        total = sum(math.exp(scores[s]) for s in best) + (lookup.score == "softmax_sink")
        for slot in best:
            for column, value in enumerate(table[slot]):
                bag[column] += math.exp(scores[slot]) / total * value
    if shape.gate in ("swilu", "silu"):
        gates = affine(memory.gate, x)
        bag = [b * g / (1 + math.exp(-g)) for b, g in zip(bag, gates, strict=True)]
    out = affine(memory.output, bag) if memory.output is not None else bag
    if shape.gate == "scalar":
        (g,) = affine(memory.gate, x)
        out = [o / (1 + math.exp(-g)) for o in out]
    return out


@pytest.mark.parametrize("score", ["softmax", "softmax_sink"])
@pytest.mark.parametrize(
    "fields",
    [
        {"gate": "swilu", "value_dim": 6},
        {"gate": "silu", "value_dim": 6},
        {"gate": "silu", "value_dim": 7, "output_bias": True},
        {"gate": "scalar", "value_dim": 6},
        {"gate": "scalar", "value_dim": 4, "output_bias": True},
        {"gate": "none", "value_dim": 4, "output_bias": True},
    ],
    ids=str,
)
def test_gates_and_the_sink_by_hand(fields, score):
    memory, table = _memory(score=score, **fields)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in memory.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, generator=generator)
    x = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    expected = [_by_hand(memory, table.tolist(), token) for token in x.tolist()]

    assert (memory.output is None) == (fields["gate"] != "swilu" and fields["value_dim"] == 6)
    torch.testing.assert_close(memory(x, CONTEXT), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("key_init", "bound"), [("key_dim", 64**-0.5), ("half_key_dim", 32**-0.5)])
def test_sub_keys_begin_uniform_within_their_bound(key_init, bound):
    memory, _ = _memory(key_dim=64, n_keys=100, key_init=key_init)

    assert memory.sub_keys.abs().max() <= bound
    assert memory.sub_keys.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


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

    memory(x, dataclasses.replace(CONTEXT, record_usage=True))
    assert {"usage", "kl", "effective_rows"} <= memory.usage.report().keys()
