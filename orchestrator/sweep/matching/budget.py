"""Compute budgets: tokens, steps and sizes that spend one, in whole numbers.

Training FLOPs of a run are `3 * forward_flops_per_token * steps * batch_tokens`
(workloads/accounting/counts.py).
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
    quantity: Callable[[int], float | None],
    target: float,
    *,
    low: int = 1,
    high: int = 2**24,
    written: int | None = None,
) -> int | None:
    """Return the integer in low..high at which `quantity` is nearest to `target`.

    A doubling search for a bracket, then bisection: about 2 log2(high) evaluations where everything
    is possible. None if no integer is possible. Of neighbours that come equally near, the first on
    the way from `written` (else the smallest): where a quantity moves in steps, a config is changed
    no more than it must be.

    Args:
        quantity: Integer -> number, or None where the integer is impossible (heads that must divide
            a width). Must not decrease. What is possible may be sparse: see `first_possible`.
        target: What to come near to.
        low: Smallest integer looked at.
        high: Largest integer looked at.
        written: The value that stands in the file.
    """
    known: dict[int, float | None] = {}

    def number(n: int) -> float | None:
        if n not in known:
            known[n] = quantity(n)
        return known[n]

    def possible(n: int) -> bool:
        return number(n) is not None

    def at(n: int) -> float:
        value = number(n)
        assert value is not None, "only possible integers are asked for"
        return value

    first = first_possible(possible, range(low, high + 1))
    if first is None:
        return None
    below = above = first
    while at(above) < target:
        below = above
        beyond = first_possible(possible, range(max(2 * below, below + 1), high + 1))
        if beyond is None:
            above = _last_possible(possible, below, min(2 * below, high + 1))
            break
        above = beyond
    if at(above) >= target:
        below, above = _narrowed(possible, lambda n: at(n) < target, inside=below, outside=above)
    best = below if abs(at(below) - target) <= abs(at(above) - target) else above
    wanted = first if written is None else written
    towards = 1 if wanted > best else -1
    nearest = first_possible(possible, range(min(max(wanted, first), high), best, -towards))
    if nearest is None or at(nearest) == at(best):
        return best if nearest is None else nearest
    return _narrowed(possible, lambda n: at(n) == at(best), inside=best, outside=nearest)[0]


def first_possible(possible: Callable[[int], bool], integers: range) -> int | None:
    """Return the first possible integer of a range of step 1 or -1, or None.

    Looks at GAP integers one by one and then at GAP multiples of GAP: whatever is possible so
    rarely (powers of two, say) is taken to be such a multiple.
    """
    for n in integers[:GAP]:
        if possible(n):
            return n
    rest = integers[GAP:]
    if not rest:
        return None
    multiple = -(-rest[0] // GAP) * GAP if rest.step > 0 else rest[0] // GAP * GAP
    coarse = range(multiple, rest.stop, rest.step * GAP)
    return next((n for n in coarse[:GAP] if possible(n)), None)


GAP = 1024
"""Impossible integers in a row that a search passes over one by one."""


def _last_possible(possible: Callable[[int], bool], lower: int, stop: int) -> int:
    """Return the largest possible integer in lower..stop - 1 by halving; `lower` is possible."""
    while stop - lower > 1:
        middle = (lower + stop) // 2
        found = first_possible(possible, range(middle, stop))
        if found is None:
            stop = middle
        else:
            lower = found
    return lower


def _narrowed(
    possible: Callable[[int], bool], holds: Callable[[int], bool], *, inside: int, outside: int
) -> tuple[int, int]:
    """Halve inside..outside until no possible integer is between; `holds` at the first only."""
    towards = 1 if outside > inside else -1
    while inside != outside:
        middle = (inside + outside) // 2 if towards > 0 else -((-inside - outside) // 2)
        found = None
        if middle != inside:
            found = first_possible(possible, range(middle, outside, towards))
        if found is None:
            found = first_possible(possible, range(middle - towards, inside, -towards))
        if found is None:
            break
        if holds(found):
            inside = found
        else:
            outside = found
    return inside, outside


def optimal_size(
    forward_flops_per_token: Callable[[float], float],
    *,
    budget_flops: float,
    tokens_per_param: float,
    low: float = 1e2,
    high: float = 1e13,
) -> float:
    """Return the N at which `tokens_per_param * N` tokens spend the budget: 3 f(N) r N = C.

    The middle of an isoFLOP profile, from each architecture's own FLOPs rather than from C = 6 N D:
    that rule forgets the output head, which at 1m parameters is most of the compute. Bisection on
    log N to 0.1 %; `f` need only be roughly increasing. Source of the fixed ratio: Hoffmann et al.
    2022, section 3.
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
    """Return `count` log-spaced sizes from center / sqrt(span) to center * sqrt(span)."""
    if count == 1:
        return [center]
    return [center * span ** (i / (count - 1) - 0.5) for i in range(count)]


def most_batch_tokens(
    budget_flops: float, *, forward_flops_per_token: float, multiple_of: int
) -> int:
    """Return the largest multiple of `multiple_of` as batch with which whole steps hit the budget.

    Rounding to whole steps errs by half a step at most, so 1 / (2 * TOLERANCE) = 50 steps suffice.
    Zero if not even one sequence per step is small enough.
    """
    batch = budget_flops * 2 * TOLERANCE / (3.0 * forward_flops_per_token)
    return int(batch) // multiple_of * multiple_of
