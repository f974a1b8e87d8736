"""The memory layer against its formula, and what it reports of its use."""

import math

import pytest
import torch

from workloads.layers.initialise import initialise
from workloads.layers.product_key_memory import (
    MemoryShape,
    MemoryTable,
    MemoryUsage,
    ProductKeyMemory,
)


def _memory(**fields: object) -> tuple[ProductKeyMemory, torch.Tensor]:
    sizes = {
        "d_model": 6,
        "n_keys": 5,
        "n_heads": 2,
        "knn": 3,
        "key_dim": 4,
        "value_dim": 7,
        "qk_norm": False,
    }
    shape = MemoryShape(**{**sizes, **fields})
    memory, table = (
        ProductKeyMemory(shape).double(),
        MemoryTable(shape.n_slots, shape.value_dim).double(),
    )
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

    torch.testing.assert_close(memory(x, table), expected)


def test_gradients_by_finite_differences():
    memory, table = _memory(qk_norm=True, d_model=3, n_keys=4, value_dim=2, key_dim=4)
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = (x.requires_grad_(), table, *memory.parameters())
    memory.eval()

    assert torch.autograd.gradcheck(lambda x, table, *_: memory(x, table), inputs)


def test_reading_the_same_table_twice_adds_the_gradients():
    memory, table = _memory()
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    once = torch.autograd.grad(memory(x, table).sum(), table)[0]

    twice = torch.autograd.grad(memory(x, table).sum() + memory(x, table).sum(), table)[0]

    torch.testing.assert_close(twice, 2 * once)


def test_usage_of_even_reading():
    usage = MemoryUsage(8)

    usage.record(torch.arange(8).view(4, 2), torch.full((4, 2), 0.5))

    assert usage.report() == {
        "usage": 1.0,
        "kl": pytest.approx(0.0, abs=1e-6),
        "effective_rows": 2.0,
    }


def test_usage_of_one_slot_only():
    usage = MemoryUsage(8)

    usage.record(torch.full((4, 2), 3), torch.tensor([[1.0, 0.0]]).expand(4, 2))
    report = usage.report()

    assert report["usage"] == 1 / 8
    assert report["kl"] == pytest.approx(math.log(8))
    assert report["effective_rows"] == 1.0


def test_a_slot_read_with_a_vanishing_weight_counts_as_read():
    usage = MemoryUsage(2)

    usage.record(torch.tensor([[0, 1]]), torch.tensor([[1.0, 1e-30]]))

    assert usage.report()["usage"] == 1.0


def test_report_starts_anew_and_is_empty_when_nothing_was_read():
    usage = MemoryUsage(8)
    usage.record(torch.tensor([[0]]), torch.ones(1, 1))
    usage.report()

    assert usage.report() == {}


def test_order_and_grouping_of_batches_do_not_change_the_counts():
    generator = torch.Generator().manual_seed(0)
    ids, weights = (
        torch.randint(8, (30, 4), generator=generator),
        torch.rand(30, 4, generator=generator),
    )
    whole, parts = MemoryUsage(8), MemoryUsage(8)

    whole.record(ids, weights)
    for rows in (slice(20, 30), slice(0, 20)):
        parts.record(ids[rows], weights[rows])

    assert torch.equal(whole.mass, parts.mass)


def test_only_training_is_recorded():
    memory, table = _memory()

    memory.eval()(torch.zeros(1, 6, dtype=torch.float64), table)
    assert memory.usage.report() == {}

    memory.train()(torch.zeros(1, 6, dtype=torch.float64), table)
    assert memory.usage.report().keys() == {"usage", "kl", "effective_rows"}
