"""Batch normalisation of queries against torch's, and over ranks."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from workloads.architectures import memory
from workloads.layers.modules.init import initialise
from workloads.layers.modules.norms import QueryBatchNorm
from workloads.training.step.train_step import accumulate_gradients


def _pair(width: int, dtype: torch.dtype) -> tuple[QueryBatchNorm, nn.BatchNorm1d]:
    """Ours and torch's, with the same gains and biases."""
    ours, torchs = QueryBatchNorm(width).to(dtype), nn.BatchNorm1d(width, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    initialise(ours, 0)
    with torch.no_grad():
        for mine, other in ((ours.gain, torchs.weight), (ours.bias, torchs.bias)):
            mine.copy_(torch.randn(width, generator=generator, dtype=dtype))
            other.copy_(mine)
    return ours, torchs


def _queries(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).mul_(3.0).add_(1.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@pytest.mark.parametrize("tokens", [2, 7, 64])
def test_equals_torchs_with_all_gradients_and_running_statistics(dtype, tolerance, tokens):
    ours, torchs = _pair(5, dtype)
    for step in range(3):
        query = _queries(step, tokens, 5, dtype=dtype).requires_grad_()
        weights = _queries(step + 10, tokens, 5, dtype=dtype)
        found, expected = ours(query), torchs(query)

        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            torch.autograd.grad(found, (query, ours.gain, ours.bias), weights),
            torch.autograd.grad(expected, (query, torchs.weight, torchs.bias), weights),
            rtol=10 * tolerance,
            atol=10 * tolerance,
        )
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_variance, torchs.running_var)

    query = _queries(20, tokens, 5, dtype=dtype)
    torch.testing.assert_close(ours.eval()(query), torchs.eval()(query))


def test_gradients_by_finite_differences():
    norm, _ = _pair(3, torch.float64)
    query = _queries(0, 6, 3).requires_grad_()

    assert torch.autograd.gradcheck(lambda q, *_: norm(q), (query, norm.gain, norm.bias))


def test_a_large_mean_does_not_drown_the_variance():
    norm, _ = _pair(4, torch.float32)
    query = _queries(0, 500, 4) + 10_000.0
    exact, _ = _pair(4, torch.float64)

    # fp32 holds such queries to 1e-3: a difference of means of squares would be off by 10.
    torch.testing.assert_close(norm(query.float()).double(), exact(query), rtol=0.0, atol=2e-3)


@pytest.mark.parametrize("tokens", [1, 5])
def test_what_does_not_vary_becomes_the_bias(tokens):
    norm, _ = _pair(3, torch.float64)
    query = torch.full((tokens, 3), 7.0, dtype=torch.float64, requires_grad=True)

    output = norm(query)
    output.sum().backward()

    assert torch.equal(output, norm.bias.expand(tokens, 3))
    assert query.grad is not None
    assert torch.isfinite(query.grad).all()
    assert norm.running_variance.tolist() == pytest.approx([0.9] * 3)


def test_nan_stays_in_its_column():
    norm, _ = _pair(3, torch.float32)
    query = _queries(0, 4, 3, dtype=torch.float32)
    query[2, 1] = torch.nan

    output = norm(query)

    assert output.isnan().all(dim=0).tolist() == [False, True, False]
    assert output.isnan().any(dim=0).tolist() == [False, True, False]


def test_bf16_queries_are_normalised_in_fp32():
    norm, _ = _pair(3, torch.float32)
    query = _queries(0, 8, 3).bfloat16()

    with torch.autocast("cpu", torch.bfloat16):
        output = norm(query)

    assert output.dtype == torch.float32
    assert torch.equal(output, _pair(3, torch.float32)[0](query.float()))


def test_evaluation_changes_nothing_and_looks_at_each_token_alone():
    norm, _ = _pair(3, torch.float64)
    norm(_queries(0, 9, 3))
    norm.eval()
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    query = _queries(1, 4, 3)

    together, alone = norm(query), torch.cat([norm(one) for one in query.split(1)])

    assert torch.equal(together, alone)
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


def test_each_micro_batch_is_normalised_by_itself_and_enters_the_running_statistics():
    norm, torchs = _pair(3, torch.float64)
    parts = _queries(0, 10, 3).split([4, 6])

    for part in parts:
        torch.testing.assert_close(norm(part), torchs(part))

    torch.testing.assert_close(norm.running_mean, torchs.running_mean)


CONFIG = memory.Config(
    d_model=8,
    n_layers=2,
    n_heads=2,
    d_ff=8,
    n_keys=6,
    n_memory_heads=2,
    knn=3,
    query_batch_norm=True,
)
RANK = """
from contextlib import nullcontext
import torch
from workloads.distributed import process_group
from workloads.architectures import memory
from workloads.layers.modules.init import initialise
from workloads.training.step.train_step import accumulate_gradients, even_passes

windows = torch.randint(11, (5, 9), generator=torch.Generator().manual_seed(0))
found = {}
with process_group.join(rank=rank, size=2, device=torch.device("cpu"), rendezvous=folder / "meet") as world:
    share = world.local_range(5)
    for rows in (5, 1):
        model = memory.Config(**fields).build(11).double()
        initialise(model, 0)
        losses = accumulate_gradients(
            model, windows[share.start : share.stop], batch_tokens=40,
            passes=even_passes(5, world=world, rows=rows), autocast=nullcontext,
        )
        gradients = {name: p.grad for name, p in model.named_parameters()}
        world.all_reduce_sum([losses["loss"], *gradients.values()])
        running = {name: b for name, b in model.named_buffers() if "running" in name}
        found[rows] = {**gradients, **running, "loss": losses["loss"]}
torch.save(found, folder / f"{rank}.pt")
"""


def test_two_ranks_are_one_rank_that_reads_both_shares(tmp_path, run_ranks):
    """Five sequences, two on one rank and three on the other.

    One at a time, they still make as many passes.
    """
    fields = {name: value for name, value in vars(CONFIG).items() if value is not None}
    run_ranks(RANK, 2, {"fields": fields, "folder": tmp_path})
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    # Sequences that pass at the same time on the two ranks.
    for rows, passes in ((5, [[0, 1, 2, 3, 4]]), (1, [[0, 2, 3], [1, 4]])):
        expected = _alone(passes)
        assert first[rows].keys() == second[rows].keys() == expected.keys()
        for name, tensor in first[rows].items():
            assert torch.equal(tensor, second[rows][name]), name
            # The trainer takes the loss in fp32.
            torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7)


def _alone(passes: list[list[int]]) -> dict[str, Tensor]:
    """What one rank finds that reads these sequences at once."""
    windows = torch.randint(11, (5, 9), generator=torch.Generator().manual_seed(0))
    model = CONFIG.build(11).double()
    initialise(model, 0)
    loss = torch.zeros(())
    for sequences in passes:
        losses = accumulate_gradients(
            model, windows[sequences], batch_tokens=40, passes=1, autocast=nullcontext
        )
        loss = loss + losses["loss"]
    gradients = {name: p.grad for name, p in model.named_parameters()}
    running = {name: b for name, b in model.named_buffers() if "running" in name}
    return {**gradients, **running, "loss": loss}
