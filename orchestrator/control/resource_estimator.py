"""Resource estimation: a trial's demand, from finished trials like it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.control.retry_policy import memory_halvings, resources_for
from orchestrator.control.status import TrialStatus
from orchestrator.control.trial_state import ManagedTrial
from orchestrator.records.trial_spec import GPU_PEAK, Outcome, Resources
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.gpu_sharing import MemoryObservations, max_enlargements, ranks_per_gpu
from orchestrator.scheduling.runtime_prediction import RuntimePredictor
from orchestrator.scheduling.trial_demand import trial_demand, with_gpu_count

MIN_OBSERVED_SHARE = 0.25
"""Share of a trial's steps from which on an attempt's seconds are taken to tell those of the whole
trial. A choice, not measured."""


class ResourceEstimator:
    """Estimates what the next attempt of a trial needs: cores, GPUs, GPU memory and seconds."""

    def __init__(self, predicted_s: Mapping[str, float]) -> None:
        """Start from predicted seconds of whole trials alone."""
        self._runtimes = RuntimePredictor(predicted_s)
        self._memory = MemoryObservations()

    def observe(self, trial: ManagedTrial, seconds: float, *, first_step: int) -> None:
        """Record the seconds of the attempt that finished a trial, from `first_step` on.

        An attempt with few of the steps says more of its start than of the trial: it does not
        count.
        """
        share = 1.0 - first_step / trial.spec.steps
        if share >= MIN_OBSERVED_SHARE:
            self._runtimes.observe(trial.spec, seconds / share)

    def observe_running(self, statuses: Iterable[tuple[ManagedTrial, TrialStatus]]) -> None:
        """Take the rates of all trials that run now, in place of those taken before."""
        self._runtimes.observe_running(
            (trial.spec, status.eta_s * status.steps / (status.steps - status.step))
            for trial, status in statuses
            if status.eta_s and status.step is not None
        )

    def observe_memory(self, trial: ManagedTrial, result: Mapping[str, Any] | None) -> None:
        """Record the peak GPU memory that a trial's result tells, if there is one."""
        peak = ((result or {}).get("metrics") or {}).get(GPU_PEAK)
        if peak is not None:
            self._memory.observe_peak(trial.configuration, float(peak))

    def on_oom(self, trial: ManagedTrial) -> None:
        """Record that a trial ran out of GPU memory once more."""
        times = sum(past.outcome is Outcome.GPU_OOM for past in trial.past_attempts)
        self._memory.observe_ooms(trial.configuration, times)

    def resources(self, trial: ManagedTrial, nodes: Sequence[Node]) -> Resources:
        """Return the resources of the next attempt.

        They are what the trial asks for; after it ran out of memory, more of a GPU or smaller
        micro-batches.
        """
        asked = with_gpu_count(trial.spec.resources, nodes)
        outcomes = [past.outcome for past in trial.past_attempts]
        if limit := max_enlargements(asked.gpus):
            # A share on which another seed ran out of memory need not be tried again.
            known = min(self._memory.n_ooms(trial.configuration), limit)
            outcomes += [Outcome.GPU_OOM] * (known - outcomes.count(Outcome.GPU_OOM))
        return resources_for(asked, outcomes, seq_len=int(trial.spec.train["seq_len"]))

    def memory_halvings(self, trial: ManagedTrial) -> int:
        """Return how often memory was too small for ranks, which take smaller passes as often.

        As often as another seed had to.
        """
        own = sum(past.outcome is Outcome.GPU_OOM for past in trial.past_attempts)
        n_ooms = max(own, self._memory.n_ooms(trial.configuration))
        return memory_halvings(trial.spec.resources, n_ooms)

    def demand(self, trial: ManagedTrial, nodes: Sequence[Node]) -> Demand:
        """Return the demand of the next attempt."""
        if trial.fixed_demand is not None:
            return trial.fixed_demand
        resources = self.resources(trial, nodes)
        gpus = float(resources.gpus)
        n_ranks = ranks_per_gpu(resources.ranks, gpus)
        shared = 0 < gpus < 1
        return trial_demand(
            resources,
            gpu_memory_bytes=(
                self._memory.reserved_bytes(trial.configuration, ranks=n_ranks) if shared else 0.0
            ),
        )

    def left_s(self, trial: ManagedTrial) -> float:
        """Return the predicted seconds that are left of a trial."""
        done = trial.checkpoint_step / trial.spec.steps
        return self._runtimes.seconds(trial.spec, done=done)

    def left_s_now(self, trial: ManagedTrial) -> float:
        """Return the same by the rates of what runs: for a display."""
        done = trial.checkpoint_step / trial.spec.steps
        return self._runtimes.seconds_now(trial.spec, done=done)
