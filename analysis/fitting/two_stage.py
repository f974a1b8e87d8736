"""Two steps in one: sizes to loss by a law, loss to accuracy (or error, or answer NLL) by a link, with one uncertainty.

The same resample of training runs refits both steps, so the interval of a predicted accuracy holds the error of the
law, of the link, and of what they share. Bands of the second step alone are too narrow: they take the predicted loss
as known (Bhagia et al. 2024 and Gadre et al. 2024 do so).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import resample_clusters
from analysis.fitting.curve import CurveFit
from analysis.fitting.curve import CurveLaw as Link
from analysis.fitting.curve_fit import fit_curve
from analysis.fitting.fit_law import FEWEST_SPARE, LawFit, fit_law
from analysis.fitting.interval_calibration import widened
from analysis.fitting.law import Law
from analysis.fitting.objective import Objective
from analysis.fitting.result import Band, confidence_band
from analysis.loading.columns import (
    LOSS_ADVICE,
    Runs,
    column,
    equal_rows,
    in_words,
    labels,
    numbers,
)
from analysis.loading.validation import (
    SIZES,
    WarningKind,
    check_runs,
    check_size_units,
    refuse_bad_units,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStagePrediction(Band):
    """An outcome predicted through loss; a new run's loss scatters around the law and its outcome around the link."""

    inputs: Mapping[str, Array]
    loss: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStageFit:
    """A law and a link fitted to the same runs."""

    to_loss: LawFit
    to_outcome: CurveFit
    level: float
    warnings: Sequence[str] = ()
    """What is odd about the runs (`analysis/loading/validation.py`)."""
    outcome: str = "accuracy"
    """Name of the column that the second step explains."""

    @property
    def usable(self) -> bool:
        """Whether both steps have numbers."""
        return self.to_loss.usable and self.to_outcome.usable

    @property
    def sentence(self) -> str:
        """Both steps' sentences, and what is odd about the runs."""
        look = f". Look at: {'; '.join(self.warnings)}" if self.warnings else ""
        return f"loss: {self.to_loss.sentence}. outcome: {self.to_outcome.sentence}{look}"

    def predict(self, inputs: Mapping[str, ArrayLike]) -> TwoStagePrediction:
        """Return the outcome at `inputs` with intervals through the whole chain; NaN intervals without draws.

        Raises:
            ValueError: If a step has no numbers, or an input is missing or not positive.
        """
        first = self.to_loss.predict(inputs)
        second = self.to_outcome.predict(first.y)
        law, link = self.to_loss.law, self.to_outcome.law
        losses = law.evaluate(first.inputs, self.to_loss.draws)  # (draws, n)
        n_draws = min(len(losses), len(self.to_outcome.draws))
        curves = np.stack(
            [link.evaluate(losses[i], self.to_outcome.draws[i]) for i in range(n_draws)]
        ) if n_draws else np.empty((0, len(first.y)))  # fmt: skip
        steps = (self.to_loss.levels, self.to_outcome.levels)
        low, high = confidence_band(curves, max(s.curve for s in steps))
        new_low, new_high = confidence_band(
            self._new_runs(losses[:n_draws]), max(s.new_run for s in steps)
        )
        return TwoStagePrediction(
            inputs=first.inputs,
            loss=first.y,
            y=second.y,
            low=low,
            high=high,
            new_low=new_low,
            new_high=new_high,
            level=self.level,
            extrapolated=first.extrapolated | second.extrapolated,
        )

    def _new_runs(self, losses: Array) -> Array:
        """Return outcomes of imagined new runs (draws, n)."""
        if not len(losses):
            return losses
        generator = np.random.default_rng(0)
        relative = self.to_loss.objective_of.residual == "log"
        noise = generator.choice(
            widened(self.to_loss.residuals, self.to_loss.n_free), size=(len(losses), 1)
        )
        scattered = losses * np.exp(noise) if relative else losses + noise
        link = self.to_outcome.law
        outcomes = np.stack(
            [link.evaluate(row, p) for row, p in zip(scattered, self.to_outcome.draws[: len(losses)], strict=True)]
        )  # fmt: skip
        own = widened(self.to_outcome.residuals, link.n_free)
        return np.asarray(outcomes + generator.choice(own, size=(len(losses), 1)))


def fit_chain(
    law: Law,
    link: Link,
    runs: Runs,
    *,
    loss: str = "loss",
    outcome: str = "accuracy",
    columns: Mapping[str, str] | None = None,
    clusters: Sequence[Any] | NDArray[Any] | str | None = None,
    law_rows: ArrayLike | None = None,
    link_rows: ArrayLike | None = None,
    objective: Objective | None = None,
    huber: float | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    hold_out: bool = True,
    accept: Collection[str] = (),
) -> TwoStageFit:
    """Fit both steps.

    Args:
        law: Sizes to loss.
        link: Loss to outcome, of `analysis/laws/loss_to_accuracy.py`.
        runs: Columns, one row per run.
        loss: Column of the loss.
        outcome: Column of the outcome.
        columns: The law's input names to columns, where they differ.
        clusters: Configuration per row, or its column; None makes rows of equal inputs one.
        law_rows: Mask of the rows for the first step; None takes all.
        link_rows: Mask of the rows for the second step (checkpoints belong to their run's cluster); None takes all.
        objective: Of the first step.
        huber: Threshold of the second step, in units of the outcome; None is least squares.
        n_draws: Resamples.
        seed: Of the resampling.
        level: Of the intervals.
        hold_out: Whether the law predicts the largest runs from the smaller ones, too.
        accept: Doubts that were looked into, as in `fit_law`.

    Raises:
        ValueError: As `fit_law` and `fit_curve`; rows are those of `runs`, also with masks.
    """
    n = len(column(runs, loss))
    first, second = (
        np.ones(n, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        for mask in (law_rows, link_rows)
    )
    names = columns or {}
    table = {
        name: numbers(runs, names.get(name, name), zero=name in law.may_be_zero, among=first)
        for name in law.inputs
    }
    losses = numbers(runs, loss, why=LOSS_ADVICE, among=first | second)
    outcomes = _outcomes(runs, outcome, second, accept)
    places = equal_rows(*table.values())
    configurations = labels(runs, clusters, places)
    warnings = _doubts(table, losses, first, loss, clusters, accept)
    levels = np.unique(losses, return_inverse=True)[1]
    spare = min(
        len(np.unique(places[first])) - law.n_free, len(np.unique(losses[second])) - link.n_free
    )
    if spare < FEWEST_SPARE or n_draws == 0:
        weights = np.empty((0, n))
    else:

        def enough(drawn: Array) -> NDArray[np.bool_]:
            return np.asarray(
                (_n_different(drawn[:, first], places[first]) >= law.n_free)
                & (_n_different(drawn[:, second], levels[second]) >= link.n_free)
            )

        weights = resample_clusters(
            configurations, n_draws=n_draws, seed=seed, accept=enough
        ).weights
    to_loss = fit_law(
        law, {**{k: v[first] for k, v in table.items()}, loss: losses[first]}, outcome=loss,
        clusters=configurations[first], objective=objective, level=level, seed=seed,
        n_draws=n_draws, resamples=weights[:, first], hold_out=hold_out, accept=get_args(WarningKind),
    )  # fmt: skip
    to_outcome = fit_curve(
        link, losses[second], outcomes[second], clusters=list(configurations[second]), huber=huber,
        level=level, seed=seed, hold_out=False, resamples=weights[:, second],
    )  # fmt: skip
    return TwoStageFit(
        to_loss=to_loss, to_outcome=to_outcome, level=level, warnings=warnings, outcome=outcome
    )


def _outcomes(runs: Runs, name: str, among: NDArray[np.bool_], accept: Collection[str]) -> Array:
    """Return the outcome (n,), which may be zero or negative where it is a share or a logarithm."""
    values = np.asarray(column(runs, name), dtype=np.float64)
    bad = np.flatnonzero(among & ~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{name}, row {bad[0]}: must be finite, got {values[bad[0]]}; take it out with link_rows=")  # fmt: skip
    chosen = values[among]
    percent = among & (values > 1.5)
    # Shares beside per cent: none of the larger ones is below ten times the largest share.
    if 0 < percent.sum() < among.sum() and chosen.max() <= 100 and "units" not in accept:
        shares = values[among & ~percent]
        if shares.max() <= 1 and values[percent].min() > 10 * shares.max():
            row = int(np.flatnonzero(percent)[0])
            raise ValueError(f"{name}: mixed units, {in_words(np.flatnonzero(percent))} (row {row}: {values[row]:.4g}) looks like per cent among shares; write every row in one unit, or say accept={{'units'}}")  # fmt: skip
    return values


def _doubts(
    table: Mapping[str, Array],
    losses: Array,
    among: NDArray[np.bool_],
    name: str,
    clusters: object,
    accept: Collection[str],
) -> tuple[str, ...]:
    """Return what is odd about the rows of the first step, by their numbers in the whole table."""
    blank = {k: np.where(among, v, np.nan) for k, v in table.items()}
    refuse_bad_units(
        check_size_units({k: v for k, v in blank.items() if k in SIZES}), accept=accept
    )
    doubts = check_runs({k: v[among] for k, v in table.items()}, losses[among], outcome=name, seeds_named=clusters is not None, rows=np.flatnonzero(among))  # fmt: skip
    return tuple(d.sentence for d in doubts if d.kind not in accept)


def _n_different(weights: Array, places: NDArray[np.int64]) -> NDArray[np.int64]:
    member = (places[None, :] == np.unique(places)[:, None]).astype(np.float64)
    return np.asarray(((weights @ member.T) > 0).sum(axis=1))
