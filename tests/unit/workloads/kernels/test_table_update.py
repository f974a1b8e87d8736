"""The rules of table updates, against torch's optimizers and against loops over the reads."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.table_update.op import row_sums
from workloads.kernels.table_update.split_master import join, split, write_halves
from workloads.kernels.table_update.stochastic_rounding import random_bits, round_to_bf16
from workloads.kernels.table_update.update_rules import Rule, new_state

KINDS = ["adamw", "lazy_adamw", "rowwise", "sgd"]
RULE = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.2, "seed": 3}


def hits(
    generator: torch.Generator, *, rows: int, width: int, bags: int = 4, dtype=torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, weights and x; only the lower half of the rows is read."""
    return (
        torch.randint(max(1, rows // 2), (bags, 3), generator=generator),
        torch.randn(bags, 3, generator=generator).to(dtype),
        torch.randn(bags, width, generator=generator).to(dtype),
    )


def dense(ids: Tensor, weights: Tensor, x: Tensor, rows: int) -> Tensor:
    """Return the gradient, read by read."""
    gradient = torch.zeros(rows, x.shape[1], dtype=x.dtype)
    for bag in range(len(ids)):
        for read, row in enumerate(ids[bag].tolist()):
            gradient[row] += weights[bag, read] * x[bag]
    return gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adamw_has_the_bits_of_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(10, 7, generator=generator).to(dtype)
    parameter = torch.nn.Parameter(table.clone())
    adamw = torch.optim.AdamW(
        [parameter], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2, foreach=False
    )
    state = new_state("adamw", table)
    for step in range(1, 11):
        ids, weights, x = hits(generator, rows=10, width=7, dtype=dtype)
        dense_table = parameter.detach().clone().requires_grad_()
        (torch.nn.functional.embedding(ids, dense_table) * weights[..., None]).sum(1).backward(x)
        sums = row_sums(table, ids, weights, x)
        parameter.grad = torch.zeros_like(table).index_copy_(0, sums._rows, sums._sums)
        torch.testing.assert_close(parameter.grad, dense_table.grad)
        adamw.step()

        sums.update_(state, Rule(kind="adamw", step=step, **RULE))

        assert torch.equal(table, parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sgd_without_decay_has_the_bits_of_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(10, 7, generator=generator).to(dtype)
    parameter = torch.nn.Parameter(table.clone())
    sgd = torch.optim.SGD([parameter], lr=0.1, foreach=False)
    for step in range(1, 11):
        ids, weights, x = hits(generator, rows=10, width=7, dtype=dtype)
        sums = row_sums(table, ids, weights, x)
        parameter.grad = torch.zeros_like(table).index_copy_(0, sums._rows, sums._sums)
        torch.testing.assert_close(parameter.grad, dense(ids, weights, x, 10))
        sgd.step()

        sums.update_({}, Rule(kind="sgd", step=step, **{**RULE, "weight_decay": 0.0}))

        assert torch.equal(table, parameter)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.sampled_from([1, 2, 11]),
    width=st.sampled_from([1, 5, 16]),
    bags=st.sampled_from([0, 1, 4]),
    seed=st.integers(0, 9),
)
def test_every_rule_is_its_equation(kind, rows, width, bags, seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, width, generator=generator).double()
    expected, m, s = table.clone(), torch.zeros_like(table), torch.zeros_like(table)
    q = torch.zeros(rows, dtype=torch.float64)
    state = new_state(kind, table)
    for step in range(1, 4):
        ids, weights, x = hits(generator, rows=rows, width=width, bags=bags)
        gradient = dense(ids, weights, x, rows)
        for row in range(rows):
            if kind != "adamw" and row not in ids:
                continue
            g = 0.5 * gradient[row]
            expected[row] *= 1 - 0.1 * 0.2
            if kind in ("adamw", "lazy_adamw"):
                m[row] = 0.8 * m[row] + 0.2 * g
                s[row] = 0.9 * s[row] + 0.1 * g**2
                first = m[row] / (1 - 0.8**step)
                expected[row] -= 0.1 * first / ((s[row] / (1 - 0.9**step)).sqrt() + 1e-6)
            elif kind == "rowwise":
                now = (g**2).mean()
                q[row] = now if q[row] == 0 else 0.9 * q[row] + 0.1 * now
                expected[row] -= 0.1 * g / (q[row].sqrt() + 1e-6)
            else:
                expected[row] -= 0.1 * g

        sums = row_sums(table, ids, weights, x)
        norm = sums.norm()
        after = sums.update_(state, Rule(kind=kind, step=step, **RULE), torch.tensor(0.5))

        torch.testing.assert_close(norm, torch.linalg.vector_norm(gradient))
        assert torch.equal(norm, after)
    torch.testing.assert_close(table, expected)
    for name, value in {"exp_avg": m, "exp_avg_sq": s, "mean_square": q}.items():
        if name in state:
            torch.testing.assert_close(state[name], value)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_with_a_master_a_table_is_the_fp32_one_rounded(kind, clipped):
    """Bit for bit over ten steps, moments included.

    The fp32 table's own tests say that it is torch's.
    """
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(10, 7, generator=generator)
    table, low = split(exact)
    exact_state, state = new_state(kind, exact), {**new_state(kind, table, master=True), "low": low}
    coefficient = torch.tensor(0.3) if clipped else None
    nearest = 0
    for step in range(1, 11):
        read = hits(generator, rows=10, width=7, dtype=torch.float32)
        rule = Rule(kind=kind, step=step, **{**RULE, "lr": 1e-4})
        expected = row_sums(exact, *read).update_(exact_state, rule, coefficient)

        found = row_sums(table, *read).update_(state, rule, coefficient)

        assert torch.equal(found, expected)
        assert torch.equal(join(table, state["low"]), exact)
        nearest += torch.equal(table, exact.bfloat16())
    assert nearest == 10
    assert (state["low"] != 0).float().mean() > 0.9
    for name, value in exact_state.items():
        assert state[name].dtype == torch.float32
        assert torch.equal(state[name], value)


def test_halves_are_the_nearest_bf16_and_what_is_left():
    every_low = torch.arange(2**16, dtype=torch.int32)
    highs = [0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x7F7E, 0x7F7F]
    highs += [high - 2**15 for high in highs]
    bits = torch.stack([(high << 16) + every_low for high in highs])
    values = bits.view(torch.float32)

    high, low = split(values)

    assert torch.equal(join(high, low).view(torch.int32), bits)
    ties = (bits & 0xFFFF) == 0x8000
    assert torch.equal(high[~ties], values.bfloat16()[~ties])
    assert (high[ties].float().abs() > values[ties].abs()).all()


def test_halves_of_what_is_not_finite():
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -(2**23) + 1], dtype=torch.int32)
    values = torch.cat([payloads.view(torch.float32), torch.tensor([math.inf, -math.inf])])

    high, low = split(values)

    assert high[:4].isnan().all()
    assert high[4:].tolist() == [math.inf, -math.inf]
    assert low.tolist() == [0] * 6
    assert join(high, low)[:4].isnan().all()
    assert join(high, low)[4:].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("shape", "at_once"), [((7, 5), 10), ((7, 5), 1), ((3, 0), 4), ((0, 3), 4)]
)
def test_halves_are_written_in_pieces(shape, at_once):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    high, low = torch.empty(shape, dtype=torch.bfloat16), torch.empty(shape, dtype=torch.int16)

    write_halves(values, high=high, low=low, at_once=at_once)

    assert torch.equal(join(high, low), values.float())


def test_only_a_bf16_table_has_a_master():
    with pytest.raises(ValueError, match="a table with a master must be bf16, got torch.float32"):
        new_state("sgd", torch.zeros(2, 2), master=True)


@pytest.mark.parametrize(
    ("dtype", "master"),
    [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)],
    ids=["bf16", "bf16_master", "fp32"],
)
@pytest.mark.parametrize("part", [(slice(3, 9), slice(0, 16)), (slice(0, 10), slice(5, 12))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_updated_as_the_whole_is_there(kind, part, dtype, master):
    """Bit for bit, rounding included.

    The numbers are small and whole, so that no sum has an order.
    """
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(10, 16, generator=generator).to(dtype)
    ids, weights = (torch.randint(n, (14, 1), generator=generator) for n in (7, 3))
    x = torch.randint(-4, 5, (14, 16), generator=generator).to(dtype)
    weights = weights.to(dtype)
    rows, columns = part
    own = table[part].clone()
    state, own_state = (new_state(kind, t, master=master) for t in (table, own))
    here = ((ids >= rows.start) & (ids < rows.stop))[:, 0]
    for step in (1, 2):
        rule = Rule(kind=kind, step=step, **RULE)
        sums = row_sums(table, ids, weights, x)
        of_rows = sums.row_squares()[rows] / 16
        torch.testing.assert_close(
            sums.row_squares(), dense(ids, weights.float(), x.float(), 10).square().sum(1)
        )
        sums.update_(state, rule, torch.tensor(0.5))

        origin = replace(rule, origin=(rows.start, columns.start))
        row_sums(own, ids[here] - rows.start, weights[here], x[here][:, columns]).update_(
            own_state, origin, torch.tensor(0.5), mean_squares=of_rows
        )

    assert torch.equal(own, table[part])
    for name, value in own_state.items():
        assert torch.equal(value, state[name][rows] if value.ndim == 1 else state[name][part])


@pytest.mark.parametrize("kind", ["lazy_adamw", "rowwise", "sgd"])
def test_copies_of_rows_are_rounded_as_the_rows_are(kind):
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(10, 16, generator=generator).bfloat16()
    row_ids = torch.tensor([1, 4, 8])
    copies = table[row_ids]
    places, weights = torch.tensor([[2], [0], [1]]), torch.ones(3, 1)
    x = torch.randn(3, 16, generator=generator)
    state, own_state = new_state(kind, table), new_state(kind, copies)
    rule = Rule(kind=kind, step=1, **RULE)

    row_sums(table, row_ids[places], weights, x).update_(state, rule)
    row_sums(copies, places, weights, x).update_(own_state, rule, row_ids=row_ids.int())

    assert torch.equal(copies, table[row_ids])
    assert all(torch.equal(value, state[name][row_ids]) for name, value in own_state.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(10, 0), (0, 7)])
def test_a_part_without_rows_or_columns_is_updated_to_nothing(kind, shape):
    table = torch.empty(shape)
    sums = row_sums(
        table, torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, 3), torch.ones(2, shape[1])
    )

    assert sums.row_squares().tolist() == [0.0] * shape[0]
    assert sums.update_(new_state(kind, table), Rule(kind=kind, step=1, **RULE)) == 0.0


@pytest.mark.parametrize("master", [False, True], ids=["no master", "master"])
@pytest.mark.parametrize("kind", ["lazy_adamw", "rowwise", "sgd"])
def test_rows_that_are_not_read_keep_their_bits(kind, master):
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(10, 7, generator=generator).bfloat16()
    state = new_state(kind, table, master=master)
    if master:
        state["low"].random_(-(2**15), 2**15, generator=generator)
    before = table.clone(), {name: value.clone() for name, value in state.items()}

    row_sums(table, *hits(generator, rows=10, width=7, dtype=torch.bfloat16)).update_(
        state, Rule(kind=kind, step=1, **RULE)
    )

    assert torch.equal(table[5:], before[0][5:])
    assert not torch.equal(table[:5], before[0][:5])
    for name, value in state.items():
        assert torch.equal(value[5:], before[1][name][5:])


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_follows_the_rule_to_a_neighbour_and_on_average(kind):
    """A step too small for bf16 moves a table by the right amount on average over many seeds."""
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(6, 32, generator=generator).bfloat16()
    read = hits(generator, rows=6, width=32, dtype=torch.bfloat16)
    rule = {**RULE, "lr": 1e-4, "weight_decay": 0.1}
    exact = start.float()
    row_sums(exact, *read).update_(new_state(kind, exact), Rule(kind=kind, step=1, **rule))
    spacing = torch.finfo(torch.bfloat16).eps * 2 ** start.float().abs().log2().floor()
    n_seeds = 200

    total = torch.zeros(6, 32)
    for seed in range(n_seeds):
        table = start.clone()
        row_sums(table, *read).update_(
            new_state(kind, table), Rule(kind=kind, step=1, **{**rule, "seed": seed})
        )
        assert ((table.float() - exact).abs() <= 2 * spacing).all()
        total += table.float()

    # A rounding errs by at most one spacing, its variance is at most a quarter of that squared.
    error = (total / n_seeds - exact) / spacing
    assert error.abs().max() < 4.5 * 0.5 / math.sqrt(n_seeds)
    assert abs(error.mean()) < 4 * 0.5 / math.sqrt(n_seeds * error.numel())


def test_rounding_keeps_what_bf16_holds_and_what_is_not_finite():
    values = torch.tensor([[1.0, -0.0, 1e-40, math.inf, -math.inf, math.nan, -3.140625]])

    rounded = round_to_bf16(values, torch.tensor([5]), key=7)

    assert rounded[0, [0, 1, 6]].tolist() == [1.0, 0.0, -3.140625]
    assert rounded[0, 1].signbit()
    assert rounded[0, 3:5].tolist() == [math.inf, -math.inf]
    assert rounded[0, 5].isnan()
    assert 0 <= rounded[0, 2] < 1e-39


def test_random_bits_are_named_and_look_independent():
    bits = random_bits(torch.arange(512), 256, key=11)

    assert torch.equal(random_bits(torch.tensor([40, 3]), 100, key=11), bits[[40, 3], :100])
    assert not torch.equal(random_bits(torch.arange(512), 256, key=12), bits)
    unit = (bits >> 16).double() / 2**16 - 0.5
    shifts = [unit, unit.roll(1, 0), unit.roll(1, 1)]
    shifts += [(random_bits(torch.arange(512), 256, key=12) >> 16).double() / 2**16 - 0.5]
    correlation = torch.corrcoef(torch.stack([s.flatten() for s in shifts]))
    assert (correlation - torch.eye(4)).abs().max() < 5 / math.sqrt(unit.numel())
    assert abs(unit.mean()) < 5 / math.sqrt(12 * unit.numel())
    counts = torch.bincount((bits >> 28).flatten(), minlength=16).double()
    expected = bits.numel() / 16
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 15 degrees of freedom: one in 10^4


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.zeros(2, 2, dtype=torch.float16), "fp32 or bf16"),
        (torch.zeros(3, 2).t(), "contiguous"),
    ],
)
def test_a_table_that_cannot_be_updated_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        row_sums(table, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1), torch.ones(1, 2))
