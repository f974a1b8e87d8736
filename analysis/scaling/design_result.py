"""Result of an experimental design: ranked candidates, and the runs to make."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from analysis.formatting import count, decimals, flops
from analysis.scaling.architecture_laws import ArchitectureLaws
from analysis.scaling.design_candidate import Candidate
from analysis.scaling.design_targets import LossAt, Target
from analysis.scaling.run_columns import size_of

MOST_FACTOR = 1_000
"""Off by more, a multiplier is not known at all, and a number would only seem exact."""

MOST_LOSS_FACTOR = 2
"""The same for a loss: architectures differ by less than a tenth of it."""

X_WORDS = {
    "total_params": "total parameters",
    "active_params": "active parameters",
    "memory_params": "memory parameters",
    "params": "parameters",
    "training_flops": "training FLOPs",
}
"""Columns against which a law of one size `x` is fitted, as a sentence names them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedCandidate:
    """A candidate and what it would do."""

    candidate: Candidate
    width: float
    """Width of the target's interval once it has run, over the width now."""
    per_gpu_hour: float
    """Share of the target's variance that it removes, 1 - width^2, per GPU-hour."""
    outside: float
    """Largest factor by which a size lies outside the architecture's runs; 1 inside."""

    @property
    def tokens_per_param(self) -> float:
        """D/N, NaN where the law has no tokens."""
        inputs = self.candidate.inputs
        return inputs["tokens"] / size_of(inputs) if "tokens" in inputs else math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentalDesign:
    """Candidates in order, and the runs to make."""

    laws: ArchitectureLaws
    """Of the runs that are there."""
    target: Target
    value: float
    """Of the target, by the runs that are there."""
    sd: float
    """Standard deviation of its logarithm now."""
    ranked: Sequence[RankedCandidate]
    """All candidates by what each alone does per GPU-hour, best first."""
    chosen: Sequence[RankedCandidate]
    """In the order chosen.

    `width` is against now, all before it included; `per_gpu_hour` is what it adds to those."""
    by: str
    level: float
    notes: Sequence[str] = field(default=())

    def __repr__(self) -> str:
        return (
            f"<ExperimentalDesign: {len(self.chosen)} runs of {len(self.ranked)} candidates; "
            "see sentence, to_frame()>"
        )

    @property
    def sentence(self) -> str:
        """What to run and what it brings."""
        if not self.is_known:
            return (
                f"{self.target_words} is not known to within a factor of {self._most_factor:,}:"
                " the runs hardly determine the law there; add sizes further apart"
            )
        now = f"{self.target_words} is {self.value:.{self._digits}f} {self.interval()}"
        if not self.chosen:
            return (
                f"{now} ({self.level:.0%}); no candidate that fits removes"
                " enough of its variance to be worth a run; give larger ones, or other tokens per"
                " parameter"
            )
        runs = "1 run" if len(self.chosen) == 1 else f"{len(self.chosen)} runs"
        width = self.chosen[-1].width
        return (
            f"{now} ({self.level:.0%}); {runs} of {self.gpu_hours:.3g} {self.unit} would bring"
            f" it to {self.interval(width)} ({width:.0%} of the width)"
        )

    @property
    def is_known(self) -> bool:
        """Whether the target is known at all, to within MOST_FACTOR or MOST_LOSS_FACTOR."""
        return self._log_factor <= math.log(self._most_factor)

    @property
    def target_words(self) -> str:
        """The target as a sentence names it: a size `x` by what it is."""
        return target_in_words(self.target, self.laws)

    @property
    def unit(self) -> str:
        """Of all hours: GPU-hours, or core-hours where no candidate has a GPU."""
        return self.ranked[0].candidate.unit if self.ranked else "GPU-hours"

    def interval(self, width: float = 1.0) -> str:
        """Return `[low, high]`, once the interval of the logarithm is `width` of that of now."""
        factor, digits = math.exp(self._log_factor * width), self._digits
        return f"[{self.value / factor:.{digits}f}, {self.value * factor:.{digits}f}]"

    @property
    def _digits(self) -> int:
        """Decimals of value and interval: four digits, two of the interval after the runs."""
        width = self.chosen[-1].width if self.chosen else 1.0
        half = self.value * math.expm1(self._log_factor * width)
        return max(decimals(self.value, significant=4), decimals(half, significant=2))

    @property
    def _most_factor(self) -> int:
        return MOST_LOSS_FACTOR if isinstance(self.target, LossAt) else MOST_FACTOR

    @property
    def _log_factor(self) -> float:
        """Logarithm of the factor by which the target may be off now."""
        from scipy.special import ndtri

        return float(ndtri((1 + self.level) / 2)) * self.sd

    @property
    def gpu_hours(self) -> float:
        """Of the chosen runs together."""
        return sum(r.candidate.gpu_hours for r in self.chosen)

    def to_frame(self) -> pd.DataFrame:
        """Return all candidates, best first."""
        order = {id(r.candidate): i + 1 for i, r in enumerate(self.chosen)}
        return pd.DataFrame(
            [
                {
                    "candidate": r.candidate.name,
                    "architecture": r.candidate.architecture,
                    **r.candidate.inputs,
                    "tokens_per_param": r.tokens_per_param,
                    "gpu_hours": r.candidate.gpu_hours,
                    "width": r.width,
                    "per_gpu_hour": r.per_gpu_hour,
                    "times_outside_runs": r.outside,
                    "chosen": order.get(id(r.candidate)),
                }
                for r in self.ranked
            ]
        )


def target_in_words(target: Target, laws: ArchitectureLaws) -> str:
    """Return the target as a sentence names it; a law's one size `x` by what it is."""
    column = laws.columns.get("x")
    if not isinstance(target, LossAt) or set(target.inputs) != {"x"} or column not in X_WORDS:
        return target.description
    x = target.inputs["x"]
    amount = flops(x) if column == "training_flops" else count(x)
    return f"loss of {target.architecture} at {amount} {X_WORDS[column]}"
