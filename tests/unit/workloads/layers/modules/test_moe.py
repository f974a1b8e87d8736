"""The mixture of experts against plain loops in float64, and its gradients.

Also what depends on the other tokens of a pass.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from workloads.layers.context import Context
from workloads.layers.modules.init import initialise
from workloads.layers.modules.moe import MixtureOfExperts, MixtureShape

SIZES: dict[str, Any] = {"d_model": 6, "n_experts": 5, "d_expert": 4, "top_k": 2}
EXPERT_CHOICE = {"top_k": 1, "routing": "expert_choice"}


def _layer(**fields: Any) -> MixtureOfExperts:
    layer = MixtureOfExperts(MixtureShape(**{**SIZES, **fields})).double()
    initialise(layer, 0)
    return layer


def _x(batch: int = 2, seq: int = 7, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, seq, SIZES["d_model"], dtype=torch.float64, generator=generator)


def _context(x: Tensor, **fields: Any) -> Context:
    return Context(tokens=torch.zeros(x.shape[:2], dtype=torch.long), **fields)


def _expert(layer: MixtureOfExperts, e: int, token: Tensor) -> Tensor:
    experts = layer.experts
    hidden = functional.silu(token @ experts.gate[e]) * (token @ experts.up[e])
    return hidden @ experts.down[e]


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("n_shared_experts", [0, 2])
def test_token_choice_is_a_loop_over_tokens_and_experts(renormalise, n_shared_experts):
    layer = _layer(renormalise=renormalise, n_shared_experts=n_shared_experts)
    x = _x()

    found = layer(x, _context(x)).flatten(0, 1)

    for token, output in zip(x.flatten(0, 1), found, strict=True):
        p = (layer.router.weight @ token).softmax(0)
        chosen = sorted(range(5), key=p.tolist().__getitem__, reverse=True)[:2]
        scale = sum(p[e] for e in chosen) if renormalise else 1.0
        expected = sum(p[e] / scale * _expert(layer, e, token) for e in chosen)
        if layer.shared is not None:
            gate, up, down = (
                m.weight for m in (layer.shared.gate, layer.shared.up, layer.shared.down)
            )
            expected = expected + down @ (functional.silu(gate @ token) * (up @ token))
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("group", ["batch", "sequence"])
@pytest.mark.parametrize("capacity", [1.0, 2.5])
def test_expert_choice_is_a_sort_per_expert(group, capacity):
    layer = _layer(**EXPERT_CHOICE, capacity=capacity, group=group)
    x = _x()

    found = layer(x, _context(x))

    tokens = x.reshape(1, 14, 6) if group == "batch" else x
    expected = torch.zeros_like(tokens)
    p = (tokens @ layer.router.weight.T).softmax(-1)
    taken = math.ceil(capacity * tokens.shape[1] / 5)
    with torch.no_grad():
        for g in range(len(tokens)):
            for e in range(5):
                column = p[g, :, e].tolist()
                for t in sorted(range(len(column)), key=column.__getitem__, reverse=True)[:taken]:
                    expected[g, t] += p[g, t, e] * _expert(layer, e, tokens[g, t])
    torch.testing.assert_close(found, expected.view_as(x))


def test_evaluation_by_the_best_expert_is_token_choice():
    x = _x()
    layer = _layer(**EXPERT_CHOICE).eval()

    assert torch.equal(layer(x, _context(x)), _layer(top_k=1)(x, _context(x)))
    assert not torch.allclose(layer.train()(x, _context(x)), layer.eval()(x, _context(x)))


def test_evaluation_may_be_by_expert_choice():
    x = _x()
    layer = _layer(**EXPERT_CHOICE, evaluation="expert_choice")

    assert torch.equal(layer.eval()(x, _context(x)), layer.train()(x, _context(x)))


@pytest.mark.parametrize(
    "fields",
    [
        {"n_shared_experts": 1, "balance_loss": 0.1, "z_loss": 0.1},
        {"renormalise": True, "balance_loss": 0.1, "group": "sequence"},
        {**EXPERT_CHOICE, "capacity": 2.0, "z_loss": 0.1},
    ],
    ids=str,
)
def test_gradients_by_finite_differences(fields):
    layer, x = _layer(**fields), _x(seq=4)
    names = [name for name, _ in layer.named_parameters()]

    def outputs(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        context = _context(x)
        result = functional_call(layer, dict(zip(names, weights, strict=True)), (x, context))
        return result, *context.losses

    inputs = [x, *(p.detach() for p in layer.parameters())]
    assert torch.autograd.gradcheck(outputs, [t.requires_grad_() for t in inputs], fast_mode=True)


@pytest.mark.parametrize("fields", [{}, EXPERT_CHOICE], ids=["tokens", "experts"])
def test_the_order_of_tokens_does_not_matter(fields):
    layer, x = _layer(**fields), _x(batch=1, seq=11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(1))

    found = layer(x[:, order], _context(x))

    torch.testing.assert_close(found, layer(x, _context(x))[:, order])


@pytest.mark.parametrize(
    ("fields", "depends"),
    [
        ({}, False),
        ({**EXPERT_CHOICE, "group": "sequence"}, False),
        ({**EXPERT_CHOICE, "group": "batch"}, True),
    ],
    ids=["tokens choose", "experts choose in a sequence", "experts choose in a batch"],
)
def test_what_a_sequence_becomes_beside_another(fields, depends):
    layer, x = _layer(**fields), _x()

    together, alone = layer(x, _context(x))[:1], layer(x[:1], _context(x[:1]))

    assert torch.allclose(together, alone) is not depends


@pytest.mark.parametrize("group", ["batch", "sequence"])
def test_micro_batches_change_the_balance_of_a_batch_and_not_of_sequences(group):
    layer, x = _layer(balance_loss=1.0, group=group), _x(batch=4)

    def loss(x: Tensor) -> Tensor:
        context = _context(x)
        layer(x, context)
        return torch.stack(context.losses).sum()

    parts = torch.stack([loss(part) for part in x.split(2)]).mean()

    assert torch.allclose(parts, loss(x)) is (group == "sequence")


def test_losses_are_for_training():
    layer, x = _layer(balance_loss=0.1, z_loss=0.1, selection_bias=True), _x()
    training, evaluation = _context(x), _context(x)

    layer.train()(x, training)
    layer.eval()(x, evaluation)

    assert len(training.losses) == 3
    assert evaluation.losses == []


def _steered(layer: MixtureOfExperts, x: Tensor) -> Tensor:
    context = _context(x)
    layer(x, context)
    (loss,) = context.losses
    assert loss == 0
    assert layer.selection_bias is not None
    return torch.autograd.grad(loss, layer.selection_bias.bias)[0]


def test_the_selection_bias_is_steered_against_the_load():
    layer, x = _layer(selection_bias=True), _x(batch=4)
    p = (x @ layer.router.weight.T).softmax(-1).flatten(0, 1)
    load = p.topk(2).indices.flatten().bincount(minlength=5)

    gradient = _steered(layer, x)

    torch.testing.assert_close(gradient, 1e-3 * (load.double() / load.sum() - 0.2))


def test_the_steering_of_micro_batches_adds_up_to_that_of_the_batch():
    layer, x = _layer(selection_bias=True), _x(batch=4)

    parts = [_steered(layer, part) for part in x.split([1, 3])]

    # The trainer weighs a micro batch's losses by its share of the tokens.
    torch.testing.assert_close(parts[0] / 4 + parts[1] * 3 / 4, _steered(layer, x))


def test_the_selection_bias_evens_out_the_load():
    layer = _layer(selection_bias=True)
    x = _x(batch=20) + 0.7  # a common direction, which some experts like
    optimizer = torch.optim.AdamW(layer.selection_bias.parameters(), lr=0.01, weight_decay=0.0)

    def busiest() -> float:
        p = (x @ layer.router.weight.T).softmax(-1).flatten(0, 1)
        bias = layer.selection_bias.bias
        load = (p + bias).topk(2).indices.flatten().bincount(minlength=5)
        return float(load.max() / load.double().mean())

    before = busiest()
    for _ in range(60):
        context = _context(x)
        layer(x, context)
        optimizer.zero_grad()
        torch.stack(context.losses).sum().backward()
        optimizer.step()

    assert before > 1.5
    assert busiest() < 1.1


def test_usage_is_what_was_routed():
    layer, x = _layer(**EXPERT_CHOICE, capacity=0.5), _x()
    p = (x @ layer.router.weight.T).softmax(-1).flatten(0, 1)
    taken = p.T.topk(2).indices

    layer(x, _context(x, record_usage=True))
    report = layer.usage.report()

    assert report["dropped_share"] == (14 - len(set(taken.flatten().tolist()))) / 14
    assert report["max_over_mean"] == 1.0
    assert report["router_entropy"] == pytest.approx(torch.special.entr(p).sum(-1).mean().item())


def test_token_choice_drops_nothing_and_reports_the_load():
    layer, x = _layer(), _x()
    p = (x @ layer.router.weight.T).softmax(-1).flatten(0, 1)
    load = p.topk(2).indices.flatten().bincount(minlength=5)

    layer(x, _context(x, record_usage=True))
    layer(x, _context(x))
    report = layer.usage.report()

    assert report["dropped_share"] == 0.0
    assert report["max_over_mean"] == pytest.approx(float(load.max() / load.double().mean()))


@pytest.mark.parametrize(
    ("fields", "training"),
    [({}, True), ({"evaluation": "expert_choice"}, False)],
    ids=["training", "evaluation"],
)
def test_experts_that_choose_cannot_decode(fields, training):
    layer, x = _layer(**EXPERT_CHOICE, **fields).train(training), _x(seq=1)

    with pytest.raises(
        ValueError, match=r"nothing can be decoded token by token; set evaluation to top_1"
    ):
        layer(x, _context(x, cache={}))


def test_the_router_is_exact_under_autocast():
    layer = MixtureOfExperts(MixtureShape(**SIZES))
    initialise(layer, 0)
    x = _x().float()

    with torch.autocast("cpu", torch.bfloat16):
        logits = layer.router(x.flatten(0, 1))
        output = layer(x, _context(x))

    assert logits.dtype == torch.float32
    assert torch.equal(logits, x.flatten(0, 1) @ layer.router.weight.T)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), layer(x, _context(x)), rtol=0.03, atol=0.03)
