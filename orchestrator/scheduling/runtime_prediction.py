"""How long trials will take: predictions, corrected by how long those took that were seen to run."""

import math
import statistics
from collections.abc import Mapping, Sequence

from orchestrator.records.trial_spec import TrialSpec
from orchestrator.scheduling.demand import Demand, Node

GUESSED_FLOPS_PER_S = 1.0e10
"""For trials without a prediction: with one rate for all, only their order means something."""
GUESSED_FLOPS_PER_TOKEN = 1.0e6


def prediction_group(spec: TrialSpec) -> str:
    """Return whose measured times correct its prediction: trials of its architecture, and of its size within a factor of two."""
    total = spec.accounting.get("total_params")
    size = f"/2^{round(math.log2(total))}" if total else ""
    return f"{spec.architecture}{size}"


class RuntimePredictor:
    """Predicted seconds per trial, times the median of measured over predicted of trials like it (`RuntimeCorrections`)."""

    def __init__(self, predicted_s: Mapping[str, float]) -> None:
        """Take the predicted seconds of whole trials by id."""
        self._predicted_s = dict(predicted_s)
        self._corrections = RuntimeCorrections()

    def seconds(self, spec: TrialSpec, *, done: float = 0.0) -> float:
        """Return the seconds that a trial still needs when the share `done` of its steps is behind it."""
        correction = self._corrections.ratio(prediction_group(spec))
        return self._whole_s(spec) * correction * max(0.0, 1.0 - done)

    def saw(self, spec: TrialSpec, seconds: float) -> None:
        """Take in how long a whole trial took."""
        self._corrections.saw(prediction_group(spec), seconds / max(1e-3, self._whole_s(spec)))

    def _whole_s(self, spec: TrialSpec) -> float:
        predicted = self._predicted_s.get(spec.trial_id)
        if predicted is not None:
            return predicted
        guess = GUESSED_FLOPS_PER_TOKEN * float(spec.train["tokens"])
        return float(spec.accounting.get("training_flops", guess)) / GUESSED_FLOPS_PER_S


def time_left_s(work: Sequence[tuple[float, Demand]], nodes: Sequence[Node]) -> float | None:
    """Return when work of (seconds, demand) will be done: the longest piece, or all of it spread evenly, if that is more.

    A lower bound: what cannot be packed tightly takes longer. None without nodes.
    """
    if not nodes:
        return None
    if not work:
        return 0.0
    cores, gpus = sum(node.cpus for node in nodes), sum(len(node.gpus) for node in nodes)
    spread = sum(seconds * demand.cpus for seconds, demand in work) / max(1, cores)
    if gpus:
        spread = max(spread, sum(seconds * demand.gpus for seconds, demand in work) / gpus)
    return max(spread, max(seconds for seconds, _ in work))


# How much longer trials take than predicted: the median of what was seen, of the nearest kind that was seen.


class RuntimeCorrections:
    """Measured over predicted seconds, by pace: `architecture` or `architecture/size`."""

    def __init__(self) -> None:
        """Start without a measurement."""
        self._seen: dict[str, list[float]] = {}
        self._ratios: dict[str, float] = {}

    def saw(self, pace: str, ratio: float) -> None:
        """Take in that a trial of that pace took `ratio` times what was predicted."""
        for name in _wider(pace):
            self._seen.setdefault(name, []).append(ratio)
        self._ratios.clear()

    def ratio(self, pace: str) -> float:
        """Return what a prediction is multiplied by: by its own architecture and size, else architecture, else all; 1 if nothing was seen.

        Ratios build on the first predictions, not on corrected ones, so corrections never compound.
        """
        known = self._ratios.get(pace)
        if known is None:
            seen = next((self._seen[name] for name in _wider(pace) if name in self._seen), [1.0])
            known = self._ratios[pace] = statistics.median(seen)
        return known


def _wider(pace: str) -> list[str]:
    """Return the pace itself, its architecture, and what stands for all, each once."""
    return list(dict.fromkeys((pace, pace.partition("/")[0], "")))
