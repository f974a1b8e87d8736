"""A deferred read is one node of a compiled graph, and leaves what it leaves without a compiler."""

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch._functorch.config  # torch imports it with the compiler only
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workloads.kernels.weighted_bag.reference import table_gradient
from workloads.layers.memory.handle_registry import resolve
from workloads.layers.memory.host_offload import fetch_rows
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.memory.sparse_gradient_ops import COMPILED
from workloads.layers.memory.table import MemoryTable

ROWS, WIDTH, BAGS = 6, 4, 5


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Reader(nn.Module):
    """The same bag twice with frozen weights, another in a layer, and dot products."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.table = MemoryTable(ROWS, WIDTH)
        self.checkpointed = checkpointed
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.table.weight.normal_(generator=draw)
        self.ids = torch.randint(ROWS, (3, BAGS, 2), generator=draw)
        self.weights = torch.randn(BAGS, 2, generator=draw)

    def forward(self, x: Tensor) -> Tensor:
        same = [self.table(self.ids[0], self.weights) for _ in range(2)]
        x = x + same[0] + same[1]
        layer = partial(checkpoint, use_reentrant=False) if self.checkpointed else _called
        x = layer(self._layer, x)
        return self.table.gathered_dot(self.ids[2], x).square().sum()

    def _layer(self, x: Tensor) -> Tensor:
        return x.tanh() + self.table(self.ids[1], x[:, :2].sin())


def _called(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x)


def left_by(table: MemoryTable) -> Tensor:
    assert table.sparse_gradient is not None
    hits = table.sparse_gradient.take()
    assert hits is not None
    return table_gradient(ROWS, hits.ids, hits.weights, hits.x)


def inputs(n: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(BAGS, WIDTH, generator=draw).requires_grad_() for _ in range(n)]


def in_one_graph(model: Reader, backend: str = "aot_eager") -> Callable[[Tensor], Tensor]:
    return torch.compile(model, fullgraph=True, backend=backend)


def check_against_a_dense_gradient(model: Reader, run: Callable[[Tensor], Tensor]) -> None:
    dense = Reader()
    expected, found = inputs(), inputs()
    for a, b in zip(expected, found, strict=True):
        dense(a).backward()
        run(b).backward()

    torch.testing.assert_close(left_by(model.table), dense.table.weight.grad)
    assert model.table.weight.grad is None
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b.grad, a.grad)
    assert model.table.sparse_gradient is not None
    assert model.table.sparse_gradient.take() is None


@pytest.mark.parametrize("checkpointed", [False, True])
def test_every_read_of_every_micro_batch_is_left(checkpointed):
    model = Reader(checkpointed=checkpointed)
    model.table.defer_gradient()

    check_against_a_dense_gradient(model, in_one_graph(model))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what Inductor imports
def test_every_read_is_left_where_buffers_are_reused():
    model = Reader()
    model.table.defer_gradient()

    check_against_a_dense_gradient(model, in_one_graph(model, "inductor"))


def test_rows_that_are_fetched_are_read_in_one_graph():
    model = Reader()
    model.table.sparse_gradient = SparseGradient(partial(fetch_rows, direct_reads=0))

    check_against_a_dense_gradient(model, in_one_graph(model))


def test_a_graph_run_backward_twice_counts_twice():
    dense, model = Reader(), Reader()
    model.table.defer_gradient()
    with torch._functorch.config.patch(donated_buffer=False):  # torch refuses otherwise
        for loss in (dense(inputs()[0]), in_one_graph(model)(inputs()[0])):
            loss.backward(retain_graph=True)
            loss.backward()

    torch.testing.assert_close(left_by(model.table), dense.table.weight.grad)


def test_nothing_is_left_without_gradients_or_of_a_frozen_table():
    model = Reader()
    model.table.defer_gradient()
    assert model.table.sparse_gradient is not None
    run = in_one_graph(model)
    with torch.no_grad():
        run(inputs()[0])
    assert model.table.sparse_gradient.take() is None

    model.table.weight.requires_grad_(False)
    x = inputs()[0]
    run(x).backward()

    assert x.grad is not None
    assert model.table.sparse_gradient.take() is None


def test_models_share_a_graph_and_keep_their_reads_apart():
    """Or each trial of a process would compile anew, and no later process find that in a cache."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, backend=backend)
    def run(model: Reader, x: Tensor) -> Tensor:
        return model(x)

    for _ in range(2):
        model = Reader()
        model.table.defer_gradient()
        check_against_a_dense_gradient(model, partial(run, model))

    assert len(graphs) == 1


def test_a_table_changed_before_its_backward_pass_is_noticed():
    model = Reader()
    model.table.defer_gradient()
    loss = in_one_graph(model)(inputs()[0])
    with torch.no_grad():
        model.table.weight.add_(1.0)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def arguments(kind: str, gradient: SparseGradient) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(2)
    table = torch.randn(ROWS, WIDTH, generator=draw, requires_grad=True)
    ids = torch.randint(ROWS, (BAGS, 2), generator=draw)
    shape = (BAGS, 2) if kind == "weighted_bag" else (BAGS, WIDTH)
    third = torch.randn(shape, generator=draw, requires_grad=True)
    return table, ids, ids.clone(), third, gradient.anchor, gradient.handle, ROWS  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["weighted_bag", "gathered_dot"])
def test_torch_finds_the_operations_as_they_are_declared(kind):
    gradient = SparseGradient()
    operation = COMPILED[kind]

    torch.library.opcheck(operation, arguments(kind, gradient))

    *tensors, _, name, n_rows = arguments(kind, gradient)
    *tensors, anchor = (each.detach() for each in (*tensors, gradient.anchor))
    grad = torch.ones_like(operation(*tensors, anchor, name, n_rows))
    backward = getattr(torch.ops.memscale, f"sparse_{kind}_backward")
    for leaves, needs_third in ((True, True), (False, True), (True, False)):
        torch.library.opcheck(
            backward,
            (grad, *tensors, anchor if leaves else None, name, n_rows, needs_third, 0),
        )


@pytest.mark.parametrize("kind", ["weighted_bag", "gathered_dot"])
def test_what_is_left_is_no_buffer_of_the_graph(kind):
    gradient = SparseGradient()
    *tensors, anchor, name, n_rows = arguments(kind, gradient)
    rows, places, ids, third = (each.detach().clone() for each in tensors)
    # Of the type that is kept, which a conversion would not copy.
    ids = ids.to(torch.int32)
    grad = torch.ones(BAGS, WIDTH if kind == "weighted_bag" else 2)
    kept = (ids, third, grad) if kind == "weighted_bag" else (ids, grad, third)
    expected = [each.clone() for each in kept]
    backward = getattr(torch.ops.memscale, f"sparse_{kind}_backward")

    backward(grad, rows, places, ids, third, anchor.detach(), name, n_rows, False, 0)
    for buffer in (ids, third, grad):
        buffer.zero_()

    hits = gradient.take()
    assert hits is not None
    for found, wanted in zip((hits.ids, hits.weights, hits.x), expected, strict=True):
        assert torch.equal(found, wanted)


def test_tables_that_are_read_together_keep_one_copy_of_the_ids():
    values, gates = SparseGradient(), SparseGradient()
    gates.same_reads_as = values
    ids = [torch.tensor([[row, 1]]) for row in range(3)]
    for layer in ids:
        for gradient in (values, gates):
            gradient.add_copies(ROWS, layer, torch.ones(1, 2), torch.ones(1, WIDTH))
        layer.zero_()

    joined: dict[tuple[int, ...], Tensor] = {}
    taken, together = values.take(joined), gates.take(joined)

    assert taken is not None
    assert together is not None
    assert taken.ids.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert together.ids is taken.ids


def test_reads_of_their_own_are_kept_beside_those_of_another_table():
    values, gates = SparseGradient(), SparseGradient()
    gates.same_reads_as = values
    values.add_copies(ROWS, torch.tensor([[0, 1]]), torch.ones(1, 2), torch.ones(1, WIDTH))
    for row in (0, 2):  # the second time nothing was read of `values` before
        ids = torch.tensor([[row, 1]])
        gates.add_copies(ROWS, ids, torch.ones(1, 2), torch.ones(1, WIDTH))

    hits = gates.take()

    assert hits is not None
    assert hits.ids.tolist() == [[0, 1], [2, 1]]


def test_a_copy_has_a_handle_of_its_own():
    gradient = SparseGradient()

    for other in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient))):
        assert resolve(other.handle) is other
    assert resolve(gradient.handle) is gradient

    handle = gradient.handle
    del gradient
    with pytest.raises(LookupError, match=f"a compiled graph reads object {int(handle)}"):
        resolve(handle)
