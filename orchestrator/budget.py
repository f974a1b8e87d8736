"""Compute budget -> tokens, steps, sizes: pure arithmetic on whole numbers.

Training FLOPs of a run are `3 * forward_flops_per_token * steps * batch_tokens` (workloads/accounting.py).
"""

import math
from collections.abc import Callable

TOLERANCE = 0.01
"""Largest relative distance from a FLOP target that counts as having hit it."""


def steps_for_tokens(tokens: float, *, batch_tokens: int) -> int:
    """Return the whole steps that see at least `tokens` tokens; at least one."""
    return max(1, math.ceil(tokens / batch_tokens))


def steps_for_budget(budget_flops: float, *, step_flops: float) -> int:
    """Return the whole steps whose FLOPs come nearest to the budget; at least one."""
    return max(1, round(budget_flops / step_flops))


def relative_error(reached: float, target: float) -> float:
    """Return how far `reached` lies from `target`, as a share of the target."""
    return abs(reached - target) / target


def nearest_integer(
    flops: Callable[[int], float], target: float, *, low: int = 1, high: int = 2**24
) -> int:
    """Return the integer in low..high whose FLOPs come nearest to `target`.

    `flops` must not decrease. About 2 log2(high) evaluations: a doubling search for a bracket, then bisection.
    """
    upper = low
    while upper < high and flops(upper) < target:
        upper = min(high, upper * 2)
    lower = low
    while lower < upper:
        middle = (lower + upper) // 2
        if flops(middle) < target:
            lower = middle + 1
        else:
            upper = middle
    if lower > low and abs(flops(lower - 1) - target) <= abs(flops(lower) - target):
        return lower - 1
    return lower


def optimal_size(
    forward_flops_per_token: Callable[[float], float],
    *,
    budget_flops: float,
    tokens_per_param: float,
    low: float = 1e2,
    high: float = 1e13,
) -> float:
    """Return the N at which `tokens_per_param * N` tokens spend the budget: 3 f(N) r N = C.

    The middle of an isoFLOP profile, from each architecture's own FLOPs rather than from C = 6 N D: that
    rule forgets the output head, which at 1m parameters is most of the compute. Bisection on log N to
    0.1 %; `f` need only be roughly increasing. Source of the fixed ratio: Hoffmann et al. 2022, section 3.
    """
    lower, upper = math.log(low), math.log(high)
    while upper - lower > 1e-3:
        middle = (lower + upper) / 2
        size = math.exp(middle)
        if 3.0 * forward_flops_per_token(size) * tokens_per_param * size < budget_flops:
            lower = middle
        else:
            upper = middle
    return math.exp((lower + upper) / 2)


def log_spaced(center: float, *, span: float, count: int) -> list[float]:
    """Return `count` sizes, evenly spaced in log, from center / sqrt(span) to center * sqrt(span)."""
    if count == 1:
        return [center]
    return [center * span ** (i / (count - 1) - 0.5) for i in range(count)]


def most_batch_tokens(
    budget_flops: float, *, forward_flops_per_token: float, multiple_of: int
) -> int:
    """Return the largest batch, a multiple of `multiple_of`, with which whole steps always hit the budget.

    Rounding to whole steps errs by half a step at most, so 1 / (2 * TOLERANCE) = 50 steps suffice. Zero if
    not even one sequence per step is small enough.
    """
    batch = budget_flops * 2 * TOLERANCE / (3.0 * forward_flops_per_token)
    return int(batch) // multiple_of * multiple_of
