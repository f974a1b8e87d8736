"""Signal and noise of benchmarks: which tasks tell the models of a sweep apart.

Signal is the largest difference between configurations, noise the standard deviation of one
trial's score. Source of the ratio: Heineman et al. 2025, "Signal and Noise" (arXiv 2508.13144),
which takes the noise from the last checkpoints; where seeds were repeated, they say more.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

PREFIX = "eval/"
MEASURES = ("acc", "acc_norm", "exact_match", "nll", "bits_per_byte")
LAST_SHARE = 0.2
"""Share of the training whose checkpoints count as the last ones; earlier ones hold progress."""
LEVEL, POWER = 0.05, 0.8
"""Of the two-sided test by which the smallest difference is defined."""
CHANCE_ERRORS = 2.0
"""Standard errors above chance from which on an accuracy is more than guessing."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkNoise:
    """One metric of one task, over the trials of a sweep."""

    task: str
    measure: str
    n_configurations: int
    n_seeds: float
    """Trials per configuration, harmonic mean."""
    lowest: float
    """Mean score of the configuration with the lowest one."""
    highest: float
    noise: float | None
    """Standard deviation of a trial's score, of what `noise_from` names."""
    noise_from: Literal["seeds", "checkpoints", "rows"] | None
    """The first that is known: between seeds of one configuration, pooled; between the last
    checkpoints of one trial, pooled; over the rows of the task, which is of another sample of rows,
    not of another seed."""
    freedom: float
    """Degrees of freedom of the noise; infinite for rows."""
    chance: float | None
    """Score of guessing; None where nothing is chosen."""
    n_above_chance: int | None
    """Configurations that are clearly above it."""

    @property
    def signal(self) -> float:
        """Largest difference between two configurations."""
        return self.highest - self.lowest

    @property
    def signal_to_noise(self) -> float | None:
        """Signal over the noise of a configuration's mean; a few is what noise alone gives."""
        if not self.noise or self.n_configurations < 2:
            return None
        return self.signal / (self.noise / math.sqrt(self.n_seeds))

    @property
    def smallest_difference(self) -> float | None:
        """Difference of two configurations that a test at 5 % finds in 80 of 100 such sweeps.

        `(t(1 - LEVEL / 2) + t(POWER)) * noise * sqrt(2 / seeds)`, the usual approximation.
        """
        if not self.noise or self.freedom < 1:
            return None
        quantiles = stdtrit(self.freedom, [1 - LEVEL / 2, POWER])
        return float(quantiles.sum() * self.noise * math.sqrt(2 / self.n_seeds))

    @property
    def at_chance(self) -> bool:
        """Whether no configuration is clearly above guessing."""
        return self.n_above_chance == 0


def benchmark_noise(table: pd.DataFrame, histories: pd.DataFrame) -> list[BenchmarkNoise]:
    """Return signal and noise of every benchmark metric of a sweep.

    Args:
        table: Of `analysis.load`: a row per trial, with its configuration and final metrics.
        histories: Of `analysis.histories(runs, ("eval/",))`; may be empty.
    """
    found = []
    for column in benchmark_columns(table):
        task, _, measure = column.removeprefix(PREFIX).rpartition("/")
        rows = table[table[column].notna()]
        if len(rows):
            last = _last_checkpoints(histories, column)
            found.append(_noise_of(rows, column, task, measure, last))
    return found


def benchmark_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns of a table of runs that are scores of benchmarks."""
    names = [str(column) for column in table.columns]
    return [n for n in names if n.startswith(PREFIX) and n.rpartition("/")[2] in MEASURES]


def _noise_of(
    rows: pd.DataFrame, column: str, task: str, measure: str, last: list[NDArray[np.float64]]
) -> BenchmarkNoise:
    groups = [group.to_numpy(float) for _, group in rows.groupby("configuration")[column]]
    means = [float(group.mean()) for group in groups]
    seed_sd, seed_freedom = _pooled(groups)
    checkpoint_sd, checkpoint_freedom = _pooled(last)
    error = f"{column}_stderr"
    row_error = None
    if error in rows and rows[error].notna().any():
        row_error = float(np.sqrt(np.nanmean(rows[error].to_numpy(float) ** 2)))
    known: list[tuple[Literal["seeds", "checkpoints", "rows"], float | None, float]] = [
        ("seeds", seed_sd, seed_freedom),
        ("checkpoints", checkpoint_sd, checkpoint_freedom),
        ("rows", row_error, math.inf),
    ]
    named = next((one for one in known if one[1] is not None), (None, None, 0.0))
    chance, n_above = _above_chance(rows, task, measure, column)
    return BenchmarkNoise(
        task=task,
        measure=measure,
        n_configurations=len(groups),
        n_seeds=len(groups) / sum(1 / len(group) for group in groups),
        lowest=min(means),
        highest=max(means),
        noise_from=named[0],
        noise=named[1],
        freedom=named[2],
        chance=chance,
        n_above_chance=n_above,
    )


def _last_checkpoints(histories: pd.DataFrame, column: str) -> list[NDArray[np.float64]]:
    """Return per trial the values at its last checkpoints."""
    of_metric = histories[histories["metric"] == column]
    return [
        trial["value"][trial["step"] >= (1 - LAST_SHARE) * trial["step"].max()].to_numpy(float)
        for _, trial in of_metric.groupby(["sweep", "trial_id"])
    ]


def _pooled(groups: list[NDArray[np.float64]]) -> tuple[float | None, float]:
    """Return the pooled standard deviation within groups, and its degrees of freedom."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None, 0.0
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return math.sqrt(squares / freedom), float(freedom)


def _above_chance(
    rows: pd.DataFrame, task: str, measure: str, column: str
) -> tuple[float | None, int | None]:
    """Return the score of guessing, and how many configurations are clearly above it."""
    name, error = f"{PREFIX}{task}/chance", f"{column}_stderr"
    if not measure.startswith("acc") or name not in rows or not rows[name].notna().any():
        return None, None
    chance = float(rows[name].dropna().iloc[0])
    above = 0
    for _, group in rows.groupby("configuration"):
        # All trials answer the same rows, so seeds do not make the error over rows smaller.
        missing = error not in group or group[error].isna().all()
        stderr = 0.0 if missing else float(group[error].mean())
        above += float(group[column].mean()) - chance > CHANCE_ERRORS * stderr
    return chance, above
