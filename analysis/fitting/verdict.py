"""Verdict on a fit: does its law describe the runs, and do they determine it?

The optimiser's status says that a minimum was found; a wrong law has one, too. The verdict looks at
what the fit leaves: residuals, held-out runs, intervals. Its thresholds are calibrated by
simulation (`benchmarks/verdict_calibration.py` prints false alarms and detections).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.lack_of_fit import FEWEST_SPARE, LackOfFit, lack_of_fit

if TYPE_CHECKING:
    from analysis.fitting.result import LawFit

Array = NDArray[np.float64]

P_MISFIT = 0.045
"""p-value of a lack-of-fit test, corrected for the number of tests, from which on it counts."""

SMALLEST_P = 0.001
"""Of a simulated p-value: no correction for several fits asks for less."""

LARGE_ERROR = 0.75
"""Systematic error, in standard deviations of the noise, from which on a pattern is a misfit. A
smaller one is said, and the verdict is doubtful."""

HOLD_OUT_RATIO = 2.0
"""Root mean square of held-out errors, in half widths of the intervals for new runs, from which on
the hold-out speaks against the law. Noise alone makes it about a half."""

EXACT = 3e-4
"""Residuals below this share of the outcomes' spread are rounding, not noise."""

UNKNOWN_FACTOR = 1e3
"""An amplitude whose interval spans a larger factor is not determined."""

UNKNOWN_SHARE = 0.5
"""An exponent is not determined if its interval spans more than this share of its bounds, a curve
if its band is wider than this share of the outcomes' range."""


class VerdictStatus(StrEnum):
    """What a fit is worth."""

    ADEQUATE = "adequate"
    """Nothing speaks against the law, and the runs determine it."""
    DOUBTFUL = "doubtful"
    """Something speaks against it, but little; or there are too few runs to check."""
    MISFIT = "misfit"
    """The law is wrong for these runs by more than their noise. What rests on it is refused."""
    UNDERDETERMINED = "underdetermined"
    """Many curves fit these runs equally well: the coefficients say nothing."""


_WORST_FIRST = (
    VerdictStatus.MISFIT,
    VerdictStatus.UNDERDETERMINED,
    VerdictStatus.DOUBTFUL,
    VerdictStatus.ADEQUATE,
)


@dataclass(frozen=True, kw_only=True)
class FitVerdict:
    """What a fit is worth, in one word and one sentence."""

    status: VerdictStatus
    sentence: str
    """Why, with numbers, and what to do."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What it was judged by, by name; NaN where the runs cannot answer."""

    @property
    def is_misfit(self) -> bool:
        """Whether what rests on the fit is refused."""
        return self.status is VerdictStatus.MISFIT

    def __str__(self) -> str:
        return f"{self.status}: {self.sentence}"


def worst(verdicts: Mapping[str, FitVerdict]) -> FitVerdict:
    """Return the verdict of what rests on several fits: the worst, with the names of those fits.

    Args:
        verdicts: By the name of the fit; at least one.
    """
    statuses = {verdict.status for verdict in verdicts.values()}
    status = next(s for s in _WORST_FIRST if s in statuses)
    chosen = {name: v for name, v in verdicts.items() if v.status is status}
    name, verdict = next(iter(chosen.items()))
    if len(verdicts) == 1:
        return verdict
    more = f"; so for {', '.join(list(chosen)[1:])}" if len(chosen) > 1 else ""
    return FitVerdict(
        status=status, sentence=f"{name}: {verdict.sentence}{more}", numbers=verdict.numbers
    )


def judge(fit: "LawFit") -> FitVerdict:
    """Return the verdict on a fit; `fit.verdict` calls it once."""
    if not fit.usable:
        return FitVerdict(status=VerdictStatus.UNDERDETERMINED, sentence=fit.sentence)
    found = _tested(fit)
    against, smaller = _against(fit, found)
    open_ = _undetermined(fit)
    numbers = MappingProxyType(_numbers(fit, found))
    corrected = _correction(fit, found)
    for status, reasons, advice in (
        (VerdictStatus.MISFIT, against, _MISFIT_ADVICE),
        (VerdictStatus.UNDERDETERMINED, open_ and [*open_, *smaller], _UNDETERMINED_ADVICE),
        (VerdictStatus.DOUBTFUL, [*smaller, *fit.warnings, *_unchecked(fit, found)], ""),
    ):
        if reasons:
            said = [] if status is VerdictStatus.UNDERDETERMINED else corrected
            sentence = "; ".join([*reasons, *said, *([advice] if advice else [])])
            return FitVerdict(status=status, sentence=sentence, numbers=numbers)
    sentence = "; ".join([_in_favour(fit, found), *corrected])
    return FitVerdict(status=VerdictStatus.ADEQUATE, sentence=sentence, numbers=numbers)


_MISFIT_ADVICE = (
    "try another law (analysis.choose_law), one fit per condition, or a narrower range of sizes"
)
_UNDETERMINED_ADVICE = "add sizes further apart, or fit a law with fewer parameters"


def _threshold(fit: "LawFit") -> float:
    """Return the p-value up to which a test counts: Bonferroni's, for all fits judged together."""
    return max(P_MISFIT / fit.n_judged, SMALLEST_P)


def _correction(fit: "LawFit", found: LackOfFit | None) -> list[str]:
    """Return what the verdict says of the other fits that are judged with this one."""
    if fit.n_judged < 2 or found is None:
        return []
    return [f"one of {fit.n_judged} fits judged together, so p counts up to {_p(_threshold(fit))}"]


def _tested(fit: "LawFit") -> LackOfFit | None:
    """Return the tests of the residuals, None if they are rounding."""
    problem = fit.problem()
    theta = problem.scale(fit.best[None, :])
    root = np.sqrt(problem.weights)  # a run of known larger noise is not odd
    residuals = (problem.values(theta)[0] - problem.y) * problem.y_unit * root
    spread = float(np.std(problem.y)) * problem.y_unit
    if float(np.sqrt(np.mean(residuals**2))) <= EXACT * spread:
        return None
    free = [
        i
        for i, (value, low, high) in enumerate(
            zip(theta[0], problem.lower, problem.upper, strict=True)
        )
        if low + 1e-9 < value < high - 1e-9
    ]
    sizes = [_log(fit.inputs[name]) for name in fit.law.inputs]
    return lack_of_fit(
        residuals,
        problem.jacobian(theta)[0][:, free] * root[:, None],
        np.stack(sizes, axis=1),
        clusters=np.asarray(fit.clusters),
        conditions=fit.conditions,
    )


def _log(values: Array) -> Array:
    """Return logarithms; a zero counts as a tenth of the smallest value that is not zero."""
    smallest = values[values > 0].min(initial=np.inf)
    return np.log(np.where(values > 0, values, smallest / 10 if np.isfinite(smallest) else 1.0))


def _against(fit: "LawFit", found: LackOfFit | None) -> tuple[list[str], list[str]]:
    """Return what makes the law a misfit, and what speaks against it but is small."""
    large: list[str] = []
    small: list[str] = []
    counts = _threshold(fit)
    if found is not None:
        error = f"up to {_amount(fit, found.systematic)}, noise {_amount(fit, found.noise)}"
        is_large = found.systematic >= LARGE_ERROR * found.noise
        inputs = " and ".join(fit.law.inputs)
        if found.curve <= counts:
            text = f"residuals follow a curve in {inputs} ({error}; p {_p(found.curve)})"
            (large if is_large else small).append(text)
        if found.neighbours <= counts and not large:
            text = (
                f"neighbouring runs err alike, by {min(found.shared, 10):.1f} times a run's own "
                f"noise (p {_p(found.neighbours)}), so they count for fewer than they are"
            )
            (large if found.shared >= LARGE_ERROR else small).append(text)
        if found.seeds <= counts:
            text = (
                f"residuals are {_amount(fit, found.scale)} where seeds differ by "
                f"{_amount(fit, found.seed_noise)} (p {_p(found.seeds)})"
            )
            (large if found.scale >= 1.5 * found.seed_noise else small).append(text)
        if found.spread <= counts:
            small.append(
                f"residuals change in size along {inputs} (p {_p(found.spread)}), and intervals "
                "take them as even; leave out the noisiest sizes, or add seeds there"
            )
        for name, p in found.conditions.items():
            if p <= counts:
                large.append(f"runs of different {name} are pooled and differ (p {_p(p)})")
    ratio = _hold_out_ratio(fit)
    if ratio >= HOLD_OUT_RATIO and fit.hold_out is not None:
        large.append(
            f"of {len(fit.hold_out.observed)} held-out runs {fit.hold_out.covered:.0%} lie in "
            f"their {fit.level:.0%} intervals; errors are {ratio:.1f} times the half width"
        )
    return large, small


def _undetermined(fit: "LawFit") -> list[str]:
    """Return the parameters that the runs leave open."""
    problem = fit.problem()
    theta = problem.scale(fit.best[None, :])[0]
    reasons = problem.bounds_met(theta)
    at_bound = [reason.split(" ")[0] for reason in reasons]
    for parameter in fit.law.parameters:
        if parameter.name in at_bound or parameter.name not in fit.intervals:
            continue
        low, high = fit.intervals[parameter.name]
        if parameter.amplitude or parameter.log:
            wide = high > UNKNOWN_FACTOR * max(low, 0.0)
        else:
            wide = high - low > UNKNOWN_SHARE * (parameter.upper - parameter.lower)
        if wide and parameter.lower < parameter.upper:
            reasons.append(f"{parameter.name} is anywhere from {low:.3g} to {high:.3g}")
    return reasons


def _unchecked(fit: "LawFit", found: LackOfFit | None) -> list[str]:
    """Return what could not be checked for want of runs."""
    if not fit.intervals:
        return ["no intervals: nothing says how well the runs determine the law"]
    spare = fit.degrees_of_freedom if found is None else found.n_spare
    if found is not None and spare < FEWEST_SPARE:
        return [
            f"{spare} configurations beyond the parameters are too few to tell a wrong law from "
            f"noise; add {FEWEST_SPARE - spare}"
        ]
    return []


def _in_favour(fit: "LawFit", found: LackOfFit | None) -> str:
    """Return the sentence on a fit that nothing speaks against."""
    if found is None:
        return "the curve goes through all runs"
    sentence = f"residuals of {_amount(fit, found.scale)} show no pattern"
    if math.isfinite(found.seed_noise):
        sentence += f", and seeds differ by {_amount(fit, found.seed_noise)}"
    if fit.hold_out is not None and math.isfinite(_hold_out_ratio(fit)):
        held = fit.hold_out
        n = len(held.observed)
        sentence += f"; {round(held.covered * n)} of {n} held-out runs lie in their intervals"
    return sentence


def _numbers(fit: "LawFit", found: LackOfFit | None) -> dict[str, float]:
    """Return what the verdict rests on."""
    numbers = {
        "hold_out_ratio": _hold_out_ratio(fit),
        "hold_out_covered": fit.hold_out.covered if fit.hold_out else math.nan,
        "condition_number": fit.condition_number,
    }
    if found is None:
        return numbers
    names = ("scale", "seed_noise", "noise", "systematic", "shared")
    numbers |= {name: getattr(found, name) for name in names}
    numbers |= {f"p_{n}": getattr(found, n) for n in ("curve", "neighbours", "spread", "seeds")}
    return numbers | {f"p_{name}": p for name, p in found.conditions.items()}


def _hold_out_ratio(fit: "LawFit") -> float:
    """Return the root mean square of held-out errors over that of their half widths."""
    if fit.hold_out is None:
        return math.nan
    at, observed = fit.hold_out.prediction, fit.hold_out.observed
    half = np.where(observed > at.y, at.new_high - at.y, at.y - at.new_low)
    if not np.isfinite(half).all() or not (half > 0).all():
        return math.nan
    return float(np.sqrt(np.mean(((observed - at.y) / half) ** 2)))


def _amount(fit: "LawFit", value: float) -> str:
    """Return a residual with its unit."""
    if not math.isfinite(value):
        return "an unknown amount"
    return f"{100 * value:.2g} %" if fit.objective_of.residual == "log" else f"{value:.2g}"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "below 0.001"
