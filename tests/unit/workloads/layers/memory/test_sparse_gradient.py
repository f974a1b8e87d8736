"""What is deferred is the whole gradient, however often and wherever a table is read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workloads.kernels.weighted_bag.reference import table_gradient
from workloads.layers.memory.lookup_grad import sums_bytes
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.memory.table import MemoryTable

ROWS, WIDTH = 6, 4


class ThreeReaders(nn.Module):
    """Two bags and one set of products out of one table."""

    def __init__(self, *, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.table = MemoryTable(ROWS, WIDTH)
        self.scale = nn.Parameter(torch.empty(()))
        self._checkpointed = checkpointed
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.table.weight.normal_(generator=generator)
            self.scale.fill_(0.7)
        self.ids = torch.randint(ROWS, (3, 5, 2), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(2):
            if self._checkpointed is None:
                x = self._layer(x, self.ids[layer])
            else:
                x = checkpoint(self._layer, x, self.ids[layer], use_reentrant=self._checkpointed)  # type: ignore[assignment]
        return self.table.gathered_dot(self.ids[2], x).square().sum()

    def _layer(self, x: Tensor, ids: Tensor) -> Tensor:
        return x.tanh() + self.table(ids, self.scale * x[:, :2])


def sum_of(model: ThreeReaders) -> Tensor:
    assert model.table.sparse_gradient is not None
    hits = model.table.sparse_gradient.take()
    assert hits is not None
    return table_gradient(ROWS, hits.ids, hits.weights, hits.x)


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, WIDTH, generator=generator).requires_grad_() for _ in range(2)]


@pytest.mark.parametrize("checkpointed", [None, False, True])
def test_layers_and_micro_batches_add_up_to_the_dense_gradient(checkpointed):
    dense, deferred = ThreeReaders(), ThreeReaders(checkpointed=checkpointed)
    deferred.table.defer_gradient()
    expected, found = inputs(), inputs()
    for a, b in zip(expected, found, strict=True):
        dense(a).backward()
        deferred(b).backward()

    torch.testing.assert_close(sum_of(deferred), dense.table.weight.grad)
    assert deferred.table.weight.grad is None
    torch.testing.assert_close(deferred.scale.grad, dense.scale.grad)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b.grad, a.grad)
    assert deferred.table.sparse_gradient.take() is None


def test_a_graph_run_backward_twice_counts_twice():
    dense, deferred = ThreeReaders(), ThreeReaders()
    deferred.table.defer_gradient()
    for model in (dense, deferred):
        loss = model(inputs()[0])
        loss.backward(retain_graph=True)
        loss.backward()

    torch.testing.assert_close(sum_of(deferred), dense.table.weight.grad)


def test_nothing_is_left_without_gradients_for_a_frozen_table_or_after_clear():
    model = ThreeReaders()
    model.table.defer_gradient()
    with torch.no_grad():
        model(inputs()[0])
    assert model.table.sparse_gradient.take() is None

    model.table.weight.requires_grad_(False)
    model(inputs()[0]).backward()
    assert model.scale.grad is not None
    assert model.table.sparse_gradient.take() is None

    model.table.weight.requires_grad_(True)
    model(inputs()[0]).backward()
    model.table.sparse_gradient.clear()
    assert model.table.sparse_gradient.take() is None


def test_weights_that_want_no_gradient_leave_the_table_its():
    table = MemoryTable(ROWS, WIDTH)
    table.defer_gradient()
    with torch.no_grad():
        table.weight.fill_(1.0)

    table(torch.tensor([[2, 2]]), torch.tensor([[1.0, 3.0]])).sum().backward()

    hits = table.sparse_gradient.take()
    found = table_gradient(ROWS, hits.ids, hits.weights, hits.x.contiguous())
    assert found[2].tolist() == [4.0] * WIDTH
    assert found.sum() == 4.0 * WIDTH


def test_gradients_of_gradients_are_refused():
    model = ThreeReaders()
    model.table.defer_gradient()
    (gradient,) = torch.autograd.grad(model(inputs()[0]), [model.scale], create_graph=True)

    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.backward()


def test_a_table_changed_before_its_backward_pass_is_noticed():
    model = ThreeReaders()
    model.table.defer_gradient()
    loss = model(inputs()[0])
    with torch.no_grad():
        model.table.weight.add_(1.0)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_bags_of_different_sizes_add_up_and_read_no_other_row():
    table = MemoryTable(ROWS, WIDTH)
    table.defer_gradient()
    with torch.no_grad():
        table.weight.fill_(1.0)
    for size in (1, 3, 0):
        ids = torch.arange(3 * size).view(3, size) % 4 + 1
        table(ids, torch.ones(3, size)).sum().backward()

    hits = table.sparse_gradient.take()

    found = table_gradient(ROWS, hits.ids, hits.weights, hits.x.contiguous())
    # Row 1 + i % 4 for i below 3, and for i below 9.
    assert found[:, 0].tolist() == [0.0, 4.0, 3.0, 3.0, 2.0, *[0.0] * (ROWS - 5)]
    assert set(hits.ids.flatten().tolist()) == {1, 2, 3, 4}


@given(
    rows=st.integers(1, 9),
    passes=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 5), st.booleans()), min_size=1, max_size=5
    ),
    seed=st.integers(0, 9),
)
def test_lookups_reduced_between_micro_batches_are_the_same_gradient(rows, passes, seed):
    generator = torch.Generator().manual_seed(seed)
    gradient, expected = SparseGradient(), torch.zeros(rows, WIDTH, dtype=torch.float64)
    for bags, bag_size, reduces in passes:
        ids = torch.randint(rows, (bags, bag_size), generator=generator)
        weights = torch.randn(bags, bag_size, generator=generator)
        x = torch.randn(bags, WIDTH, generator=generator)
        for bag in range(bags):  # by hand
            for place in range(bag_size):
                expected[ids[bag, place]] += weights[bag, place].double() * x[bag].double()
        gradient.add(rows, ids, weights, x)
        if reduces:
            gradient.reduce()

    reduced = gradient.reduced
    taken = gradient.take()
    found = torch.zeros(rows, WIDTH, dtype=torch.float64)
    for bag in range(len(taken.ids)):
        for place in range(taken.ids.shape[1]):
            found[taken.ids[bag, place]] += taken.weights[bag, place].double() * taken.x[bag]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert gradient.take() is None
    if reduced:
        assert taken.ids.shape[1] == 1
        assert (taken.ids[:, 0].diff() > 0).all()
        assert taken.nbytes <= sums_bytes(rows, WIDTH) + 4 * rows  # unique's ids are int64


def test_lookups_that_take_less_than_their_sums_are_kept_as_they_are():
    gradient = SparseGradient()
    few = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1), torch.ones(2, WIDTH)
    gradient.add(1000, *few)
    gradient.reduce()

    assert not gradient.reduced
    assert torch.equal(gradient.take().x, few[2])


def test_what_waits_does_not_grow_with_the_number_of_micro_batches():
    gradient = SparseGradient()
    for _ in range(20):
        gradient.add(3, torch.zeros(50, 2, dtype=torch.int64), torch.ones(50, 2), torch.ones(50, 4))
        gradient.reduce()
        held = [*gradient._grads, *([gradient._sums] if gradient._sums else [])]
        assert sum(each.nbytes for each in held) <= 2 * sums_bytes(3, 4)

    assert gradient.take().x.tolist() == [[20 * 100.0] * 4]


def test_sums_of_bf16_lookups_are_fp32():
    gradient = SparseGradient()
    one = torch.ones(300, 1, dtype=torch.bfloat16)
    gradient.add(1, torch.zeros(300, 1, dtype=torch.int64), one, one)
    gradient.reduce()

    taken = gradient.take()
    assert taken.x.dtype is torch.float32
    assert taken.x.tolist() == [[300.0]]  # bf16 ends at 256
