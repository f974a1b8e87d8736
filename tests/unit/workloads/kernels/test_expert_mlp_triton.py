"""The fused experts, interpreted on the CPU, against a loop over rows by autograd."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from workloads.kernels.expert_mlp import op
from workloads.kernels.expert_mlp.op import expert_mlp
from workloads.kernels.expert_routing import reference as routing
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise
from workloads.layers.modules.moe import MixtureOfExperts, MixtureShape

triton = pytest.importorskip(
    "workloads.kernels.expert_mlp.triton", reason="a CPU build of torch comes without Triton"
)

CASES = [
    # tokens, d_model, d_expert, experts, rows of a token
    (1, 1, 1, 1, 1),
    pytest.param((9, 16, 24, 5, 3), marks=pytest.mark.long),
    pytest.param((150, 20, 40, 3, 1), marks=pytest.mark.long),
    (40, 130, 33, 3, 8),
]


def _case(n_tokens: int, d_model: int, d_expert: int, n_experts: int, top_k: int):
    generator = torch.Generator().manual_seed(n_tokens)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator) / sizes[-1] ** 0.5

    choices = torch.randint(n_experts, (n_tokens * min(top_k, n_experts),), generator=generator)
    order, places, ends = routing.rows_by_expert(choices, n_experts)
    starts = torch.arange(0, len(choices), len(choices) // n_tokens)
    floats = (
        draw(n_tokens, d_model),
        draw(n_experts, d_model, d_expert),
        draw(n_experts, d_model, d_expert),
        draw(n_experts, d_expert, d_model),
        torch.rand(len(choices), generator=generator),
    )
    routes = (order // (len(choices) // n_tokens), places, starts, ends)
    return floats, routes, choices[order], draw(n_tokens, d_model)


def _expected(floats: tuple[Tensor, ...], token: Tensor, expert: Tensor) -> Tensor:
    x, gate, up, down, weights = floats
    rows = x[token][:, None]
    hidden = functional.silu(rows @ gate[expert]) * (rows @ up[expert])
    outputs = (hidden @ down[expert])[:, 0] * weights[:, None]
    return torch.zeros_like(x).index_add(0, token, outputs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_definition_with_all_gradients(case, interpreted):
    interpreted(triton)
    floats, routes, expert, grad = _case(*case)
    exact = tuple(each.double().requires_grad_() for each in floats)
    expected = _expected(exact, routes[0], expert)
    expected_grads = torch.autograd.grad(expected, exact, grad.double())

    output, gated, upped = triton.forward(*floats, *routes)
    grads = triton.backward(*floats, *routes, gated, upped, grad)

    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "compiled",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["eager", "compiled"],
)
@pytest.mark.parametrize(
    "d_expert", [20, *(pytest.param(width, marks=pytest.mark.long) for width in (24, 40, 48))]
)
def test_units_of_zeros_change_nothing(d_expert, compiled, interpreted):
    """The operation, which adds them, beside the kernels without them and the definition."""
    interpreted(triton)
    floats, routes, expert, grad = _case(9, 16, d_expert, 3, 2)
    exact = tuple(each.double().requires_grad_() for each in floats)
    expected = _expected(exact, routes[0], expert)
    expected_grads = torch.autograd.grad(expected, exact, grad.double())
    output, gated, upped = triton.forward(*floats, *routes)
    grads = triton.backward(*floats, *routes, gated, upped, grad)
    wanting = tuple(each.requires_grad_() for each in floats)
    run = expert_mlp
    if compiled:
        run = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)

    found = run(*wanting, *routes)
    found_grads = torch.autograd.grad(found, wanting, grad)

    assert torch.equal(found, output)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for one, same, other in zip(found_grads, grads, expected_grads, strict=True):
        assert torch.equal(one, same)
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "fields", [{"top_k": 2}, {"top_k": 1, "routing": "expert_choice", "capacity": 2.0}], ids=str
)
def test_a_layer_of_another_width_adds_up_the_same_gradients(fields, interpreted, monkeypatch):
    interpreted(triton)
    draws = torch.randn(2, 2, 9, 16, generator=torch.Generator().manual_seed(0))

    def passes() -> tuple[list[Tensor], dict[str, float]]:
        layer = MixtureOfExperts(MixtureShape(d_model=16, n_experts=3, d_expert=20, **fields))
        initialise(layer, 0)
        for x in draws:
            context = Context(tokens=torch.zeros(x.shape[:2], dtype=torch.long), record_usage=True)
            layer(x, context).square().sum().backward()
        return [each.grad.clone() for each in layer.parameters()], layer.usage.report()

    expected, expected_usage = passes()
    monkeypatch.setattr(op, "is_fused", lambda _: True)
    found, usage = passes()

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert usage == expected_usage


def test_tokens_may_have_any_number_of_rows(interpreted):
    """As where experts choose: token 1 has none, and the last expert no row."""
    interpreted(triton)
    floats, _, _, grad = _case(3, 8, 8, 3, 2)
    token, expert = torch.tensor([0, 2, 0, 2, 2]), torch.tensor([0, 0, 1, 1, 1])
    routes = (token, *_by_token(token, 3), torch.tensor([2, 5, 5], dtype=torch.int32))
    floats = (*floats[:4], floats[4][:5])
    exact = tuple(each.double().requires_grad_() for each in floats)
    expected = _expected(exact, token, expert)
    expected_grads = torch.autograd.grad(expected, exact, grad.double())

    output, gated, upped = triton.forward(*floats, *routes)
    grads = triton.backward(*floats, *routes, gated, upped, grad)

    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    assert grads[1][2].eq(0).all()


def _by_token(token: Tensor, n_tokens: int) -> tuple[Tensor, Tensor]:
    ordered, rows = token.sort(stable=True)
    return rows, torch.searchsorted(ordered, torch.arange(n_tokens))


@pytest.mark.parametrize("sizes", [[0], [1, 0, 128, 129, 0, 300], [0, 0, 5]], ids=str)
def test_tiles_cover_every_row_once(sizes, interpreted):
    interpreted(triton)
    ends = torch.tensor(sizes).cumsum(0).int()

    experts, first = triton.tile_list(ends, sum(sizes)).tolist()

    covered = [
        (e, row)
        for e, begin in zip(experts, first, strict=True)
        if e >= 0
        for row in range(begin, min(begin + triton.ROWS, int(ends[e])))
    ]
    rows = [e for e, size in enumerate(sizes) for _ in range(size)]
    assert covered == [(e, row) for row, e in enumerate(rows)]


def test_is_a_sound_custom_operation(interpreted):
    interpreted(triton)
    floats, routes, _, grad = _case(5, 8, 8, 3, 2)
    wanting = tuple(each.requires_grad_() for each in floats)

    torch.library.opcheck(
        torch.ops.memscale.expert_mlp.default,
        (*wanting, *routes),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    found = torch.autograd.grad(expert_mlp(*wanting, *routes), wanting, grad)

    _, gated, upped = triton.forward(*(each.detach() for each in floats), *routes)
    expected = triton.backward(*(each.detach() for each in floats), *routes, gated, upped, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
