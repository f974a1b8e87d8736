"""Two-stage fits: sizes to loss by a law, loss to a task's outcome by a link.

The same resample of training runs refits both stages, so the interval of a predicted accuracy
holds the error of the law, of the link, and of what they share. Bands of the second stage alone
are too narrow: they take the predicted loss as known (Bhagia et al. 2024 and Gadre et al. 2024 do).

A link with an anchor (accuracy 1 at loss 0, Bhagia et al. 2024) has it as a further point with an
error of ANCHOR_SD. Its weight is thus the runs' variance over ANCHOR_SD squared: a hundredth of a
run at a scatter of 0.01. With the weight of a whole run, tasks that level off at 0.9 to 1 were
missed by 0.019 in the median of 60 simulated ladders, instead of 0.008 (the link alone, ten times
the FLOPs of the runs). `benchmarks/chain_floor.py` measures whole chains.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import n_distinct_drawn, resample_clusters
from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.interval_calibration import widened
from analysis.fitting.law import Law, as_law, without_views
from analysis.fitting.objective import Objective
from analysis.fitting.result import Band, LawFit, confidence_band
from analysis.fitting.verdict import FitVerdict, too_few_for_intervals, worst
from analysis.loading.columns import (
    LOSS_ADVICE,
    HasTable,
    Runs,
    as_columns,
    column,
    column_of,
    equal_rows,
    in_words,
    labels,
    numbers,
    seeds_of,
)
from analysis.loading.run_checks import check_runs
from analysis.loading.size_units import check_size_units
from analysis.loading.validation import ALL_KINDS, SIZES, refuse_bad_units

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

ANCHOR_SD = 0.1
"""How far the outcome at an anchor may be from it: labels are wrong, questions ambiguous."""

PER_CENT = 1.5
"""Above, an outcome is no share: one with noise is at most a little above 1."""

NEARLY_ZERO = 1e-9
"""Loss that stands for zero, as inputs are positive."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStagePrediction(Band):
    """An outcome predicted through loss.

    A new run's loss scatters around the law, and its outcome around the link.
    """

    inputs: Mapping[str, Array]
    loss: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStageFit:
    """A law and a link fitted to the same runs."""

    to_loss: LawFit
    to_outcome: LawFit
    level: float
    warnings: Sequence[str] = ()
    """What is odd about the runs (`DataWarning`)."""
    outcome: str = "accuracy"
    """Name of the column that the second stage explains."""

    def __repr__(self) -> str:
        laws = f"{self.to_loss.law.name} and {self.to_outcome.law.name}"
        return f"<TwoStageFit of {laws}, {self.to_loss.n_points} runs; see summary()>"

    @property
    def usable(self) -> bool:
        """Whether both stages have numbers."""
        return self.to_loss.usable and self.to_outcome.usable

    @cached_property
    def verdict(self) -> FitVerdict:
        """The worse of both stages' verdicts."""
        return worst({"loss": self.to_loss.verdict, self.outcome: self.to_outcome.verdict})

    @property
    def sentence(self) -> str:
        """Both stages' sentences, and what is odd about the runs."""
        look = f". Look at: {'; '.join(self.warnings)}" if self.warnings else ""
        return f"loss: {self.to_loss.sentence}. outcome: {self.to_outcome.sentence}{look}"

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled; the verdict is found again."""
        return without_views({k: v for k, v in vars(self).items() if k != "verdict"})

    def summary(self) -> str:
        """Return the verdict, what is odd about the runs, and the summaries of both stages."""
        return "\n\n".join(
            [
                "\n".join([f"verdict: {self.verdict}", *self.warnings]),
                f"1. from sizes to {self.to_loss.outcome}\n{self.to_loss.summary()}",
                f"2. from {self.to_loss.outcome} to {self.outcome}\n{self.to_outcome.summary()}",
            ]
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per stage (its outcome) and coefficient: value, low, high."""
        stages = {fit.outcome: fit.to_frame() for fit in (self.to_loss, self.to_outcome)}
        return pd.concat(stages, names=["stage"])

    def predict(self, inputs: Mapping[str, ArrayLike]) -> TwoStagePrediction:
        """Return the outcome at `inputs` with intervals through both stages; NaN without draws.

        Raises:
            ValueError: If a stage has no numbers, or an input is missing or not positive.
        """
        first = self.to_loss.predict(inputs)
        second = self.to_outcome.predict(first.y)
        n_draws = min(len(self.to_loss.draws), len(self.to_outcome.draws))
        law_draws = self.to_loss.draws[:n_draws]
        losses = self.to_loss.law.evaluate(first.inputs, law_draws)  # (draws, n)
        stages = (self.to_loss.levels, self.to_outcome.levels)
        low, high = confidence_band(self._linked(losses), max(s.curve for s in stages))
        new_low, new_high = confidence_band(self._new_runs(losses), max(s.new_run for s in stages))
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

    def _linked(self, losses: Array) -> Array:
        """Return the outcomes (draws, n) of losses (draws, n), each row by its own link."""
        link, draws = self.to_outcome.law, self.to_outcome.draws[: len(losses)]
        (name,) = link.inputs
        rows = [link.evaluate({name: row}, p) for row, p in zip(losses, draws, strict=True)]
        return np.stack(rows) if rows else losses

    def _new_runs(self, losses: Array) -> Array:
        """Return outcomes of simulated new runs (draws, n)."""
        if not len(losses):
            return losses
        generator = np.random.default_rng(0)
        spread = widened(self.to_loss.residuals, self.to_loss.n_free)
        noise = generator.choice(spread, size=(len(losses), 1))
        outcomes = self._linked(self.to_loss.objective_of.observed(losses, noise))
        own = widened(self.to_outcome.residuals, self.to_outcome.n_free)
        return np.asarray(outcomes - generator.choice(own, size=(len(losses), 1)))


def fit_chain(
    law: Law | str,
    link: Law,
    runs: Runs | HasTable,
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
    """Fit both stages.

    Args:
        law: Sizes to loss, of `analysis/laws`, or its name there.
        link: Loss to outcome, of `analysis/laws/loss_to_accuracy.py`.
        runs: Columns, one row per run, or what `analysis.load` returns.
        loss: Column of the loss.
        outcome: Column of the outcome.
        columns: The law's input names to columns, where they differ.
        clusters: Configuration per row, or its column; None makes rows of equal inputs one.
        law_rows: Mask of the rows for the first stage; None takes all.
        link_rows: The same for the second; checkpoints belong to their run's cluster.
        objective: Of the first stage.
        huber: Threshold of the second stage, in units of the outcome; None is least squares.
        n_draws: Resamples.
        seed: Of the resampling.
        level: Of the intervals.
        hold_out: Whether the law predicts the largest runs from the smaller ones, too.
        accept: Kinds of warning that were looked into, as in `fit_law`.

    Raises:
        ValueError: As `fit_law`; rows are those of `runs`, also with masks.

    Example:
        >>> import numpy as np
        >>> from analysis.laws.loss_to_accuracy import Sigmoid
        >>> N, D = (v.ravel() for v in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1e9, 4e9, 1.6e10]))
        >>> runs = {"params": N, "tokens": D, "loss": 1.8 + 400 * N**-0.35 + 2000 * D**-0.37}
        >>> runs["accuracy"] = 0.25 + 0.7 / (1 + np.exp(4 * (runs["loss"] - 3)))
        >>> chain = fit_chain("chinchilla", Sigmoid(chance=0.25), runs, n_draws=0)
        >>> at = chain.predict({"params": 1e9, "tokens": 6.4e10})
        >>> at.loss.round(3).tolist(), at.y.round(3).tolist()
        ([2.284], [0.912])
    """
    law, runs = as_law(law), as_columns(runs)
    if not isinstance(link, Law):
        raise ValueError(
            "link: must be a curve of analysis/laws/loss_to_accuracy.py, such as "
            f"Sigmoid(chance=0.25), got {link!r}; its levels depend on the task"
        )
    first, second = (_mask(rows, len(column(runs, loss))) for rows in (law_rows, link_rows))
    names = {name: column_of(runs, name, columns) for name in law.inputs}
    table = _sizes(law, runs, names, first)
    losses = numbers(runs, loss, why=LOSS_ADVICE, among=first | second)
    outcomes = _outcomes(runs, outcome, second, accept)
    if link.levels_are_shares and np.median(outcomes[second]) > PER_CENT and "units" not in accept:
        raise ValueError(
            f"{outcome}: in per cent? divide by 100; the median is "
            f"{np.median(outcomes[second]):.4g}, and the levels of {link.name} are shares"
        )
    configurations = labels(runs, clusters, equal_rows(*table.values()))
    seeds = seeds_of(runs, clusters, equal_rows(*table.values()))
    warnings = _warnings(table, losses, first, loss, clusters is not None, seeds, accept)
    # One set of resamples for both stages, so that their errors stay together.
    needs = [(first, [*table.values()], law.n_free), (second, [losses], link.n_free)]
    weights = _resamples(configurations, needs, law.min_spare, n_draws=n_draws, seed=seed)
    stage = _Stage(configurations, weights, {"seed": seed, "level": level})
    options: dict[str, Any] = {"objective": objective, "n_draws": n_draws, "hold_out": hold_out}
    to_loss = stage.fit(law, table | {loss: losses}, loss, first, **options)
    return TwoStageFit(
        to_loss=replace(to_loss, columns=names),
        to_outcome=stage.fit_link(link, losses, outcomes, outcome, second, huber),
        level=level,
        warnings=warnings,
        outcome=outcome,
    )


def _mask(rows: ArrayLike | None, n: int) -> Mask:
    return np.ones(n, dtype=bool) if rows is None else np.asarray(rows, dtype=bool)


@dataclass(frozen=True)
class _Stage:
    """What both stages have in common; the table was checked, with the rows' own numbers."""

    configurations: NDArray[Any]
    """(n,)."""
    resamples: Array
    """(n_draws, n)."""
    options: Mapping[str, Any]

    def fit(
        self, law: Law, data: Mapping[str, Array], outcome: str, rows: Mask, **options: Any
    ) -> LawFit:
        """Fit some rows of columns (n,)."""
        chosen = {name: values[rows] for name, values in data.items()}
        controls = FitControls(resamples=self.resamples[:, rows])
        return self._fit(law, chosen, outcome, self.configurations[rows], controls, **options)

    def fit_link(
        self, link: Law, x: Array, y: Array, outcome: str, rows: Mask, huber: float | None
    ) -> LawFit:
        """Fit the link, with its anchor in every resample if it has one."""
        if huber is not None and not huber > 0:
            raise ValueError(f"huber: must be positive, got {huber}; None is least squares")
        options = {"objective": Objective(residual="value", huber=huber), "hold_out": False}
        (name,) = link.inputs
        plain = self.fit(link, {name: x, outcome: y}, outcome, rows, **options)
        if link.anchor is None or not plain.usable:
            return plain
        scale = np.sqrt(np.sum(plain.residuals**2) / max(plain.degrees_of_freedom, 1))
        weight = (scale / ANCHOR_SD) ** 2
        at, value = link.anchor
        data = {name: np.append(x[rows], max(at, NEARLY_ZERO)), outcome: np.append(y[rows], value)}
        resampled = self.resamples[:, rows]
        controls = FitControls(
            resamples=np.column_stack([resampled, np.ones(len(resampled))]),
            weights=np.append(np.ones(rows.sum()), weight),
        )
        clusters = np.append(np.unique(self.configurations[rows], return_inverse=True)[1], -1)
        fit = self._fit(link, data, outcome, clusters, controls, **options)
        # The anchor is no run: nothing that is reported of the runs counts it.
        return replace(
            fit,
            inputs=plain.inputs,
            y=plain.y,
            clusters=plain.clusters,
            residuals=fit.residuals[:-1],
            weights=plain.weights,
            n_configurations=plain.n_configurations,
            degrees_of_freedom=plain.degrees_of_freedom,
        )

    def _fit(
        self,
        law: Law,
        data: Mapping[str, Array],
        outcome: str,
        clusters: NDArray[Any],
        controls: FitControls,
        **options: Any,
    ) -> LawFit:
        return fit_law(
            law,
            data,
            outcome=outcome,
            clusters=clusters,
            accept=ALL_KINDS,
            controls=controls,
            **self.options,
            **options,
        )


def _sizes(law: Law, runs: Runs, names: Mapping[str, str], among: Mask) -> dict[str, Array]:
    """Return the law's inputs (n,), checked where the first stage uses them.

    Args:
        law: Of the first stage.
        runs: The table.
        names: The law's inputs to columns.
        among: Mask (n,) of the rows of the first stage.
    """
    return {
        name: numbers(runs, theirs, zero=name in law.may_be_zero, among=among)
        for name, theirs in names.items()
    }


def _resamples(
    configurations: NDArray[Any],
    needs: Sequence[tuple[Mask, Sequence[Array], int]],
    min_spare: int,
    *,
    n_draws: int,
    seed: int,
) -> Array:
    """Return how often each row occurs in each resample (n_draws, n); none with too few rows.

    Args:
        configurations: (n,).
        needs: Of each stage its rows, inputs (n,) and free parameters.
        min_spare: Degrees of freedom that both stages need.
        n_draws: Resamples.
        seed: Of the generator.
    """
    stages = [(rows, equal_rows(*inputs), n_free) for rows, inputs, n_free in needs]
    too_few = any(
        too_few_for_intervals(
            n_free,
            min_spare=min_spare,
            n_distinct=len(np.unique(places[rows])),
            n_clusters=len(np.unique(configurations[rows])),
        )
        for rows, places, n_free in stages
    )
    if not n_draws or too_few:
        return np.empty((0, len(configurations)))

    def enough(drawn: Array) -> Mask:
        determined = [
            n_distinct_drawn(drawn[:, rows], places[rows]) >= n_free
            for rows, places, n_free in stages
        ]
        return np.asarray(np.all(determined, axis=0))

    return resample_clusters(configurations, n_draws=n_draws, seed=seed, accept=enough).weights


def _outcomes(runs: Runs, name: str, among: Mask, accept: Collection[str]) -> Array:
    """Return the outcome (n,), which may be zero or negative where it is a share or a logarithm."""
    values = np.asarray(column(runs, name), dtype=np.float64)
    numbers({name: values}, name, negative=True, among=among, why="take it out with link_rows=")
    chosen = values[among]
    percent = among & (values > PER_CENT)
    # Shares beside per cent: none of the larger ones is below ten times the largest share.
    if 0 < percent.sum() < among.sum() and chosen.max() <= 100 and "units" not in accept:
        shares = values[among & ~percent]
        if shares.max() <= 1 and values[percent].min() > 10 * shares.max():
            row = int(np.flatnonzero(percent)[0])
            raise ValueError(
                f"{name}: mixed units, {in_words(np.flatnonzero(percent))} (row {row}: "
                f"{values[row]:.4g}) looks like per cent among shares; "
                "write every row in one unit, or say accept={'units'}"
            )
    return values


def _warnings(
    table: Mapping[str, Array],
    losses: Array,
    among: Mask,
    name: str,
    seeds_named: bool,
    configurations: NDArray[np.int64] | None,
    accept: Collection[str],
) -> tuple[str, ...]:
    """Return what is odd about the rows of the first stage, by their numbers in the whole table."""
    blank = {k: np.where(among, v, np.nan) for k, v in table.items() if k in SIZES}
    refuse_bad_units(check_size_units(blank), accept=accept)
    found = check_runs(
        {k: v[among] for k, v in table.items()},
        losses[among],
        outcome=name,
        seeds_named=seeds_named,
        configurations=None if configurations is None else configurations[among],
        rows=np.flatnonzero(among),
    )
    return tuple(w.sentence for w in found if w.kind not in accept)
