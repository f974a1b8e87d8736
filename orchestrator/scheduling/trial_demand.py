"""Demand of a trial, real or simulated, from the resources it asks for."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.records.trial_spec import Resources
from orchestrator.scheduling.demand import Demand, Node


def with_gpu_count(resources: Resources, nodes: Sequence[Node]) -> Resources:
    """Return resources whose `gpus: auto` is a number, as the cluster gives it.

    It is one per rank if one node, or several equal ones, have so many. Else it is all of a node:
    ranks that share a GPU talk through gloo.
    """
    if resources.gpus != "auto":
        return resources
    counts = [len(node.gpus) for node in nodes]
    most = max(counts, default=0)
    count = resources.ranks if resources.ranks <= most * counts.count(most) else most
    return replace(resources, gpus=float(count))


def trial_demand(resources: Resources, *, gpu_memory_bytes: float) -> Demand:
    """Return the demand of a trial.

    Ranks with whole GPUs, or none, may be spread over nodes if no single node holds them.

    Args:
        resources: With a number of GPUs.
        gpu_memory_bytes: Memory on each GPU that it touches, margin included; 0: unknown.
    """
    gpus = float(resources.gpus)
    return Demand(
        cpus=resources.cpus * resources.ranks,
        gpus=gpus,
        gpu_memory_bytes=gpu_memory_bytes,
        gang_size=1 if 0 < gpus < 1 else resources.ranks,
    )
