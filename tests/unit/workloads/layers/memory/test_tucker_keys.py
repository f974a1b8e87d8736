"""The choice of rows by Tucker-decomposed scores against its formula."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from workloads.layers.context import Context
from workloads.layers.memory.tucker_keys import TuckerLookup, TuckerShape, balance_loss
from workloads.layers.modules.init import initialise

SHAPE = TuckerShape(d_model=6, n_keys=5, n_heads=2, knn=5, key_dim=4, rank=3, norm_eps=1e-5)


def _context() -> Context:
    return Context(tokens=torch.zeros(1, 1, dtype=torch.long))


def _lookup(**fields: object) -> TuckerLookup:
    lookup = TuckerLookup(dataclasses.replace(SHAPE, **fields)).double()
    initialise(lookup, 0)
    return lookup


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain


def test_scores_are_those_of_the_formula_and_no_softmax_follows():
    lookup = _lookup()
    with torch.no_grad():
        lookup.query_norm.gain.copy_(torch.tensor([0.5, 2.0]))
        lookup.key_norm.gain.copy_(torch.tensor([1.5, -1.0]))
    x = _random(7, 6)
    # Columns of the query projection: half, head, rank, and then those of one query.
    queries = (x @ lookup.query.weight.T).view(7, 2, 2, 3, 2)
    grids = []
    for head in range(2):
        row, column = (
            torch.stack(
                [
                    _norm(queries[:, half, head, rank], lookup.query_norm.gain)
                    @ _norm(lookup.sub_keys[half, head, rank], lookup.key_norm.gain).T
                    for rank in range(3)
                ]
            )
            for half in range(2)
        )
        grids.append(torch.einsum("ati,ab,btj->tij", row, lookup.core[head], column).flatten(1))
    best = [grid.topk(5) for grid in grids]

    ids, scores = lookup.select(x, _context())

    assert torch.equal(ids, torch.cat([b.indices for b in best], dim=1))
    torch.testing.assert_close(scores, torch.cat([b.values for b in best], dim=1))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, 0.15),
        ({"rank": 1}, 0.15),
        ({"rank": 4, "n_heads": 3}, 0.15),
        ({"n_keys": 700, "knn": 32, "key_dim": 64}, 0.15),
        ({"n_keys": 1, "knn": 1}, 0.15),
        # The expected order statistics leave out their variance, which counts where nearly all
        # sub-keys are taken.
        ({"n_keys": 8, "knn": 8}, 0.4),
    ],
)
def test_chosen_scores_begin_with_mean_square_one(fields, error):
    sizes = {"d_model": 64, "n_keys": 90, "n_heads": 1, "knn": 8, "key_dim": 32, "rank": 2}
    shape = dataclasses.replace(SHAPE, **{**sizes, **fields})
    lookup = TuckerLookup(shape)
    initialise(lookup, 0)
    # A core of the mean square that the rule takes for granted; random ones lie around it.
    torch.nn.init.constant_(lookup.core, 3**-0.5)
    with torch.no_grad():
        _, scores = lookup.select(_random(400, 64).float(), _context())

    assert scores.square().mean().sqrt() == pytest.approx(1.0, rel=error)


def _losses(lookup: TuckerLookup) -> list[Tensor]:
    context = _context()
    lookup.select(_random(9, 6), context)
    return context.losses


def test_balance_loss_is_added_in_training_where_it_has_a_weight():
    assert _losses(_lookup()) == []
    assert _losses(_lookup(key_balance=0.5).eval()) == []
    (once,), (twice,) = (_losses(_lookup(key_balance=weight)) for weight in (0.5, 1.0))
    assert twice == 2 * once > 0


def test_balance_loss_by_its_formula():
    row, column, core = _random(2, 3, 4, 5), _random(2, 3, 4, 5, seed=1), _random(2, 3, 3, seed=2)
    ids = torch.randint(25, (4, 2, 2), generator=torch.Generator().manual_seed(3))
    left, _, right = torch.linalg.svd(core)
    expected = torch.zeros((), dtype=torch.float64)
    for vectors, scores, used in (
        (left[..., 0], row, ids // 5),
        (right[:, 0], column, ids % 5),
    ):
        sign = right[:, 0].sum(-1).sign()
        approximate = torch.einsum("h,ha,hatn->htn", sign, vectors, scores)
        p = torch.stack([functional.softmax(a, dim=-1) for a in approximate]).mean((0, 1))
        f = torch.stack([(used == i).double().mean() for i in range(5)])
        expected = expected + 5 * (p @ f)

    torch.testing.assert_close(balance_loss(row, column, core, ids), expected, rtol=1e-4, atol=0)


def test_balance_loss_is_two_where_reads_are_even_and_more_where_they_gather():
    zeros, core = torch.zeros(1, 1, 4, 5), torch.ones(1, 1, 1)
    even = torch.arange(25).expand(4, 1, 25)
    tilted = torch.tensor([2.0, 0, 0, 0, 0]).expand(1, 1, 4, 5)

    assert balance_loss(zeros, zeros, core, even) == pytest.approx(2.0)
    assert balance_loss(tilted, tilted, core, even) == pytest.approx(2.0)
    assert balance_loss(tilted, tilted, core, torch.zeros(4, 1, 3, dtype=torch.long)) > 4


def test_gradients_by_finite_differences():
    lookup = _lookup(n_heads=1, rank=2, knn=2, key_balance=0.3)

    def scores_and_loss(x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        context = _context()
        _, scores = lookup.select(x, context)
        return scores, context.losses[0]

    # The loss's pair of vectors is left out of its gradient, so the core's is checked through the
    # scores alone.
    core = lookup.core.requires_grad_(False)
    inputs = (_random(3, 6).requires_grad_(), *(p for p in lookup.parameters() if p is not core))
    assert torch.autograd.gradcheck(scores_and_loss, inputs)
    core.requires_grad_()
    x = _random(3, 6)
    assert torch.autograd.gradcheck(lambda _: lookup.select(x, _context())[1], (core,))
