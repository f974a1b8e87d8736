"""Cells of a sweep without a run: what each curve expects of them, and how it would move if they were there.

For a sweep's curves of one size (`memscale fit`); laws of several sizes: analysis/fitting/missing_run_sensitivity.py. The scenarios are the
same: a missing size is put in at both ends of the interval in which its run would lie by the others, and the curve is
refitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.result import LawFit
from analysis.loading.load import Runs
from analysis.loading.validation import ALL_KINDS
from analysis.scaling.sweep_summary import CurveSpec, SweepFits

Array = NDArray[np.float64]

SAME_SIZE = 1e-6
"""Relative difference up to which two sizes are one cell."""


@dataclass(frozen=True, kw_only=True)
class MissingSize:
    """One size of a series that no run of the table has."""

    series: str
    spec: CurveSpec
    trial_id: str
    reason: str
    x: float
    expected: tuple[float, float, float]
    """By the curve through the others, and the ends of the interval of a new run."""
    at: float
    """Largest size of the series, missing or not: where the answer is asked for."""
    answer: float
    """The curve there without this cell."""
    could_be: tuple[float, float]
    """The curve there with this cell at either end."""


def missing_sizes(runs: Runs, fits: SweepFits) -> list[MissingSize]:
    """Return the missing sizes of every curve that has numbers, for excluded trials whose size is known."""
    found = []
    for curve in fits.curves:
        x = curve.spec.x
        if not curve.fit.usable or x not in runs.excluded:
            continue
        if len({c.series for c in fits.curves if c.architecture == curve.architecture}) > 1:
            continue  # an excluded trial does not say which of them it is of
        mine = runs.excluded[(runs.excluded["architecture"] == curve.architecture) & (runs.excluded[x] > 0)]  # fmt: skip
        there = curve.fit.x
        rows = [
            r for _, r in mine.drop_duplicates(x).iterrows()
            if np.abs(np.log(there / float(r[x]))).min() > SAME_SIZE
        ]  # fmt: skip
        if not rows:
            continue
        sizes = np.asarray([float(r[x]) for r in rows])
        at = float(max(there.max(), sizes.max()))
        for row, (expected, answer, could_be) in zip(rows, _moves(curve.fit, sizes, at), strict=True):  # fmt: skip
            found.append(
                MissingSize(
                    series=curve.series, spec=curve.spec, trial_id=str(row["trial_id"]),
                    reason=str(row["reason"]), x=float(row[x]), expected=expected, at=at,
                    answer=answer, could_be=could_be,
                )
            )  # fmt: skip
    return found


def _moves(
    fit: LawFit, sizes: Array, at: float
) -> Sequence[tuple[tuple[float, float, float], float, tuple[float, float]]]:
    """Return for each size what is expected there, the answer at `at`, and the answer with either end put in."""
    expected = fit.predict(sizes)
    ends = np.stack([expected.new_low, expected.new_high])
    spread = np.abs(fit.residuals).max(initial=0.0)
    ends = np.where(np.isfinite(ends), ends, np.stack([expected.y - spread, expected.y + spread]))
    n, m = len(fit.x), len(sizes)
    weights = np.zeros((2 * m, n + 2 * m))
    weights[:, :n] = 1
    weights[np.arange(2 * m), n + np.arange(2 * m)] = 1
    filled = {"x": np.concatenate([fit.x, sizes, sizes]), "y": np.concatenate([fit.y, *ends])}
    refits = fit_law(
        fit.law,
        filled,
        outcome="y",
        objective=fit.objective_of,
        hold_out=False,
        accept=ALL_KINDS,
        controls=FitControls(resamples=weights, calibrate=False),
    )
    answer = float(fit.predict(at).y[0])
    if not len(refits.draws):
        moved = np.full(2 * m, answer)
    else:
        moved = fit.law.evaluate({"x": np.asarray([at])}, refits.draws)[:, 0]
    return [
        (
            (float(expected.y[i]), float(ends[0, i]), float(ends[1, i])),
            answer,
            (float(min(moved[i], moved[m + i])), float(max(moved[i], moved[m + i]))),
        )
        for i in range(m)
    ]
