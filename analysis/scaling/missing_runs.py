"""Missing sizes of a sweep: predicted outcomes, and sensitivity of its curves.

A missing size is put in at both ends of the interval in which its run would lie by the others, and
the curve is refitted. For laws of several sizes: analysis/fitting/missing_run_sensitivity.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.result import LawFit
from analysis.loading.validation import ALL_KINDS
from analysis.scaling.series_curves import CurveSpec, SeriesFit

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


def missing_sizes(excluded: pd.DataFrame, curves: Sequence[SeriesFit]) -> list[MissingSize]:
    """Return the missing sizes of every curve that has numbers.

    Args:
        excluded: Trials that do not count, of `Runs`; those whose size is known.
        curves: Of a sweep.
    """
    found = []
    for curve in curves:
        x = curve.spec.x
        if not curve.fit.usable or x not in excluded:
            continue
        if len({c.series for c in curves if c.architecture == curve.architecture}) > 1:
            continue  # an excluded trial does not say which of them it is of
        mine = excluded[(excluded["architecture"] == curve.architecture) & (excluded[x] > 0)]
        there = curve.fit.x
        rows = [
            row
            for _, row in mine.drop_duplicates(x).iterrows()
            if np.abs(np.log(there / float(row[x]))).min() > SAME_SIZE
        ]
        if not rows:
            continue
        sizes = np.asarray([float(row[x]) for row in rows])
        at = float(max(there.max(), sizes.max()))
        answer = float(curve.fit.predict(at).y[0])
        expected, moved = _refits(curve.fit, sizes, at)
        for i, row in enumerate(rows):
            found.append(
                MissingSize(
                    series=curve.series,
                    spec=curve.spec,
                    trial_id=str(row["trial_id"]),
                    reason=str(row["reason"]),
                    x=float(row[x]),
                    expected=(float(expected[0, i]), float(expected[1, i]), float(expected[2, i])),
                    at=at,
                    answer=answer,
                    could_be=(float(moved[:, i].min()), float(moved[:, i].max())),
                )
            )
    return found


def _refits(fit: LawFit, sizes: Array, at: float) -> tuple[Array, Array]:
    """Return what is expected of each size, with its ends (3, m), and the curve at `at` (2, m).

    The curve is refitted with one size at a time, at either end of its interval.
    """
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
    curves = refits.draws if len(refits.draws) else np.tile(fit.best, (2 * m, 1))
    moved = fit.law.evaluate({"x": np.asarray([at])}, curves)
    return np.vstack([expected.y, ends]), moved.reshape(2, m)
