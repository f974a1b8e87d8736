"""The trials of a plan as the scheduler sees them: what they need, how long they take, whose predictions go together."""

from orchestrator.planning.pricing import Plan, PlannedTrial
from orchestrator.planning.runtime_prior import GUESS_GPU_FLOPS_PER_SECOND
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.gpu_sharing import memory_need, ranks_per_gpu
from orchestrator.scheduling.runtime_prediction import prediction_group
from orchestrator.scheduling.wait_queue import Waiting
from orchestrator.simulation.cluster_spec import ClusterSpec


def waiting(plan: Plan, cluster: ClusterSpec) -> tuple[list[Waiting], dict[str, str]]:
    """Return what submitting would train, as it would wait for the first time on that cluster, and the architecture by trial id.

    What a trial takes of a GPU's memory is the plan's estimate with the margin, for there is no measurement yet; it
    counts only where the cluster says how much its GPUs have.
    """
    trials = []
    architectures = {}
    for order, trial in enumerate(plan.trials):
        if not trial.to_train:
            continue
        needed = demand(trial.spec, gpus=cluster.gpus)
        trial_id = trial.spec.trial_id
        architectures[trial_id] = trial.spec.architecture
        trials.append(
            Waiting(
                trial_id=trial_id,
                demand=needed,
                predicted_s=trial.remaining * _seconds(trial, needed, cluster.gpu_flops),
                order=order,
                sweep=plan.sweep.name,
                prediction_group=prediction_group(trial.spec),
            )
        )
    return trials, architectures


def rate_text(plan: Plan, cluster: ClusterSpec) -> str:
    """Say where the predicted times come from."""
    if cluster.gpu_flops is not None and cluster.gpus:
        return f"at {cluster.gpu_flops:.2g} FLOP/s a GPU, as given; a share of a GPU gets its share"
    told = {
        "measured": "from trials of the same architecture measured here",
        "scaled": "scaled from other trials measured here",
        "guess": "a guess"
        + (
            f" ({GUESS_GPU_FLOPS_PER_SECOND:.0e} FLOP/s a GPU; say gpu_flops=…)"
            if cluster.gpus
            else ""
        ),
    }
    sources = sorted({trial.runtime.source for trial in plan.trials if trial.to_train})
    return "; ".join(told[source] for source in sources)


def _seconds(trial: PlannedTrial, needed: Demand, gpu_flops: float | None) -> float:
    """Return the forecast, or what the trial's FLOPs take at a given rate per GPU, of which a share gets its share."""
    forecast = trial.runtime
    if not needed.gpus:
        return forecast.seconds
    if gpu_flops is not None:
        return trial.spec.accounting["training_flops"] / (gpu_flops * needed.gpus)
    # The guess is for one GPU; a measurement is of a whole trial.
    return forecast.seconds / max(1.0, needed.gpus if forecast.source == "guess" else 1.0)


def demand(spec: TrialSpec, *, gpus: int) -> Demand:
    """Return what a trial needs on a cluster with that many GPUs."""
    resources = spec.resources
    asked = resources.gpus
    # `auto`: one per rank where there are any.
    count = float((resources.ranks if gpus else 0) if isinstance(asked, str) else asked)
    peak = spec.accounting["peak_memory_bytes"]
    ranks = resources.ranks
    return Demand(
        cpus=resources.cpus * ranks,
        gpus=count,
        gpu_memory_bytes=memory_need(peak, ranks=ranks_per_gpu(ranks, count)) if count else 0.0,
        # Ranks may lie apart if each has GPUs of its own, or none has any.
        gang_size=ranks if count % ranks == 0 else 1,
    )
