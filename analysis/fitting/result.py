"""Results of a fit: status, parameters with intervals, predictions, hold-out.

A fit never raises because the data are poor: it says so in `status` and then has no parameters at
all, so that no number can be mistaken for a result. Only bad arguments, and predictions from a fit
without numbers, raise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import draws_with_interval, percentile_interval
from analysis.fitting.interval_calibration import Levels, widened
from analysis.fitting.inverse import REACH, size_reaching
from analysis.fitting.law import Law, LawProblem, without_views
from analysis.fitting.objective import Objective
from analysis.fitting.verdict import FitVerdict, judge
from analysis.loading.columns import column, numbers

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

DRAWS_PER_CURVE = 8
"""Residuals joined with each resampled curve for the interval of a new run."""


class FitStatus(StrEnum):
    """How the search for the best parameters ended; what they are worth, `LawFit.verdict` says."""

    CONVERGED = "converged"
    """The gradient vanishes inside the bounds."""
    HIT_BOUND = "hit_bound"
    """The best curve has a parameter at its bound: the data do not determine it. Numbers are
    given."""
    FLAT = "flat"
    """No curve of this form is better than a constant. No numbers."""
    UNDERDETERMINED = "underdetermined"
    """Fewer distinct runs than parameters + 1, or runs that cannot tell two parameters apart. No
    numbers."""
    NOT_CONVERGED = "not_converged"
    """No start came to rest. No numbers."""
    DOWNWARD = "downward"
    """A parabola that opens downward has no optimum. No numbers."""
    EDGE = "edge"
    """The optimum lies at or beyond the smallest or largest run. No numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """What is predicted at some sizes, with the two intervals that must not be confused."""

    y: Array
    low: Array
    high: Array
    """Confidence: where the curve itself lies, at `level`."""
    new_low: Array
    new_high: Array
    """Prediction: where one new run would lie."""
    level: float
    extrapolated: NDArray[np.bool_]
    """Where a size lies outside the fitted runs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LawPrediction(Band):
    """A law at given inputs."""

    inputs: Mapping[str, Array]
    distance: Array
    """Largest factor by which an input lies outside the fitted runs; 1 inside, inf for an input of
    0 where no fitted run has 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HoldOut:
    """The largest runs, predicted by the law fitted to the smaller ones only."""

    rows: NDArray[np.int64]
    """(n,) row numbers, in the order given."""
    places: NDArray[np.int64]
    """(n,): the same number for runs of equal inputs, ascending with the first input."""
    observed: Array
    """(n,)."""
    prediction: LawPrediction
    """(n,), with the bands of the curve and of a new run."""
    n_fitted: int
    """Runs left to fit."""

    @property
    def predicted(self) -> Array:
        """(n,)."""
        return self.prediction.y

    @property
    def covered(self) -> float:
        """Share of the runs inside their prediction intervals; NaN without intervals."""
        low, high = self.prediction.new_low, self.prediction.new_high
        if not np.isfinite(low).all():
            return float("nan")
        return float(((low <= self.observed) & (self.observed <= high)).mean())

    @property
    def errors(self) -> Array:
        """Predicted - observed per run (n,), in the units of the outcome."""
        return np.asarray(self.predicted - self.observed)

    @property
    def log_errors(self) -> Array:
        """ln(predicted) - ln(observed) per run (n,); NaN where either is negative."""
        return np.asarray(np.log(self.predicted) - np.log(self.observed))

    @property
    def mean_absolute_log_error(self) -> float:
        """0.01 is one per cent."""
        return float(np.abs(self.log_errors).mean())

    @property
    def rms_log_error(self) -> float:
        """Root mean square of the log errors."""
        return float(np.sqrt(np.mean(self.log_errors**2)))

    @property
    def bias(self) -> float:
        """Mean log error: above 0 predictions are too high."""
        return float(self.log_errors.mean())

    @property
    def sizes(self) -> Sequence[tuple[int, float]]:
        """Each distinct size: its first run (an index into `rows`), and the mean outcome there."""
        _, first = np.unique(self.places, return_index=True)
        return [(int(i), float(self.observed[self.places == self.places[i]].mean())) for i in first]

    @property
    def mean_absolute_error(self) -> float:
        """In the units of the outcome, between the law and the mean of each distinct size."""
        return float(np.mean([abs(self.predicted[i] - mean) for i, mean in self.sizes]))

    @property
    def mean_relative_error(self) -> float | None:
        """The same over |observed|; None where a mean is 0."""
        if any(mean == 0 for _, mean in self.sizes):
            return None
        return float(np.mean([abs((self.predicted[i] - mean) / mean) for i, mean in self.sizes]))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LawFit:
    """A law fitted to runs.

    `print(fit.summary())` shows it, `fit.to_frame()` has its coefficients, `fit.save(path)` writes
    it as JSON, which `analysis.load_fit(path)` reads.
    """

    law: Law
    status: FitStatus
    sentence: str
    """What the status means for these data, for people."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """In the order of the equation; empty without a usable fit."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Percentile intervals over resampled configurations; empty without a usable fit."""
    level: float
    levels: Levels
    """Percentiles of the draws that intervals of `level` are made of (`Levels`)."""
    inputs: Mapping[str, Array]
    """(n,) in the order given, under the law's names."""
    y: Array
    """(n,) outcomes."""
    clusters: Sequence[Any]
    """Configuration of each run: what was resampled together."""
    residuals: Array = field(default_factory=lambda: np.empty(0))
    """(n,) in the order given: predicted - observed, or the difference of their logarithms; empty
    without a usable fit."""
    draws: Array
    """(n_draws, p): the parameters of every resample, columns as in `parameters`."""
    draw_objectives: Array = field(default_factory=lambda: np.empty(0))
    """(n_draws,): objective of every resample's refit."""
    objective_of: Objective
    huber: float | None = None
    """Threshold in use, in the units of the residuals; None is least squares."""
    objective: float = float("nan")
    """sum rho(residual), rho(r) = r^2 / 2 (Huber: linear beyond the threshold), in the units of the
    residual squared. NaN without a fit."""
    n_configurations: int
    degrees_of_freedom: int
    """Distinct runs minus fitted parameters."""
    gradient_norm: float
    """Largest |cosine| between residuals and a Jacobian column; near 0 at a minimum. NaN without a
    fit."""
    moved: float
    """Largest change of an internal parameter from the winning start to its end: 0 is a start
    handed back untouched. NaN without a fit."""
    condition_number: float
    """Of the Jacobian at the optimum, columns of length one, parameters at a bound left out. Above
    1e4 parameters trade off; the curve may still be well determined. NaN without a fit."""
    n_starts: int
    n_agreeing: int
    """Starts that reached the best objective to one part in a million."""
    n_optima: int
    """Distinct minima that the starts came to rest in."""
    share_refused: float = 0.0
    """Share of resamples redrawn because they held too few distinct runs. Large: read the intervals
    with caution."""
    share_unsettled: float = 0.0
    """Share of resamples whose refit still moved when it was stopped; their parameters count as
    they were."""
    hold_out: HoldOut | None = None
    hold_out_note: str = "no fit, so nothing was held out"
    """Why there is no hold-out error, or what was held out."""
    warnings: Sequence[str] = ()
    """What is odd about the runs (`DataWarning`); also at the end of the sentence."""
    weights: Array = field(default_factory=lambda: np.empty(0))
    """(n,) how much each run counted in the objective; empty is one each."""
    stated_sd: float = float("nan")
    """Standard deviation that `sigma` states of a run of weight one; NaN without."""
    outcome: str = "loss"
    """Name of the column that was explained."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The law's inputs to the columns that they were read from."""
    conditions: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Columns of the table that the law does not use, (n,) each."""
    n_judged: int = 1
    """Fits that are judged together, this one included; the verdict corrects for them."""

    @cached_property
    def verdict(self) -> FitVerdict:
        """What the fit is worth: adequate, doubtful, misfit or underdetermined, and why."""
        return judge(self)

    def __repr__(self) -> str:
        return f"<LawFit of {self.law.name}: {self.status}, {self.n_points} runs>"

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled."""
        return without_views({k: v for k, v in vars(self).items() if k != "verdict"})

    def _repr_html_(self) -> str:
        from analysis.fitting.summary import summary_html

        return summary_html(self)

    def summary(self) -> str:
        """Return the fit as text: the law, its coefficients with intervals, and the verdict."""
        from analysis.fitting.summary import summary_text

        return summary_text(self)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per coefficient: value, low, high."""
        from analysis.fitting.summary import coefficients

        return coefficients(self)

    def save(self, path: str | Path) -> None:
        """Write the fit as JSON, with its runs and their hash; `load_fit` reads it.

        Raises:
            ValueError: If the law is not one of `analysis/laws` as it is.
        """
        from analysis.fitting.fit_file import save_fit

        save_fit(self, Path(path))

    @property
    def usable(self) -> bool:
        """Whether there are numbers."""
        return bool(self.parameters)

    @property
    def n_free(self) -> int:
        """Fitted parameters."""
        return self.law.n_free

    @property
    def n_points(self) -> int:
        """Runs fitted."""
        return len(self.y)

    @property
    def standardised(self) -> Array:
        """Residuals (n,) as large as they would be of runs of weight one."""
        root = np.sqrt(self.weights) if len(self.weights) else 1.0
        return np.asarray(self.residuals * root)

    @property
    def x(self) -> Array:
        """The first input (n,): the size of a law of one size."""
        return self.inputs[self.law.inputs[0]]

    @property
    def best(self) -> Array:
        """The parameters (p,), in the order of the equation.

        Raises:
            ValueError: If the fit has no numbers.
        """
        if not self.usable:
            raise ValueError(f"fit: no numbers to predict from ({self.status}); {self.sentence}")
        return np.asarray(list(self.parameters.values()), dtype=np.float64)

    def predict(
        self, inputs: Mapping[str, ArrayLike] | ArrayLike, *, sigma: ArrayLike | None = None
    ) -> LawPrediction:
        """Return the law at `inputs` (n,) with its confidence band and the wider one of a new run.

        Args:
            inputs: By name; numbers alone for a law of one input.
            sigma: (n,) or one number: standard deviations of the new runs, as `fit_law` took those
                of the fitted ones. None: a run of weight one, whose standard deviation is
                `stated_sd` where the fit was given sigma.

        Raises:
            ValueError: If the fit has no numbers, an input is missing or not positive, or sigma is
                given to a fit without it.
        """
        at = self._inputs_at(inputs)
        y = self.law.evaluate(at, self.best)
        curves = self._drawn_curves(at)
        low, high = confidence_band(curves, self.levels.curve)
        new_low, new_high = prediction_band(
            curves,
            self.standardised,
            scale=self._residual_scale(sigma, len(y)),
            n_free=self.n_free,
            level=self.levels.new_run,
            objective=self.objective_of,
        )
        if self.law.outcome_is_share:  # residuals know no bound, a run's share has two
            new_low, new_high = np.clip(new_low, 0.0, 1.0), np.clip(new_high, 0.0, 1.0)
        distance = np.ones(len(y))
        with np.errstate(divide="ignore", invalid="ignore"):
            for name in self.law.inputs:
                seen = self.inputs[name]
                beyond = np.maximum(at[name] / seen.max(), seen.min() / at[name])
                # No factor leads from 0, or to it: it is inside only beside fitted runs of 0.
                beyond[(at[name] == 0) & (seen.min() == 0)] = 1.0
                distance = np.fmax(distance, beyond)
        return LawPrediction(
            inputs=at,
            y=y,
            low=low,
            high=high,
            new_low=new_low,
            new_high=new_high,
            level=self.level,
            extrapolated=distance > 1 + 1e-9,
            distance=distance,
        )

    def curve(self, inputs: Mapping[str, ArrayLike] | ArrayLike) -> tuple[Array, Array, Array]:
        """Return `y`, `low` and `high` of `predict`, in a tenth of the time that a new run's takes.

        Raises:
            ValueError: If the fit has no numbers, or an input is missing or not positive.
        """
        at = self._inputs_at(inputs)
        return self.law.evaluate(at, self.best), *confidence_band(
            self._drawn_curves(at), self.levels.curve
        )

    def _inputs_at(self, given: Mapping[str, ArrayLike] | ArrayLike) -> dict[str, Array]:
        """Return where to predict, (n,) by name; say which input was forgotten."""
        if hasattr(given, "keys"):
            there = [str(name) for name in cast("Mapping[str, Any]", given)]
            missing = [name for name in self.law.inputs if name not in there]
            if missing:
                raise ValueError(
                    f"inputs: {self.law.name} predicts from {' and '.join(self.law.inputs)}, got "
                    f"{', '.join(there) or 'nothing'}; give {' and '.join(missing)}, too"
                )
        return inputs_of(self.law, given)

    def _residual_scale(self, sigma: ArrayLike | None, n: int) -> Array:
        """Return how large residuals of new runs (n,) are beside those of a run of weight one."""
        if sigma is None:
            return np.ones(n)
        if not np.isfinite(self.stated_sd):
            raise ValueError("sigma: the fit was made without it; give sigma to fit_law, too")
        values = numbers({"sigma": np.atleast_1d(np.asarray(sigma))}, "sigma")
        if len(values) not in (1, n):
            raise ValueError(f"sigma: {len(values)} values for {n} runs; give one per run")
        return np.broadcast_to(values / self.stated_sd, n)

    def _drawn_curves(self, at: Mapping[str, Array]) -> Array:
        """Return the law (n_draws, n) under the parameters of every draw."""
        if not len(self.draws):
            return np.empty((0, len(next(iter(at.values())))))
        return self.law.evaluate(at, self.draws)

    def inverse(
        self, y: float, *, of: str | None = None, at: Mapping[str, float] | None = None
    ) -> tuple[float, float, float]:
        """Return which size has the outcome y, as (size, low, high).

        Each is 0 where smaller sizes than those followed, a thousandth of the smallest run's, come
        closer to y or have passed it. It is inf where no size up to a thousand times the largest
        has y.

        Args:
            y: Outcome to reach, in its own units.
            of: Input that is looked for; None for a law of one input.
            at: All other inputs.

        Raises:
            ValueError: If the fit has no numbers, or an input is missing or not the law's.

        Example:
            >>> from analysis import fit_law
            >>> runs = {"x": [1e6, 4e6, 1.6e7, 6.4e7, 2.56e8], "loss": [5.0, 4.0, 3.5, 3.25, 3.125]}
            >>> size, low, high = fit_law("power", runs, n_draws=0).inverse(3.0625)
            >>> round(size / 1e6)
            1024
        """
        if of is None and len(self.law.inputs) > 1:
            raise ValueError(f"of: say which of {', '.join(self.law.inputs)} is looked for")
        return size_reaching(self, y, of or self.law.inputs[0], at or {})

    def x_reaching(self, y: float, *, y_half_width: float = 0.0) -> tuple[float, float, float]:
        """Return (x, low, high) where a curve of one size reaches y; inf where it never does.

        An end more than `REACH` times below the runs is 0, one above them inf. Both ends are NaN
        with fewer than two draws.

        Args:
            y: Value to reach.
            y_half_width: Half the width of y's own interval at `level`, of runs that were not
                fitted; 0 takes y as exact.

        Raises:
            ValueError: If the fit has no numbers, or the law no inverse.
        """
        best = float(self.law.invert(np.asarray([y]), self.best[None, :])[0])
        n_draws = len(self.draws)
        if n_draws < 2:
            return best, float("nan"), float("nan")
        # `levels.curve` corrects the curve's resamples. The interval of y needs no correction, so
        # its draws are as wide as gives that interval back.
        wanted = y + draws_with_interval(y_half_width, n_draws, level=self.levels.curve)
        reached = self.law.invert(wanted, self.draws)
        # Infinite draws are real (that curve never gets there): percentiles between two of them
        # would be NaN.
        logs = np.log(np.clip(reached, 1e-300, 1e300))
        ends = np.exp(percentile_interval(logs, level=self.levels.curve))
        ends[ends < self.x.min() / REACH] = 0.0
        ends[ends > self.x.max() * REACH] = np.inf
        return best, float(ends[0]), float(ends[1])

    def problem(self) -> LawProblem:
        """Return the optimiser's view of the runs, for a profile likelihood."""
        weights = self.weights if len(self.weights) else None
        return LawProblem(self.law, self.inputs, self.y, self.objective_of, weights)


def confidence_band(curves: Array, level: float) -> tuple[Array, Array]:
    """Return where the curve itself lies: percentiles (m,) over resampled curves (k, m).

    Without draws they are NaN.
    """
    if not len(curves):
        nothing = np.full(curves.shape[1], np.nan)
        return nothing, nothing.copy()
    low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def prediction_band(
    curves: Array,
    residuals: Array,
    *,
    scale: Array,
    n_free: int,
    level: float,
    objective: Objective,
) -> tuple[Array, Array]:
    """Return where one new run would lie: resampled curves joined with resampled residuals.

    Source: Davison and Hinkley 1997, section 6.3.3.

    Args:
        curves: (k, m).
        residuals: Of the fit, all runs.
        scale: (m,) how large residuals of the new runs are beside these.
        n_free: Fitted parameters.
        level: Of the interval.
        objective: That says what a residual is.
    """
    k, m = curves.shape
    if not k or len(residuals) <= n_free:
        nothing = np.full(m, np.nan)
        return nothing, nothing.copy()
    spread = widened(residuals, n_free)
    picked = np.random.default_rng(0).choice(spread, size=(DRAWS_PER_CURVE * k, 1))
    repeated = np.tile(curves, (DRAWS_PER_CURVE, 1))
    return confidence_band(objective.observed(repeated, picked * scale), level)


def inputs_of(
    law: Law, given: Mapping[str, Any] | ArrayLike, names: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Return the law's inputs as positive numbers (n,), by their names in the law.

    Args:
        law: Whose inputs.
        given: Columns by the law's names; numbers alone for a law of one input.
        names: What the columns were called in the table, for messages.

    Raises:
        ValueError: If an input is missing, or a value cannot be.
    """
    table = cast("Mapping[str, Any]", given)
    if not hasattr(given, "keys"):  # neither a mapping nor a DataFrame
        if len(law.inputs) > 1:
            raise ValueError(f"inputs: {law.name} needs {', '.join(law.inputs)}; give them by name")
        table = {law.inputs[0]: given}
    inputs = {}
    for name in law.inputs:
        theirs = (names or {}).get(name, name)
        shown = name if theirs == name else f"{name} (column {theirs})"
        values = np.atleast_1d(np.asarray(column(table, name)))
        inputs[name] = numbers({shown: values}, shown, zero=name in law.may_be_zero)
    n = max(len(v) for v in inputs.values())
    uneven = {k: len(v) for k, v in inputs.items() if len(v) not in (1, n)}
    if uneven:
        longest = next(k for k, v in inputs.items() if len(v) == n)
        name, size = next(iter(uneven.items()))
        raise ValueError(f"{name}: {size} values, but {longest} has {n}; give one per run")
    return {k: np.broadcast_to(v, n).copy() if len(v) == 1 else v for k, v in inputs.items()}
