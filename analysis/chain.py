"""Two steps in one: sizes to loss by a law, loss to accuracy (or error, or answer NLL) by a link, with one uncertainty.

The same resample of training runs refits both steps, so the interval of a predicted accuracy holds the error of the
law, of the link, and of what they share. Bands of the second step alone are too narrow: they take the predicted loss
as known (Bhagia et al. 2024 and Gadre et al. 2024 do so).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.bootstrap import resample_clusters
from analysis.curve import CurveFit
from analysis.curve import Law as Link
from analysis.fitting import fit_curve
from analysis.law import Law
from analysis.law_fit import FEWEST_SPARE, LawFit, Runs, fit_law
from analysis.objective import Objective
from analysis.result import confidence_band

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainForecast:
    """An outcome predicted through loss."""

    inputs: Mapping[str, Array]
    loss: Array
    y: Array
    low: Array
    high: Array
    """Confidence, through both steps."""
    new_low: Array
    new_high: Array
    """One new run: its loss scatters around the law and its outcome around the link."""
    level: float
    extrapolated: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainFit:
    """A law and a link fitted to the same runs."""

    to_loss: LawFit
    to_outcome: CurveFit
    level: float

    @property
    def usable(self) -> bool:
        """Whether both steps have numbers."""
        return self.to_loss.usable and self.to_outcome.usable

    @property
    def sentence(self) -> str:
        """Both steps' sentences."""
        return f"loss: {self.to_loss.sentence}. outcome: {self.to_outcome.sentence}"

    def predict(self, inputs: Mapping[str, ArrayLike]) -> ChainForecast:
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
        percentiles = self.to_loss.drawn_level
        low, high = confidence_band(curves, percentiles)
        new_low, new_high = confidence_band(self._new_runs(losses[:n_draws]), percentiles)
        return ChainForecast(
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
        noise = generator.choice(_widened(self.to_loss), size=(len(losses), 1))
        scattered = losses * np.exp(noise) if relative else losses + noise
        link = self.to_outcome.law
        outcomes = np.stack(
            [link.evaluate(row, p) for row, p in zip(scattered, self.to_outcome.draws[: len(losses)], strict=True)]
        )  # fmt: skip
        return np.asarray(
            outcomes + generator.choice(_widened(self.to_outcome), size=(len(losses), 1))
        )


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
) -> ChainFit:
    """Fit both steps.

    Args:
        law: Sizes to loss.
        link: Loss to outcome, of `analysis/laws/loss_link.py`.
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

    Raises:
        ValueError: As `fit_law` and `fit_curve`.
    """
    names = columns or {}
    table = {name: np.asarray(runs[names.get(name, name)], dtype=np.float64) for name in law.inputs}
    losses = np.asarray(runs[loss], dtype=np.float64)
    outcomes = np.asarray(runs[outcome], dtype=np.float64)
    n = len(losses)
    first, second = (
        np.ones(n, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        for mask in (law_rows, link_rows)
    )
    matrix = np.stack([table[name] for name in law.inputs], axis=1)
    places = np.unique(matrix, axis=0, return_inverse=True)[1].reshape(-1)
    if clusters is None:
        labels = np.asarray([f"{place:09d}" for place in places])
    else:
        labels = np.asarray([str(c) for c in (runs[clusters] if isinstance(clusters, str) else clusters)])  # fmt: skip
    levels = np.unique(losses, return_inverse=True)[1]
    spare = min(
        len(np.unique(places[first])) - law.n_free, len(np.unique(losses[second])) - link.n_free
    )
    if spare < FEWEST_SPARE or n_draws == 0:
        weights = np.empty((0, n))
    else:

        def accept(drawn: Array) -> NDArray[np.bool_]:
            return np.asarray(
                (_n_different(drawn[:, first], places[first]) >= law.n_free)
                & (_n_different(drawn[:, second], levels[second]) >= link.n_free)
            )

        weights = resample_clusters(labels, n_draws=n_draws, seed=seed, accept=accept).weights
    to_loss = fit_law(
        law, {**{k: v[first] for k, v in table.items()}, "loss": losses[first]},
        clusters=labels[first], objective=objective, level=level, seed=seed,
        n_draws=n_draws, resamples=weights[:, first], hold_out=hold_out,
    )  # fmt: skip
    to_outcome = fit_curve(
        link, losses[second], outcomes[second], clusters=list(labels[second]), huber=huber,
        level=level, seed=seed, hold_out=False, resamples=weights[:, second],
    )  # fmt: skip
    return ChainFit(to_loss=to_loss, to_outcome=to_outcome, level=level)


def _n_different(weights: Array, places: NDArray[np.int64]) -> NDArray[np.int64]:
    member = (places[None, :] == np.unique(places)[:, None]).astype(np.float64)
    return np.asarray(((weights @ member.T) > 0).sum(axis=1))


def _widened(fit: LawFit | CurveFit) -> Array:
    r, p = fit.residuals, fit.law.n_free
    return np.asarray(r * np.sqrt(len(r) / max(len(r) - p, 1)))
