"""Runtime prediction: predicted seconds of trials, corrected by measured ones.

A correction is the median of measured over predicted seconds, of the nearest group of trials that
was measured: `architecture/size`, else `architecture`, else all. For the time left that is shown,
running trials count by their rates.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.records.trial_spec import TrialSpec
from orchestrator.scheduling.demand import Demand, Node

GUESSED_FLOPS_PER_S = 1.0e10
"""For trials without a prediction: with one rate for all, only their order means something."""
GUESSED_FLOPS_PER_TOKEN = 1.0e6


def prediction_group(spec: TrialSpec) -> str:
    """Return the group that shares a correction: an architecture, and a size within factor two."""
    total = spec.accounting.get("total_params")
    size = f"/2^{round(math.log2(total))}" if total else ""
    return f"{spec.architecture}{size}"


class RuntimeCorrections:
    """Ratios of measured to predicted seconds, by group, of finished and of running trials."""

    def __init__(self) -> None:
        """Start without a measurement."""
        self._observed: dict[str, list[float]] = {}
        self._running: dict[str, list[float]] = {}
        self._ratios: dict[str, float] = {}
        self._ratios_now: dict[str, float] = {}

    def observe(self, group: str, ratio: float) -> None:
        """Record that a trial took `ratio` times its first prediction."""
        for name in _with_wider_groups(group):
            self._observed.setdefault(name, []).append(ratio)
        self._ratios.clear()
        self._ratios_now.clear()

    def observe_running(self, ratios: Iterable[tuple[str, float]]) -> None:
        """Take groups and ratios of all trials that run, in place of those taken before."""
        self._running.clear()
        self._ratios_now.clear()
        for group, ratio in ratios:
            for name in _with_wider_groups(group):
                self._running.setdefault(name, []).append(ratio)

    def ratio(self, group: str) -> float:
        """Return the factor for a group's predictions, 1 if nothing was observed.

        Ratios build on first predictions, not on corrected ones, so corrections never compound.
        """
        known = self._ratios.get(group)
        if known is None:
            known = self._ratios[group] = _median_of_nearest(group, self._observed)
        return known

    def ratio_now(self, group: str) -> float:
        """Return the factor where running trials count as well.

        It moves with their rates from second to second: a display may, an order of trials may not.
        """
        known = self._ratios_now.get(group)
        if known is None:
            both = {
                name: self._observed.get(name, []) + self._running.get(name, [])
                for name in _with_wider_groups(group)
            }
            known = self._ratios_now[group] = _median_of_nearest(group, both)
        return known


def _median_of_nearest(group: str, measured: Mapping[str, Sequence[float]]) -> float:
    """Return the median of the nearest group that was measured; 1 if none was."""
    ratios = (measured.get(name) for name in _with_wider_groups(group))
    return statistics.median(next(filter(None, ratios), [1.0]))


def _with_wider_groups(group: str) -> list[str]:
    """Return the group, its architecture, and the empty name for all trials, each once."""
    return list(dict.fromkeys((group, group.partition("/")[0], "")))


class RuntimePredictor:
    """Predicted seconds of trials, times the correction of their group."""

    def __init__(self, predicted_s: Mapping[str, float]) -> None:
        """Take the predicted seconds of whole trials by id."""
        self._predicted_s = dict(predicted_s)
        self._corrections = RuntimeCorrections()

    def seconds(self, spec: TrialSpec, *, done: float = 0.0) -> float:
        """Return the seconds that a trial still needs after the share `done` of its steps."""
        correction = self._corrections.ratio(prediction_group(spec))
        return self._whole_s(spec) * correction * max(0.0, 1.0 - done)

    def seconds_now(self, spec: TrialSpec, *, done: float = 0.0) -> float:
        """Return the same by what runs, too: for a display."""
        correction = self._corrections.ratio_now(prediction_group(spec))
        return self._whole_s(spec) * correction * max(0.0, 1.0 - done)

    def observe(self, spec: TrialSpec, seconds: float) -> None:
        """Record how long a whole trial took."""
        self._corrections.observe(prediction_group(spec), seconds / max(1e-3, self._whole_s(spec)))

    def observe_running(self, whole_s: Iterable[tuple[TrialSpec, float]]) -> None:
        """Take the seconds that whole trials will take, by the rates of all that run now."""
        self._corrections.observe_running(
            (prediction_group(spec), seconds / max(1e-3, self._whole_s(spec)))
            for spec, seconds in whole_s
        )

    def _whole_s(self, spec: TrialSpec) -> float:
        predicted = self._predicted_s.get(spec.trial_id)
        if predicted is not None:
            return predicted
        guess = GUESSED_FLOPS_PER_TOKEN * float(spec.steps * spec.train["batch_tokens"])
        return float(spec.accounting.get("training_flops", guess)) / GUESSED_FLOPS_PER_S


def time_left_s(work: Sequence[tuple[float, Demand]], nodes: Sequence[Node]) -> float | None:
    """Return a lower bound on the seconds until all work is done; None without nodes.

    It is the longest trial, or all work spread evenly over the cluster if that is more.

    Args:
        work: Seconds left and demand of each trial.
        nodes: The cluster.
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
