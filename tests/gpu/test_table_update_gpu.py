"""Table updates on a GPU equal the reference, repeat their bits, and wait for nothing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from workloads.kernels.table_update import op, reference
from workloads.kernels.table_update.split_master import join, split
from workloads.kernels.table_update.update_rules import Rule, new_state
from workloads.kernels.weighted_bag.reference import row_products
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.memory.table import MemoryTable
from workloads.training.config import TrainConfig
from workloads.training.optimizer.adamw import Optimizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

KINDS = ["adamw", "lazy_adamw", "rowwise", "sgd"]
# Width beyond what one program holds, no power of two, and one column; the first row is read 2,000 times.
SHAPES = [(1000, 1, 300, 7), (1000, 96, 300, 16), (5000, 768, 500, 32), (300, 2500, 200, 16)]


def case(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    rows, width, bags, bag_size = shape
    generator = torch.Generator("cuda").manual_seed(0)
    draw = {"generator": generator, "device": "cuda"}
    ids = torch.randint(rows // 2, (bags, bag_size), **draw)
    ids[torch.rand(bags, bag_size, **draw) < 0.3] = 0
    hits = (
        ids.int(),
        torch.randn(bags, bag_size, **draw).to(dtype),
        torch.randn(bags, width, **draw).to(dtype),
    )
    return torch.randn(rows, width, **draw).to(dtype), hits


def rule(kind: str, step: int) -> Rule:
    return Rule(kind=kind, step=step, lr=0.01, eps=1e-3, weight_decay=0.2, seed=4)


@pytest.mark.parametrize("exact", [False, True], ids=["one pass", "norm first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fp32_updates_equal_the_reference(shape, kind, exact):
    table, hits = case(shape, torch.float32)
    expected, state, expected_state = table.clone(), new_state(kind, table), new_state(kind, table)
    coefficient = torch.tensor(0.7, device="cuda")
    for step in (1, 2):
        norm = reference.ReferenceRowSums(expected, *hits).update_(
            expected_state, rule(kind, step), coefficient
        )
        sums = op.row_sums(table, *hits)
        before = sums.norm() if exact else None
        found = sums.update_(state, rule(kind, step), coefficient)

        torch.testing.assert_close(found, norm, rtol=1e-5, atol=0)
        assert before is None or torch.equal(before, found)
    torch.testing.assert_close(table, expected, rtol=1e-4, atol=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(value, expected_state[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bf16_updates_are_one_rounding_from_fp32(shape, kind):
    table, hits = case(shape, torch.bfloat16)
    exact, state = table.float(), new_state(kind, table)
    exact_state = {name: value.clone().float() for name, value in state.items()}

    reference.ReferenceRowSums(exact, *hits).update_(exact_state, rule(kind, 1))
    again, again_state = table.clone(), new_state(kind, table)
    op.row_sums(table, *hits).update_(state, rule(kind, 1))
    op.row_sums(again, *hits).update_(again_state, rule(kind, 1))

    assert torch.equal(table, again)
    for found, wanted in [(table, exact), *((state[k], exact_state[k]) for k in state)]:
        # A neighbour in bf16, or the next one where sums of the hot row differ in their last bits.
        torch.testing.assert_close(found.float(), wanted, rtol=2**-7 * 1.01, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_has_the_references_random_numbers(kind):
    """Every row is read once, so sums have no order."""
    table, _ = case((4096, 96, 1, 1), torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(3)
    ids = torch.randperm(4096, generator=generator, device="cuda").view(1024, 4)
    weights = torch.ones(1024, 4, device="cuda")
    x = torch.randn(1024, 96, generator=generator, device="cuda")
    expected, state, expected_state = table.clone(), new_state(kind, table), new_state(kind, table)

    reference.ReferenceRowSums(expected, ids, weights, x).update_(expected_state, rule(kind, 1))
    op.row_sums(table, ids, weights, x).update_(state, rule(kind, 1))

    for found, wanted in [(table, expected), *((state[k], expected_state[k]) for k in state)]:
        if found.dtype == torch.bfloat16:
            assert (found != wanted).float().mean() < 1e-3


@pytest.mark.parametrize("exact", [False, True], ids=["one pass", "norm first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_with_a_master_a_table_is_the_fp32_one_rounded(shape, kind, exact):
    """Bit for bit: both are summed and updated by the same instructions."""
    values, hits = case(shape, torch.float32)
    table, low = split(values)
    exact_state = new_state(kind, values)
    state = {**new_state(kind, table, master=True), "low": low}
    for step in (1, 2):
        wanted, sums = op.row_sums(values, *hits), op.row_sums(table, *hits)
        if exact:
            assert torch.equal(sums.norm(), wanted.norm())

        found = sums.update_(state, rule(kind, step))

        assert torch.equal(found, wanted.update_(exact_state, rule(kind, step)))
        assert torch.equal(join(table, low), values)
        assert torch.equal(table, split(values)[0])
    assert all(torch.equal(state[name], value) for name, value in exact_state.items())


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_backward_pass_a_master_is_updated_alike(kind):
    _, hits = case((5000, 768, 500, 32), torch.bfloat16)
    values = torch.randn(5000, 768, device="cuda")
    table, low = split(values)
    before, alone, alone_low = table.clone(), table.clone(), low.clone()
    state = {**new_state(kind, table, master=True), "low": low}
    op.row_sums(alone, *hits).update_(
        {**new_state(kind, alone, master=True), "low": alone_low}, rule(kind, 1)
    )

    _, products = op.row_sums(table, *hits).update_with_products_(state, rule(kind, 1))

    exact = row_products(before.float(), hits[0], hits[2].float())
    torch.testing.assert_close(products.float(), exact, rtol=1e-2, atol=1e-2)
    assert torch.equal(join(table, low), join(alone, alone_low))


def test_every_value_survives_in_halves():
    """A step that moves nothing, over values of every exponent: the smallest and the largest too."""
    generator = torch.Generator("cuda").manual_seed(1)
    magnitude = torch.randint(0x7F800000, (4096, 256), generator=generator, device="cuda")
    magnitude[0, :4] = torch.tensor([1, 0x7FFF, 0x8000, 0x7F7FFFFF])
    bits = magnitude.int() | (torch.arange(256, device="cuda").int() % 2 << 31)
    values = bits.view(torch.float32)
    table, low = split(values)
    ids = torch.arange(4096, device="cuda").view(-1, 1)
    weights, x = torch.ones(4096, 1, device="cuda"), torch.ones(4096, 256, device="cuda")

    still = Rule(kind="sgd", step=1, lr=0.0)
    op.row_sums(table, ids, weights, x).update_({"low": low}, still)

    assert torch.equal(join(table, low).view(torch.int32), bits)
    assert torch.equal(table.view(torch.int16), split(values)[0].view(torch.int16))

    x[5, 3], x[6, 4] = float("nan"), float("inf")
    rate_of_one = Rule(kind="sgd", step=1, lr=1.0)
    op.row_sums(table, ids, weights, x).update_({"low": low}, rate_of_one)

    # A sum with an infinity may be NaN: reads beyond a row's last one have weight 0.
    for place in ((5, 3), (6, 4)):
        assert not table[place].isfinite()
        assert not join(table, low)[place].isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 96, 128, 130, 300, 768])
@pytest.mark.parametrize("kind", KINDS)
def test_the_previous_norm_gives_the_bits_of_the_exact_one_while_nothing_clips(kind, width, dtype):
    """But for rowwise rows of up to 512 bytes of x, which know their mean square in the pass that updates.

    Those come from another order of operations, and agree to a few last bits.
    """
    table, hits = case((5000, width, 500, 32), dtype)
    other, state, other_state = table.clone(), new_state(kind, table), new_state(kind, table)
    one = torch.tensor(1.0, device="cuda")
    for step in (1, 2):
        norm = op.row_sums(table, *hits).update_(state, rule(kind, step), one)
        sums = op.row_sums(other, *hits)
        exact = sums.norm()
        sums.update_(other_state, rule(kind, step), one)
        torch.testing.assert_close(norm, exact, rtol=1e-6, atol=0)

    narrow = width <= 512 // dtype.itemsize
    if kind != "rowwise" or not narrow:
        assert torch.equal(table, other)
        assert all(torch.equal(value, other_state[name]) for name, value in state.items())
    rtol = 1e-5 if dtype == torch.float32 else 2**-7 * 1.01
    torch.testing.assert_close(table, other, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("master", [False, True], ids=["bf16", "bf16_master"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_beyond_two_to_the_31_numbers(kind, master):
    """Every row that is read is read once, so sums have no order; 9 to 31 GB of table, copy and state."""
    rows, width, ends = 2**21 + 3, 1056, 40
    assert (rows - ends) * width > 2**31
    table = torch.empty(rows, width, dtype=torch.bfloat16, device="cuda")
    table.normal_(generator=torch.Generator("cuda").manual_seed(0))
    state = new_state(kind, table, master=master)
    kept = table.clone()
    ids = torch.cat([torch.arange(ends), torch.arange(rows - ends, rows)]).cuda().view(-1, 4)
    weights = torch.ones(len(ids), 4, device="cuda")
    x = torch.randn(len(ids), width, device="cuda")

    op.row_sums(table, ids, weights, x).update_(state, rule(kind, 1))

    for first in (0, rows - ends):
        part = slice(first, first + ends)
        own = kept[part].clone()
        own_state = new_state(kind, own, master=master)
        here = ((ids >= first) & (ids < first + ends))[:, 0]
        reference.ReferenceRowSums(own, ids[here] - first, weights[here], x[here]).update_(
            own_state, replace(rule(kind, 1), origin=(first, 0))
        )
        assert (table[part] != own).float().mean() < 1e-3
        assert (own != kept[part]).float().mean() > 0.1
        if master:
            found, expected = join(table[part], state["low"][part]), join(own, own_state.pop("low"))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        for name, value in own_state.items():
            torch.testing.assert_close(state[name][part], value, rtol=2**-7, atol=1e-4)
    if kind != "adamw":
        assert torch.equal(table[ends:-ends], kept[ends:-ends])
    else:
        # Rows that nobody reads are decayed; one in the middle stands for them.
        middle = kept[rows // 2 : rows // 2 + 1].clone()
        none = torch.zeros(1, 1, device="cuda")
        reference.ReferenceRowSums(middle, none.int(), none, table.new_zeros(1, width)).update_(
            new_state(kind, middle, master=master),
            replace(rule(kind, 1), origin=(rows // 2, 0)),
        )
        assert torch.equal(table[rows // 2], middle[0])


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_with_the_rows_as_they_were(kind):
    table, hits = case((5000, 768, 500, 32), torch.bfloat16)
    before, alone = table.clone(), table.clone()
    op.row_sums(alone, *hits).update_(new_state(kind, table), rule(kind, 1))

    sums = op.row_sums(table, *hits)
    _, products = sums.update_with_products_(new_state(kind, table), rule(kind, 1))

    exact = row_products(before.float(), hits[0], hits[2].float())
    torch.testing.assert_close(products.float(), exact, rtol=1e-2, atol=1e-2)
    assert torch.equal(table, alone)


@pytest.mark.parametrize("precision", ["bf16", "bf16_master"])
@pytest.mark.parametrize("clip", ["exact", "previous"])
@pytest.mark.parametrize("name", ["deferred_adamw", "lazy_adamw", "rowwise", "sgd"])
def test_a_step_only_queues_work_and_takes_no_dense_gradient(name, clip, precision, never_waiting):
    class Model(torch.nn.Module):
        PARAM_GROUP = "attention"

        def __init__(self) -> None:
            super().__init__()
            self.table = MemoryTable(200_000, 128)
            self.scale = torch.nn.Parameter(torch.ones(()))

    with torch.device("cuda"):
        model = Model()
    with torch.no_grad():
        model.table.weight.normal_()
    config = TrainConfig(
        tokens=8,
        batch_tokens=8,
        seq_len=8,
        lr=0.1,
        table_optimizer=name,
        table_clip=clip,
        table_precision=precision,
    )
    optimizer = Optimizer(model, config)
    assert isinstance(model.table.sparse_gradient, SparseGradient)
    ids = torch.randint(200_000, (64, 32), device="cuda")
    weights = torch.rand(64, 32, device="cuda")

    def step() -> None:
        for _ in range(2):
            model.table(ids, weights * model.scale).float().square().sum().backward()
        optimizer.clip()
        optimizer.step(0.1)

    step()
    before = model.table.weight.detach().clone()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    with never_waiting():
        step()

    assert torch.cuda.max_memory_allocated() - held < 0.5 * before.nbytes
    assert (model.table.weight != before).any()
    assert model.table.weight.grad is None
