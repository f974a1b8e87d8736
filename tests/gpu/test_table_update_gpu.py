"""Table updates on a GPU equal the reference, repeat their bits, and wait for nothing."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.table_update import op, reference
from workloads.kernels.table_update.rule import Rule, new_state
from workloads.kernels.weighted_bag.reference import row_products
from workloads.layers.deferred_gradient import DeferredGradient
from workloads.layers.memory_table import MemoryTable
from workloads.optim import Optimizer
from workloads.train_config import TrainConfig

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
        norm = reference.RowSums(expected, *hits).update_(
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

    reference.RowSums(exact, *hits).update_(exact_state, rule(kind, 1))
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

    reference.RowSums(expected, ids, weights, x).update_(expected_state, rule(kind, 1))
    op.row_sums(table, ids, weights, x).update_(state, rule(kind, 1))

    for found, wanted in [(table, expected), *((state[k], expected_state[k]) for k in state)]:
        if found.dtype == torch.bfloat16:
            assert (found != wanted).float().mean() < 1e-3


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


@pytest.mark.parametrize("clip", ["exact", "previous"])
@pytest.mark.parametrize("name", ["deferred_adamw", "lazy_adamw", "rowwise", "sgd"])
def test_a_step_only_queues_work_and_takes_no_dense_gradient(name, clip, never_waiting):
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
        tokens=8, batch_tokens=8, seq_len=8, lr=0.1,
        table_optimizer=name, table_clip=clip, table_precision="bf16",
    )  # fmt: skip
    optimizer = Optimizer(model, config)
    assert isinstance(model.table.deferred, DeferredGradient)
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
