"""First moments in int8: what is stored, and updates beside torch's AdamW in float64 and beside full moments."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.table_update.int8_moment import BLOCK, dequantise, n_scales, quantise
from workloads.kernels.table_update.op import row_sums
from workloads.kernels.table_update.split_master import join, split
from workloads.kernels.table_update.update_rules import Rule, new_state

RULE = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.2, "seed": 3}
ADAMW = ["adamw", "lazy_adamw"]


def hits(
    generator: torch.Generator, *, rows: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, weights and x of four bags; only the lower half of the rows is read."""
    return (
        torch.randint(max(1, rows // 2), (4, 3), generator=generator),
        torch.randn(4, 3, generator=generator).to(dtype),
        torch.randn(4, width, generator=generator).to(dtype),
    )


def state_of(kind: str, table: Tensor, generator: torch.Generator, **options: bool):
    """Return a state in which every number is something."""
    state = new_state(kind, table, moments="int8", **options)
    state["exp_avg"].random_(-127, 128, generator=generator)
    for name in ("exp_avg_scale", "exp_avg_sq"):
        state[name].uniform_(0.1, 1.0, generator=generator)
    return state


def full(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with its first moment as it is read."""
    kept = {name: value.clone() for name, value in state.items() if name != "exp_avg_scale"}
    return {**kept, "exp_avg": dequantise(state["exp_avg"], state["exp_avg_scale"])}


def of_each_number(scales: Tensor, width: int) -> Tensor:
    return scales.repeat_interleave(BLOCK, 1)[:, :width]


@settings(max_examples=30)
@given(
    rows=st.sampled_from([0, 1, 5]),
    width=st.sampled_from([0, 1, 8, 127, 128, 129, 300]),
    exponent=st.integers(-90, 100),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 9),
)
def test_a_value_is_stored_as_one_of_its_two_neighbours(rows, width, exponent, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator, dtype=dtype) * 2.0**exponent

    numbers, scales = quantise(values, torch.arange(rows), key=seed)

    assert numbers.dtype == torch.int8
    assert scales.shape == (rows, n_scales(width)) == (rows, math.ceil(width / 128))
    found, scale = dequantise(numbers, scales), of_each_number(scales, width)
    assert found.dtype == dtype
    assert ((found - values).abs() <= scale * 1.0001).all()
    for row in range(rows):
        for first in range(0, width, 128):
            block = values[row, first : first + 128].abs()
            torch.testing.assert_close(scales[row, first // 128] * 127, block.max())
            assert abs(int(numbers[row, first + int(block.argmax())])) == 127


def test_what_is_stored_is_right_on_average():
    """Each number to four and a half standard errors, all together to four."""
    values = torch.randn(4, 200, generator=torch.Generator().manual_seed(0)) ** 3
    n_keys = 1000

    found = torch.stack(
        [dequantise(*quantise(values, torch.arange(4), key=key)) for key in range(n_keys)]
    ).double()

    scale = of_each_number(quantise(values, torch.arange(4), key=0)[1], 200)
    share = (values / scale).double() % 1
    deviation = scale * (share * (1 - share)).sqrt()
    z = (found.mean(0) - values) / (deviation + 1e-6 * scale) * math.sqrt(n_keys)
    assert z.abs().max() < 4.5
    assert abs(z.mean()) < 4 / math.sqrt(z.numel())
    assert found.var(0).sum().item() == pytest.approx(deviation.square().sum().item(), rel=0.05)


def test_whole_multiples_of_a_scale_are_kept():
    numbers = torch.arange(-127, 128)[None] * torch.tensor([[1], [-1], [1]])
    values = numbers * torch.tensor([[1.0], [2.0**-20], [2.0**90]])

    for key in range(20):
        stored, scales = quantise(values, torch.arange(3), key=key)
        assert torch.equal(stored.long(), numbers)
        torch.testing.assert_close(scales[:, 0], torch.tensor([1.0, 2.0**-20, 2.0**90]))


def test_a_block_of_zeros_has_scale_zero_and_one_that_is_not_finite_is_not_finite():
    values = torch.ones(6, 300)
    values[0] = 0.0
    values[1, :128] = 0.0
    values[2, :128] = 2.0**-97
    values[2, 128:] = 2.0**-96
    values[3, 130], values[4, 5], values[5, 299] = math.nan, math.inf, -math.inf

    numbers, scales = quantise(values, torch.arange(6), key=1)

    found = dequantise(numbers, scales)
    assert scales[0].tolist() == [0.0] * 3
    assert scales[1:3, 0].tolist() == [0.0, 0.0]
    assert not numbers[0].any()
    assert not found[:3, :128].any()
    assert torch.equal(found[1:3, 128:], torch.full((2, 172), 127.0) * scales[1:3, 1:2])
    finite = torch.ones(6, 300, dtype=torch.bool)
    finite[3, 128:256] = finite[4, :128] = finite[5, 256:] = False
    assert torch.equal(found.isfinite(), finite)


def test_random_numbers_are_those_of_the_place_in_the_whole_table():
    values = torch.randn(9, 300, generator=torch.Generator().manual_seed(0))
    numbers, scales = quantise(values, torch.arange(9), key=5)

    part, part_scales = quantise(values[2:7, 128:], torch.arange(2, 7), key=5, first_column=128)

    assert torch.equal(part, numbers[2:7, 128:])
    assert torch.equal(part_scales, scales[2:7, 1:])
    assert not torch.equal(quantise(values, torch.arange(9), key=6)[0], numbers)
    assert not torch.equal(quantise(values, torch.arange(9) + 1, key=5)[0], numbers)


def test_moments_of_four_steps_are_adamws_on_average():
    """The oracle is torch's AdamW in float64. A step's rounding counts beta1 times less in the next."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(6, 130, generator=generator)
    reads = [hits(generator, rows=6, width=130) for _ in range(4)]
    parameter = torch.nn.Parameter(start.double())
    adamw = torch.optim.AdamW(
        [parameter], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2, foreach=False
    )
    for ids, weights, x in reads:
        table = parameter.detach().clone().requires_grad_()
        rows = torch.nn.functional.embedding(ids, table)
        (rows * weights.double()[..., None]).sum(1).backward(x.double())
        parameter.grad = table.grad
        adamw.step()
    exact = adamw.state[parameter]
    n_seeds = 200

    total, scale = torch.zeros(6, 130, dtype=torch.float64), torch.zeros(6, 130)
    moved = torch.zeros(6, 130, dtype=torch.float64)
    for seed in range(n_seeds):
        table, state = start.clone(), new_state("adamw", start, moments="int8")
        for step, read in enumerate(reads, start=1):
            rule = Rule(kind="adamw", step=step, **{**RULE, "seed": seed})
            row_sums(table, *read).update_(state, rule)
            scale = torch.maximum(scale, of_each_number(state["exp_avg_scale"], 130))
        total += dequantise(state["exp_avg"], state["exp_avg_scale"])
        moved += table

    # A rounding has at most a quarter of the squared scale as its variance; 1 / (1 - 0.8^2) of them come together.
    deviation = 0.5 * scale / math.sqrt(1 - 0.8**2) + 1e-6
    error = (total / n_seeds - exact["exp_avg"]) / deviation * math.sqrt(n_seeds)
    assert error.abs().max() < 4.5
    assert abs(error.mean()) < 4 / math.sqrt(error.numel())
    torch.testing.assert_close(state["exp_avg_sq"].double(), exact["exp_avg_sq"], rtol=1e-5, atol=0)
    # lr / (1 - beta1^t) m / sqrt(s): the values are as much right on average, where s is not tiny.
    sizes = (exact["exp_avg_sq"] / (1 - 0.9**4)).sqrt()
    bound = 3 * 0.1 / (1 - 0.8**2) * 4.5 * deviation / sizes / math.sqrt(n_seeds)
    read = sizes > 0.05
    assert read.float().mean() > 0.4
    assert ((moved / n_seeds - parameter.detach()).abs() <= bound + 1e-5)[read].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ADAMW)
def test_a_step_is_that_of_full_moments_and_its_moment_is_a_scale_away(kind, dtype):
    """Table and second moment bit for bit, from the moment as it is read: only what is stored of it is rounded."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(10, 200, generator=generator).to(dtype)
    state = state_of(kind, table, generator)
    expected, expected_state = table.clone(), full(state)
    read = hits(generator, rows=10, width=200, dtype=dtype)
    rule = Rule(kind=kind, step=7, **RULE)

    norm = row_sums(table, *read).update_(state, rule, torch.tensor(0.5))

    assert norm == row_sums(expected, *read).update_(expected_state, rule, torch.tensor(0.5))
    assert torch.equal(table, expected)
    assert torch.equal(state["exp_avg_sq"], expected_state["exp_avg_sq"])
    off = dequantise(state["exp_avg"], state["exp_avg_scale"]) - expected_state["exp_avg"]
    assert (off.abs() <= of_each_number(state["exp_avg_scale"], 200) * 1.0001).all()
    assert off[:5].any()


@pytest.mark.parametrize("kind", ADAMW)
def test_rows_that_are_not_read_keep_their_numbers(kind):
    """AdamW's moments there are multiplied by beta1, and nothing is rounded again."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(10, 200, generator=generator)
    state = state_of(kind, table, generator)
    before, before_table = {name: value.clone() for name, value in state.items()}, table.clone()

    for step in (1, 2, 3):
        row_sums(table, *hits(generator, rows=10, width=200)).update_(
            state, Rule(kind=kind, step=step, **RULE)
        )

    assert torch.equal(state["exp_avg"][5:], before["exp_avg"][5:])
    assert not torch.equal(state["exp_avg"][:5], before["exp_avg"][:5])
    decay = 0.8**3 if kind == "adamw" else 1.0
    torch.testing.assert_close(
        state["exp_avg_scale"][5:], before["exp_avg_scale"][5:] * decay, rtol=1e-6, atol=0
    )
    assert torch.equal(table[5:], before_table[5:]) == (kind == "lazy_adamw")


@pytest.mark.parametrize("kind", ADAMW)
def test_with_a_master_a_table_is_the_fp32_one_rounded(kind):
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(10, 200, generator=generator)
    table, low = split(exact)
    exact_state = new_state(kind, exact, moments="int8")
    state = {**new_state(kind, table, master=True, moments="int8"), "low": low}
    for step in range(1, 6):
        read = hits(generator, rows=10, width=200)
        rule = Rule(kind=kind, step=step, **RULE)

        row_sums(exact, *read).update_(exact_state, rule)
        row_sums(table, *read).update_(state, rule)

        assert torch.equal(join(table, state["low"]), exact)
    for name, value in exact_state.items():
        assert torch.equal(state[name], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("part", [(slice(3, 9), slice(0, 300)), (slice(0, 10), slice(128, 300))])
@pytest.mark.parametrize("kind", ADAMW)
def test_a_part_with_the_blocks_of_the_whole_is_updated_as_the_whole_is_there(kind, part, dtype):
    """Bit for bit; the numbers are small and whole, so that no sum has an order."""
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(10, 300, generator=generator).to(dtype)
    ids, weights = (torch.randint(n, (14, 1), generator=generator) for n in (7, 3))
    x, weights = torch.randint(-4, 5, (14, 300), generator=generator).to(dtype), weights.to(dtype)
    rows, columns = part
    own = table[part].clone()
    state, own_state = (new_state(kind, t, moments="int8") for t in (table, own))
    here = ((ids >= rows.start) & (ids < rows.stop))[:, 0]
    for step in (1, 2):
        rule = Rule(kind=kind, step=step, **RULE)
        row_sums(table, ids, weights, x).update_(state, rule)
        row_sums(own, ids[here] - rows.start, weights[here], x[here][:, columns]).update_(
            own_state, replace(rule, origin=(rows.start, columns.start))
        )

    assert torch.equal(own, table[part])
    assert torch.equal(own_state["exp_avg"], state["exp_avg"][part])
    blocks = slice(columns.start // BLOCK, None)
    assert torch.equal(own_state["exp_avg_scale"], state["exp_avg_scale"][rows, blocks])


@pytest.mark.parametrize("shape", [(10, 0), (0, 7)])
def test_a_table_without_rows_or_columns_is_updated_to_nothing(shape):
    table = torch.empty(shape)
    sums = row_sums(
        table, torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, 3), torch.ones(2, shape[1])
    )

    state = new_state("adamw", table, moments="int8")
    assert sums.update_(state, Rule(kind="adamw", step=1, **RULE)) == 0.0


def test_bytes_of_a_state():
    table = torch.zeros(7, 300, dtype=torch.bfloat16)

    state = new_state("lazy_adamw", table, moments="int8")

    assert sum(kept.nbytes for kept in state.values()) == 7 * (3 * 300 + 4 * 3)


@pytest.mark.parametrize("kind", ["rowwise", "sgd"])
def test_a_rule_without_a_first_moment_is_refused(kind):
    with pytest.raises(ValueError, match=f"for adamw and lazy_adamw, got {kind}, which keeps no"):
        new_state(kind, torch.zeros(2, 2), moments="int8")
