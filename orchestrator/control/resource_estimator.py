"""What the next attempt of a trial needs, in cores, GPUs, memory and seconds, by what others of its configuration were measured to need."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.control.retry_policy import resources_for
from orchestrator.control.status import steps_of
from orchestrator.control.trial_state import ManagedTrial
from orchestrator.records.trial_spec import GPU_PEAK, Outcome, Resources
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.gpu_sharing import MemoryObservations, max_enlargements, ranks_per_gpu
from orchestrator.scheduling.runtime_prediction import RuntimePredictor


class ResourceEstimator:
    """Grows wiser with every result."""

    def __init__(self, predicted_s: Mapping[str, float]) -> None:
        """Start from predictions alone: seconds of whole trials."""
        self._pace = RuntimePredictor(predicted_s)
        self._probes = MemoryObservations()

    def resources(self, trial: ManagedTrial, nodes: Sequence[Node]) -> Resources:
        """Return what its next attempt asks for: what was asked for, and more, or smaller micro-batches, after it ran out of memory."""
        asked = trial.spec.resources
        if asked.gpus == "auto":
            asked = replace(asked, gpus=float(_gpus_for(asked.ranks, nodes)))
        outcomes = [past.outcome for past in trial.past]
        if shared := max_enlargements(asked.gpus):
            # What made another seed of it run out of memory on its share would do so here.
            known = min(self._probes.grown(trial.configuration), shared)
            outcomes += [Outcome.GPU_OOM] * (known - outcomes.count(Outcome.GPU_OOM))
        return resources_for(
            asked,
            outcomes,
            batch_tokens=int(trial.spec.train["batch_tokens"]),
            seq_len=int(trial.spec.train["seq_len"]),
        )

    def demand(self, trial: ManagedTrial, nodes: Sequence[Node]) -> Demand:
        """Return what its next attempt takes of the nodes."""
        return trial.fixed_demand or self._demand(trial, self.resources(trial, nodes))

    def _demand(self, trial: ManagedTrial, resources: Resources) -> Demand:
        """Return what the next attempt needs. Its ranks may lie on several nodes if no single one could hold them."""
        gpus = float(resources.gpus)
        need = 0.0
        if 0 < gpus < 1:
            need = self._probes.need(
                trial.configuration, ranks=ranks_per_gpu(resources.ranks, gpus)
            )
        return Demand(
            cpus=resources.cpus * resources.ranks,
            gpus=gpus,
            gpu_memory_bytes=need,
            gang_size=1 if 0 < gpus < 1 else resources.ranks,
        )

    def saw(self, trial: ManagedTrial, seconds: float) -> None:
        """Take in how long a trial took that was done at the first attempt."""
        self._pace.saw(trial.spec, seconds)

    def ran_out(self, trial: ManagedTrial) -> None:
        """Take in that a trial has run out of GPU memory once more."""
        times = sum(past.outcome is Outcome.GPU_OOM for past in trial.past)
        self._probes.ran_out(trial.configuration, times=times)

    def probe(self, trial: ManagedTrial) -> None:
        """Learn from a trial's result how much GPU memory others of its configuration need."""
        peak = ((trial.folder.result() or {}).get("metrics") or {}).get(GPU_PEAK)
        if peak is not None:
            self._probes.saw(trial.configuration, float(peak))

    def left_s(self, trial: ManagedTrial) -> float:
        """Return the predicted seconds of what is left of a trial."""
        return self._pace.seconds(trial.spec, done=trial.best_step / steps_of(trial.spec))


def _gpus_for(ranks: int, nodes: Sequence[Node]) -> int:
    """Return the GPUs of a trial that asks for `auto`: one per rank where one node, or several alike, have so many.

    Else all of a node: ranks that share a GPU talk through gloo.
    """
    counts = [len(node.gpus) for node in nodes]
    most = max(counts, default=0)
    return ranks if ranks <= most * counts.count(most) else most
