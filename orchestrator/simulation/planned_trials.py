"""Planned trials as the scheduler sees them: demands and predicted seconds."""

from collections.abc import Sequence

from orchestrator.planning.pricing import Plan, PlannedTrial
from orchestrator.planning.runtime_prior import (
    GUESS_GPU_FLOPS_PER_SECOND,
    GUESS_GPU_START_S,
    GUESS_GPU_STEP_S,
)
from orchestrator.records.trial_spec import TrialSpec
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.gpu_sharing import memory_need, ranks_per_gpu
from orchestrator.scheduling.policy import SHORTEST_S
from orchestrator.scheduling.runtime_prediction import prediction_group
from orchestrator.scheduling.trial_demand import trial_demand, with_gpu_count
from orchestrator.scheduling.wait_queue import Waiting
from orchestrator.simulation.checkpointing import (
    CHECKPOINT_BYTES_PER_PARAM,
    WRITE_BYTES_PER_S,
    Checkpointing,
)
from orchestrator.simulation.cluster_spec import ClusterSpec
from orchestrator.simulation.faults import Job


def waiting_trials(plan: Plan, cluster: ClusterSpec) -> list[Waiting]:
    """Return what submitting would train, as it would wait for the first time on that cluster.

    The GPU memory of a trial is the plan's estimate with a margin, for nothing was measured yet. It
    counts only where the cluster says how much its GPUs have.
    """
    trials = []
    for order, trial in enumerate(plan.trials):
        if not trial.to_train:
            continue
        demand = _demand(trial.spec, cluster.nodes)
        trials.append(
            Waiting(
                trial_id=trial.spec.trial_id,
                demand=demand,
                predicted_s=trial.remaining * _seconds(trial, demand, cluster.gpu_flops),
                begun=trial.remaining < 1,
                order=order,
                sweep=plan.sweep.name,
                prediction_group=prediction_group(trial.spec),
            )
        )
    return trials


def fault_jobs(
    plan: Plan, waiting: Sequence[Waiting], *, write_s: float | None = None
) -> list[Job]:
    """Return waiting trials with their checkpoints and retries, as the sweep file has them.

    Args:
        plan: The sweep.
        waiting: Of `waiting_trials`.
        write_s: Seconds that writing a checkpoint takes; None: by its size, at a guessed rate.
    """
    specs = {trial.spec.trial_id: trial.spec for trial in plan.trials}
    jobs = []
    for trial in waiting:
        spec = specs[trial.trial_id]
        size = CHECKPOINT_BYTES_PER_PARAM * spec.accounting["total_params"]
        step_s = trial.predicted_s / max(1.0, spec.accounting["steps"])
        checkpointing = Checkpointing(
            # 0 is a checkpoint after every step.
            every_s=max(spec.logging.checkpoint_every_s, step_s, SHORTEST_S),
            write_s=size / WRITE_BYTES_PER_S if write_s is None else write_s,
        )
        jobs.append(Job(trial=trial, checkpointing=checkpointing, retries=spec.retries))
    return jobs


def rate_text(plan: Plan, cluster: ClusterSpec) -> str:
    """Return where the predicted times come from."""
    if cluster.gpu_flops is not None and cluster.gpus:
        return f"at {cluster.gpu_flops:.2g} FLOP/s a GPU, as given; a share of a GPU gets its share"
    guesses = [t.runtime for t in plan.trials if t.to_train and t.runtime.source == "guess"]
    total = sum(guess.seconds for guess in guesses)
    low, high = (
        sum(guess.seconds * guess.factors[end] for guess in guesses) / max(total, 1e-9)
        for end in (0, 1)
    )
    rate = (
        f" ({GUESS_GPU_START_S:g} s to compile; {GUESS_GPU_FLOPS_PER_SECOND:.0e} FLOP/s a GPU, and "
        f"{1e3 * GUESS_GPU_STEP_S:g} ms a step at least: say gpu_flops=…)"
    )
    text = {
        "steps": "from measured step times; a share of a GPU gets its share",
        "measured": "from trials of the same architecture measured here",
        "scaled": "scaled from other trials measured here",
        "guess": f"a guess{rate if cluster.gpus else ''}, and true times are {low:.2g} to "
        f"{high:.2g} times these",
    }
    sources = sorted({trial.runtime.source for trial in plan.trials if trial.to_train})
    return "; ".join(text[source] for source in sources)


def _seconds(trial: PlannedTrial, demand: Demand, gpu_flops: float | None) -> float:
    """Return the predicted seconds of a whole trial.

    With a given rate per GPU they follow from its FLOPs; a share of a GPU gets its share of it.
    """
    if not demand.gpus:
        return trial.runtime.seconds
    if gpu_flops is not None:
        return trial.spec.accounting["training_flops"] / (gpu_flops * demand.gpus)
    # The guess is for one GPU; a measurement is of a whole trial.
    guessed = trial.runtime.source == "guess"
    return trial.runtime.seconds / max(1.0, demand.gpus if guessed else 1.0)


def _demand(spec: TrialSpec, nodes: Sequence[Node]) -> Demand:
    """Return the demand of a trial on that cluster."""
    resources = with_gpu_count(spec.resources, nodes)
    gpus = float(resources.gpus)
    peak = spec.accounting["peak_memory_bytes"]
    need = memory_need(peak, ranks=ranks_per_gpu(resources.ranks, gpus)) if gpus else 0.0
    return trial_demand(resources, gpu_memory_bytes=need)
