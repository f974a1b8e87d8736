"""Layers that choose their rows by signs."""

import pytest
import torch
from torch import Tensor

from workloads.accounting.counts import distinct_rows
from workloads.layers.context import Context
from workloads.layers.memory.hash_memory import HashMemory, HashShape
from workloads.layers.modules.init import initialise

SHAPE = HashShape(n_chunks=3, bits=2, width=5, score="prob")


def _layer(shape: HashShape = SHAPE, *, std: float = 1.0) -> HashMemory:
    layer = HashMemory(shape, std=std)
    initialise(layer, 0)
    return layer


def _context(*, record_usage: bool = False) -> Context:
    return Context(tokens=torch.zeros(2, 4, dtype=torch.long), record_usage=record_usage)


def _input(width: int) -> Tensor:
    return torch.randn(2, 4, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("score", ["prob", "l1_prob"])
def test_is_the_sum_of_one_row_of_every_table(score):
    shape = HashShape(n_chunks=3, bits=2, width=5, score=score, temperature=0.7)
    layer, x = _layer(shape), _input(6)
    tables = layer.table.weight.view(3, 4, 5)

    found = layer(x, _context())

    for place in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        expected = layer.bias.clone()
        for table, chunk in zip(tables, x[tuple(place)].view(3, 2), strict=True):
            row = 2 * int(chunk[0] >= 0) + int(chunk[1] >= 0)
            weight = (2 * chunk.abs() / 0.7).sigmoid().prod()
            if score == "l1_prob":
                weight = weight * chunk.abs().sum()
            expected = expected + weight * table[row]
        torch.testing.assert_close(found[tuple(place)], expected)


def test_only_rows_that_were_read_get_a_gradient():
    layer = _layer()

    layer(torch.tensor([[[1.0, -1.0, -1.0, -1.0, 1.0, 1.0]]]), _context()).sum().backward()

    assert layer.table.weight.grad is not None
    # Row 2 of the first table, 0 of the second, 3 of the third.
    assert layer.table.weight.grad.any(dim=1).nonzero().flatten().tolist() == [2, 4, 11]


def test_training_and_evaluation_are_the_same():
    layer, x = _layer(), _input(6)

    assert torch.equal(layer.train()(x, _context(record_usage=True)), layer.eval()(x, _context()))


def test_tables_count_by_themselves():
    n_tables, table = SHAPE.tables(n_layers=2)

    # One a layer, of three chunks with four rows each; a token reads a row of each chunk.
    assert n_tables == 2
    assert table.param_count().memory_values == 3 * 4 * 5
    assert table.active_params() == 3 * 5
    read = table.bytes_per_token(batch_tokens=7, element_bytes=2)["memory_values"]
    assert read == pytest.approx(3 * 2 * 5 * distinct_rows(4, draws=7) / 7)


def test_begins_with_the_deviations_asked_for():
    layer = _layer(HashShape(n_chunks=8, bits=6, width=512, score="prob"), std=0.3)

    assert layer.table.weight.std().item() == pytest.approx(0.3, rel=0.02)
    assert layer.bias.std().item() == pytest.approx(0.001, rel=0.1)


def test_records_its_use_where_asked():
    layer, x = _layer(), _input(6)
    layer(x, _context())
    assert layer.usage.report() == {}

    layer(x, _context(record_usage=True))

    assert layer.usage.reads.sum().item() == 2 * 4 * 3
    assert layer.usage.reads.view(3, 4).sum(dim=1).tolist() == [8, 8, 8]
