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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.lack_of_fit import FEWEST_SPARE, LackOfFit, lack_of_fit
from analysis.fitting.outliers import find_outliers, scale_of
from analysis.fitting.stated_errors import StatedErrors, compare_with_stated

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

STATED_SHARE = 0.2
"""p-values of residuals against stated errors count up to this share of that of other tests, since
they are not corrected together."""

STATED_RATIO = 1.5
"""Residuals that differ from stated errors by less than this factor are not held against either."""

MOST_OUTLIERS = 0.1
"""Share of the runs up to which outliers are left out of the tests."""

EXACT = 3e-4
"""Residuals below this share of the outcomes' spread are rounding, not noise."""

FEWEST_CLUSTERS = 6
"""Clusters of several distinct runs below which there is no interval. In simulations 95 % bands of
the curve held the truth in 73 to 86 % of tables with three or four clusters, 90 % with five and 92
to 96 % with six to eight. Even for one parameter, all resamples of k clusters lie on one side of
the truth in 2^(1 - k) of the tables; cluster-robust methods in general need more (Cameron, Gelbach
and Miller 2008)."""

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

    @property
    def is_credible(self) -> bool:
        """Whether numbers that rest on the fit are claimed: it is adequate or doubtful."""
        return self.status in (VerdictStatus.ADEQUATE, VerdictStatus.DOUBTFUL)

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


def too_few_for_intervals(n_free: int, *, min_spare: int, n_distinct: int, n_clusters: int) -> str:
    """Return why resamples would say nothing of the error; empty where they do.

    Args:
        n_free: Fitted parameters.
        min_spare: Degrees of freedom that the law must have left.
        n_distinct: Runs with different inputs.
        n_clusters: What is resampled whole, as the runs of checkpoints.
    """
    needed = n_free + min_spare
    if n_distinct < needed:
        return f"{n_distinct} distinct runs for {n_free} parameters are too few for an interval"
    if n_clusters < n_distinct:
        needed = max(needed, FEWEST_CLUSTERS)
    if n_clusters >= needed:
        return ""
    return (
        f"{n_clusters} cluster{'' if n_clusters == 1 else 's'} of runs for {n_free} parameters "
        f"are too few for an interval, since runs of one cluster share errors; "
        f"add {needed - n_clusters}"
    )


def judge(fit: "LawFit") -> FitVerdict:
    """Return the verdict on a fit; `fit.verdict` calls it once."""
    if not fit.usable:
        return FitVerdict(status=VerdictStatus.UNDERDETERMINED, sentence=fit.sentence)
    keep = _tested_rows(fit)
    found, stated = _tested(fit, keep), _stated(fit, keep)
    against, smaller = _against(fit, found)
    against += _larger_than_stated(fit, stated)
    open_ = _undetermined(fit)
    numbers = MappingProxyType(_numbers(fit, found, stated))
    corrected = _correction(fit, found)
    for status, reasons, advice in (
        (VerdictStatus.MISFIT, against and [*against, *fit.warnings], _MISFIT_ADVICE),
        (VerdictStatus.UNDERDETERMINED, open_ and [*open_, *smaller], _UNDETERMINED_ADVICE),
        (VerdictStatus.DOUBTFUL, [*smaller, *fit.warnings, *_unchecked(fit, found)], ""),
    ):
        if reasons:
            said = [] if status is VerdictStatus.UNDERDETERMINED else corrected
            sentence = "; ".join([*reasons, *said, *([advice] if advice else [])])
            return FitVerdict(status=status, sentence=sentence, numbers=numbers)
    said = [_in_favour(fit, found), *_smaller_than_stated(fit, stated), *corrected]
    sentence = "; ".join(said)
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


def rounding_of(fit: "LawFit") -> float:
    """Return the residual below which there is only rounding."""
    problem = fit.problem()
    return EXACT * float(np.std(problem.y)) * problem.y_unit


def _at_optimum(fit: "LawFit") -> tuple[Array, Array]:
    """Return residuals (n,) and their derivatives (n, p) by parameters inside their bounds.

    Both are those of runs of weight one: a run of known larger noise is not odd.
    """
    problem = fit.problem()
    theta = problem.scale(fit.best[None, :])
    root = np.sqrt(problem.weights)
    residuals = (problem.values(theta)[0] - problem.y) * problem.y_unit * root
    free = [
        i
        for i, (value, low, high) in enumerate(
            zip(theta[0], problem.lower, problem.upper, strict=True)
        )
        if low + 1e-9 < value < high - 1e-9
    ]
    return residuals, problem.jacobian(theta)[0][:, free] * root[:, None]


def outliers_of(fit: "LawFit") -> NDArray[np.int64]:
    """Return the rows far from the curve, the furthest first."""
    # Shares differ in noise from the floor to the middle, so a far one is not odd.
    if fit.law.outcome_is_share or fit.n_points - fit.n_free < FEWEST_SPARE:
        return np.empty(0, dtype=np.int64)
    return find_outliers(fit.standardised, fit.n_free, rounding=rounding_of(fit))


def _tested_rows(fit: "LawFit") -> NDArray[np.bool_]:
    """Return the runs (n,) that are tested: all, or all but a few outliers.

    These are named, and would make neighbours look alike or noise uneven. If there are many, it is
    rather the law that is wrong.
    """
    found = outliers_of(fit)
    keep = np.ones(fit.n_points, dtype=bool)
    if len(found) <= MOST_OUTLIERS * fit.n_points:
        keep[found] = False
    return keep


def _tested(fit: "LawFit", keep: NDArray[np.bool_]) -> LackOfFit | None:
    """Return the tests of the residuals, None if they are rounding."""
    residuals, jacobian = _at_optimum(fit)
    if float(np.sqrt(np.mean(residuals**2))) <= rounding_of(fit):
        return None
    sizes = [_log(fit.inputs[name])[keep] for name in fit.law.inputs]
    return lack_of_fit(
        residuals[keep],
        jacobian[keep],
        np.stack(sizes, axis=1),
        clusters=np.asarray(fit.clusters)[keep],
        conditions={k: np.asarray(v)[keep].tolist() for k, v in fit.conditions.items()},
    )


def _stated(fit: "LawFit", keep: NDArray[np.bool_]) -> StatedErrors | None:
    """Return the residuals beside the errors that were stated, None if none were."""
    if not math.isfinite(fit.stated_sd):
        return None
    residuals, jacobian = _at_optimum(fit)
    return compare_with_stated(
        residuals[keep] / fit.stated_sd, jacobian[keep], np.asarray(fit.clusters)[keep]
    )


def _log(values: Array) -> Array:
    """Return logarithms; a zero counts as a tenth of the smallest value that is not zero."""
    smallest = values[values > 0].min(initial=np.inf)
    return np.log(np.where(values > 0, values, smallest / 10 if np.isfinite(smallest) else 1.0))


class _Finding(NamedTuple):
    """One thing that speaks against a law."""

    text: str
    large: bool
    """Whether it makes the law a misfit."""


def _against(fit: "LawFit", found: LackOfFit | None) -> tuple[list[str], list[str]]:
    """Return what makes the law a misfit, and what speaks against it but is small."""
    findings = [] if found is None else _of_residuals(fit, found)
    findings += _of_hold_out(fit)
    return [f.text for f in findings if f.large], [f.text for f in findings if not f.large]


def _of_residuals(fit: "LawFit", found: LackOfFit) -> list[_Finding]:
    """Return what the tests of the residuals speak against, those whose p-value counts."""
    counts = _threshold(fit)
    inputs = " and ".join(fit.law.inputs)
    findings = []
    bent = found.systematic >= LARGE_ERROR * found.noise
    if found.curve <= counts:
        error = f"up to {_amount(fit, found.systematic)}, noise {_amount(fit, found.noise)}"
        text = f"residuals follow a curve in {inputs} ({error}; p {_p(found.curve)})"
        findings.append(_Finding(text, large=bent))
    # Of a large curve neighbours err alike: it is said once.
    if found.neighbours <= counts and not (found.curve <= counts and bent):
        text = (
            f"neighbouring runs err alike, by {min(found.shared, 10):.1f} times a run's own "
            f"noise (p {_p(found.neighbours)}), so they count for fewer than they are"
        )
        findings.append(_Finding(text, large=found.shared >= LARGE_ERROR))
    if found.seeds <= counts:
        text = (
            f"residuals are {_amount(fit, found.scale)} where seeds differ by "
            f"{_amount(fit, found.seed_noise)} (p {_p(found.seeds)})"
        )
        findings.append(_Finding(text, large=found.scale >= 1.5 * found.seed_noise))
    if found.spread <= counts:
        text = (
            f"residuals change in size along {inputs} (p {_p(found.spread)}), and intervals "
            "take them as even; leave out the noisiest sizes, or add seeds there"
        )
        findings.append(_Finding(text, large=False))
    return findings + [
        _Finding(f"runs of different {name} are pooled and differ (p {_p(p)})", large=True)
        for name, p in found.conditions.items()
        if p <= counts
    ]


def _of_hold_out(fit: "LawFit") -> list[_Finding]:
    """Return whether held-out runs lie further off than their intervals say."""
    ratio, held = _hold_out_ratio(fit), fit.hold_out
    if held is None or not ratio >= HOLD_OUT_RATIO:
        return []
    text = (
        f"of {len(held.observed)} held-out runs {held.covered:.0%} lie in "
        f"their {fit.level:.0%} intervals; errors are {ratio:.1f} times the half width"
    )
    return [_Finding(text, large=True)]


def _larger_than_stated(fit: "LawFit", stated: StatedErrors | None) -> list[str]:
    """Return whether residuals are larger than stated errors explain."""
    counts = STATED_SHARE * _threshold(fit)
    if stated is None or not (stated.larger <= counts and stated.ratio >= STATED_RATIO):
        return []
    return [
        f"errors of the size in sigma do not explain the residuals, which are {stated.ratio:.3g} "
        f"times as large (p {_p(stated.larger)})"
    ]


def _smaller_than_stated(fit: "LawFit", stated: StatedErrors | None) -> list[str]:
    """Return whether residuals are smaller than stated errors make them."""
    counts = STATED_SHARE * _threshold(fit)
    if stated is None or not (stated.smaller <= counts and stated.ratio <= 1 / STATED_RATIO):
        return []
    return [
        f"errors in sigma are {1 / max(stated.ratio, 1e-9):.3g} times as large as residuals show "
        "(only their relative sizes enter the fit)"
    ]


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
        n_distinct = fit.degrees_of_freedom + fit.n_free
        few = too_few_for_intervals(
            fit.law.n_free,
            min_spare=fit.law.min_spare,
            n_distinct=n_distinct,
            n_clusters=fit.n_configurations,
        )
        return [few or "no intervals: nothing says how well the runs determine the law"]
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


def _numbers(
    fit: "LawFit", found: LackOfFit | None, stated: StatedErrors | None
) -> dict[str, float]:
    """Return what the verdict rests on."""
    numbers = {
        "hold_out_ratio": _hold_out_ratio(fit),
        "hold_out_covered": fit.hold_out.covered if fit.hold_out else math.nan,
        "condition_number": fit.condition_number,
        "robust_scale": scale_of(fit.standardised, fit.n_free),
    }
    if stated is not None:
        numbers |= {"stated_ratio": stated.ratio, "p_stated": stated.larger}
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
    return fit.objective_of.amount(value)


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "below 0.001"
