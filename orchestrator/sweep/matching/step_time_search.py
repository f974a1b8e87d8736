"""Search for the value of a field at which a noisy ratio of step times is one.

Pure: the function that measures is an argument. A ratio is that of two models whose steps were
timed in turns, block by block, so that what disturbs the machine disturbs both. Every measurement
of a value is kept, and each decision uses all of them.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from orchestrator.sweep.matching import budget
from orchestrator.sweep.matching.step_timer import StepTimeError

MOST_MEASUREMENTS = 30
"""In one search, each of them a few seconds long."""
MOST_OF_ONE = 6
"""Measurements of one value before it is taken for what it is."""
FEWEST_OF_ONE = 2
"""Measurements behind an answer: the value that looked best among several was also the luckiest."""
LARGEST_UNCERTAINTY = 0.05
"""Above this a ratio says nothing about a per cent, however near to one it is."""
FARTHEST = 64
"""The search stops at this multiple of the written value (or of 16), because a larger model may not
fit the machine."""

GRAINS = (64, 8, 1)
"""Multiples of these are tried first, each where the written value is four times as large, because
matrix products are made for them: a step between two may take longer than at the larger one."""

Measure = Callable[[int, bool], Sequence[float]]
"""Value of the field, whether to be exact -> ratios to the target, one per pair of blocks."""


@dataclass(frozen=True, kw_only=True)
class RatioEstimate:
    """A ratio of step times, measured."""

    ratio: float
    """Median over the pairs of blocks."""
    uncertainty: float
    """Twice the standard error of the median, from the median absolute deviation (about 95 %)."""
    measurements: int

    @property
    def error(self) -> float:
        """Distance from equal."""
        return abs(self.ratio - 1.0)

    @property
    def near(self) -> bool:
        """Whether it is one within 1 %, or within what can be told."""
        return self.error <= max(budget.TOLERANCE, self.uncertainty)

    @property
    def open(self) -> bool:
        """Whether more measurements may show that it is near after all."""
        maybe = self.error <= budget.TOLERANCE + self.uncertainty
        return self.measurements < (MOST_OF_ONE if maybe else FEWEST_OF_ONE)

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ± {self.uncertainty:.3f}"


class NoMatchError(StepTimeError):
    """No value has the ratio that is looked for."""


def estimate(runs: Sequence[Sequence[float]]) -> RatioEstimate:
    """Return median and uncertainty of all ratios of one value.

    For normal noise the deviation of the median is 1.2533 sigma / sqrt(n), and sigma 1.4826 times
    the median absolute deviation; rare long blocks, of which a shared machine has many, move
    neither.
    """
    ratios = [ratio for run in runs for ratio in run]
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    within = 1.2533 * spread / math.sqrt(len(ratios))
    # A model that is built anew lies elsewhere in memory, which no block of one measurement shows.
    medians = [statistics.median(run) for run in runs]
    between = statistics.stdev(medians) / math.sqrt(len(runs)) if len(runs) > 1 else 0.0
    return RatioEstimate(ratio=middle, uncertainty=2 * max(within, between), measurements=len(runs))


def settled(
    measure: Callable[[], Sequence[float]], *, report: Callable[[RatioEstimate], None]
) -> RatioEstimate:
    """Return a ratio that is known within 1 %, or as well as a few measurements can tell.

    Raises:
        NoMatchError: If the timings vary too much to say anything.
    """
    runs: list[Sequence[float]] = []
    while True:
        runs.append(measure())
        found = estimate(runs)
        report(found)
        exact = len(runs) >= FEWEST_OF_ONE and found.uncertainty <= budget.TOLERANCE
        if exact or len(runs) == MOST_OF_ONE:
            return _checked(found)


def search(
    measure: Measure,
    *,
    field: str,
    wanted: str,
    start: int,
    possible: Callable[[int], bool],
    report: Callable[[int, RatioEstimate], None],
) -> tuple[int, RatioEstimate]:
    """Return the value whose ratio is one within 1 % or its own uncertainty, and that ratio.

    From the written value in steps of two until the ratio lies on both sides of one; then a
    straight line through the nearest values on both sides, every third time their middle. First
    among multiples of GRAINS.

    Args:
        measure: Times one value.
        field: Its name, for messages.
        wanted: What is looked for, for messages: `the step time of dense`.
        start: Where to begin; possible.
        possible: Whether a model can be built with a value.
        report: Called after every measurement.

    Raises:
        NoMatchError: If no value is near enough, or none was found in MOST_MEASUREMENTS.
    """
    runs: dict[int, list[Sequence[float]]] = {}
    seen: dict[int, RatioEstimate] = {}
    value: int | None = start
    for count in range(MOST_MEASUREMENTS):
        assert value is not None, "the search goes on only with a value to measure"
        known = runs.get(value, [])
        runs[value] = [*known, measure(value, len(known) > 0)]
        seen[value] = estimate(runs[value])
        report(value, seen[value])
        best = min(seen, key=lambda v: (seen[v].error, v))
        if seen[best].near:
            enough = seen[best].measurements >= FEWEST_OF_ONE
            exact = seen[best].uncertainty <= budget.TOLERANCE
            if enough and (exact or seen[best].measurements >= MOST_OF_ONE):
                return best, _checked(seen[best])
            value = best
            continue
        value = _next(seen, start=start, possible=possible, middle=count % 3 == 2)
        if value is None:
            # Where nothing new is left to try, the two nearest are measured again before the search
            # gives up.
            nearest = sorted(seen, key=lambda v: (seen[v].error, v))[:2]
            value = next((v for v in nearest if seen[v].open), None)
        if value is None:
            break
    raise _not_found(seen, field=field, wanted=wanted, exhausted=value is None)


def _not_found(
    seen: dict[int, RatioEstimate], *, field: str, wanted: str, exhausted: bool
) -> NoMatchError:
    """Return why the search gives up: nothing is left to try, or too much was tried."""
    best = min(seen, key=lambda v: (seen[v].error, v))
    nearest_is = f"the nearest is {field} {best} with {seen[best]} × it"
    if exhausted:
        small = "smaller" if seen[best].ratio > 1 else "larger"
        return NoMatchError(
            f"no {field} gives {wanted} within 1 %: {nearest_is}",
            f"make the rest of the model {small}, or solve for another field",
        )
    return NoMatchError(
        f"no {field} that gives {wanted} was found in {MOST_MEASUREMENTS} measurements: "
        f"{nearest_is}",
        "end what else runs on this machine and plan again, "
        "or solve for a field that changes the time more",
    )


def _checked(found: RatioEstimate) -> RatioEstimate:
    if found.uncertainty <= LARGEST_UNCERTAINTY:
        return found
    raise NoMatchError(
        f"timings vary too much on this machine: a ratio of {found} after "
        f"{found.measurements} measurements",
        "end what else runs on it and plan again, or match training_flops",
    )


def _next(
    seen: dict[int, RatioEstimate], *, start: int, possible: Callable[[int], bool], middle: bool
) -> int | None:
    """Return the value to measure next, among the coarsest multiples that may help, or None."""
    for grain in GRAINS:
        if grain == 1 or 4 * grain <= start:
            among = {v: found for v, found in seen.items() if v % grain == 0}
            fits = partial(_is_multiple, possible=possible, grain=grain)
            value = _next_among(among, start=start, possible=fits, middle=middle)
            if value is not None:
                return value
    return None


def _is_multiple(value: int, *, possible: Callable[[int], bool], grain: int) -> bool:
    return value % grain == 0 and possible(value)


def _next_among(
    seen: dict[int, RatioEstimate], *, start: int, possible: Callable[[int], bool], middle: bool
) -> int | None:
    """Return the value to measure next, or None where no new one can help."""
    if not seen:
        return budget.first_possible(possible, range(start, 0, -1))
    faster = [v for v in seen if seen[v].ratio < 1]
    slower = [v for v in seen if seen[v].ratio >= 1]
    if not slower:
        top, farthest = max(faster), FARTHEST * max(start, 16)
        guess = min(max(2 * top, min(_straight_on(seen, faster), 8 * top)), farthest)
        return budget.first_possible(possible, range(max(guess, top + 1), farthest + 1)) or (
            budget.first_possible(possible, range(guess - 1, top, -1))
        )
    if not faster:
        bottom = min(slower)
        guess = min(bottom // 2, _straight_on(seen, slower))
        return budget.first_possible(possible, range(guess, 0, -1)) or (
            budget.first_possible(possible, range(guess + 1, bottom))
        )
    ordered = sorted(seen)
    crossings = [
        (low, high)
        for low, high in itertools.pairwise(ordered)
        if seen[low].ratio < 1 <= seen[high].ratio
    ]
    if not crossings:
        # Larger values look faster than smaller ones: noise, unless more measurements say the same.
        return _least_sure(seen, ordered)
    low, high = min(crossings, key=lambda pair: seen[pair[0]].error + seen[pair[1]].error)
    if seen[high].ratio / seen[low].ratio > (high / low) ** 2:
        # Nothing that a field counts grows faster than its square: noise, unless it stays.
        unsure = _least_sure(seen, (low, high))
        if unsure is not None:
            return unsure
    share = (1 - seen[low].ratio) / (seen[high].ratio - seen[low].ratio)
    guess = low + round((high - low) * (0.5 if middle else share))
    up = budget.first_possible(possible, range(max(guess, low + 1), high))
    down = budget.first_possible(possible, range(min(guess, high - 1), low, -1))
    found = [v for v in (up, down) if v is not None]
    return min(found, key=lambda v: abs(v - guess), default=None)


def _straight_on(seen: dict[int, RatioEstimate], values: Sequence[int]) -> int:
    """Return where a line through the outermost values is one; the far end where it is flat."""
    low, high = min(values), max(values)
    if low == high:
        return 2 * high if seen[high].ratio < 1 else high // 2
    rise = seen[high].ratio - seen[low].ratio
    if rise <= 0:
        return FARTHEST * high if seen[high].ratio < 1 else 1
    return max(1, min(FARTHEST * high, round(low + (1 - seen[low].ratio) * (high - low) / rise)))


def _least_sure(seen: dict[int, RatioEstimate], values: Sequence[int]) -> int | None:
    """Return the value that was measured least, or None where all were measured often enough."""
    unsure = [v for v in values if seen[v].measurements < FEWEST_OF_ONE + 1]
    return min(unsure, key=lambda v: (seen[v].measurements, -seen[v].error), default=None)
