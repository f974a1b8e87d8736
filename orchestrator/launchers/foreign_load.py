"""Foreign load on a cluster, as placeholder trials to pack around. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.scheduling.demand import UNIT, Demand, Node
from orchestrator.scheduling.interface import Running

LEAST_S = 60.0
"""How long foreign load is expected to last at least."""


@dataclass(frozen=True, kw_only=True)
class NodeUse:
    """Resources that a sweep has reserved on one node."""

    node_id: str
    cpus: float
    gpus: float
    gpu_ids: tuple[str, ...] = ()


def foreign_load(
    nodes: Sequence[Node],
    *,
    available: Mapping[str, Mapping[str, float]],
    own: Sequence[NodeUse],
    given_back: Sequence[NodeUse] = (),
    closed: Collection[str] = (),
    since: dict[str, float],
    now: float,
) -> list[Running]:
    """Return placeholder trials for what is not free on each node although it is not ours.

    Nobody knows when foreign load ends: it is expected to last as long again as it has lasted.

    Args:
        nodes: With all that they have.
        available: Per node: `CPU` and `GPU` that nobody holds.
        own: What this sweep has reserved.
        given_back: What it gave back so recently that it may not be in `available` yet.
        closed: Nodes of which all that is not ours counts as taken.
        since: When each node was first seen with foreign load; kept up to date here.
        now: Monotonic seconds.
    """
    found: list[Running] = []
    for node in nodes:
        mine = [use for use in own if use.node_id == node.node_id]
        cpus = node.cpus - sum(use.cpus for use in mine)
        gpus = len(node.gpus) - sum(use.gpus for use in mine)
        if node.node_id not in closed:
            free = available.get(node.node_id, {})
            late = [use for use in given_back if use.node_id == node.node_id]
            cpus -= free.get("CPU", 0.0) + sum(use.cpus for use in late)
            gpus -= free.get("GPU", 0.0) + sum(use.gpus for use in late)
        whole_cpus, units = math.ceil(cpus - 1e-6), round(gpus * UNIT)
        if whole_cpus <= 0 and units <= 0:
            since.pop(node.node_id, None)
            continue
        end = now + max(LEAST_S, now - since.setdefault(node.node_id, now))
        if whole_cpus > 0:
            found.append(_running(node, "cores", Demand(cpus=whole_cpus), (), end))
        for gpu, taken in _assumed_gpus(node, mine, units):
            found.append(_running(node, gpu, Demand(cpus=0, gpus=taken / UNIT), (gpu,), end))
    return found


def _assumed_gpus(node: Node, mine: Sequence[NodeUse], units: int) -> list[tuple[str, int]]:
    """Return which GPUs the foreign units are assumed to be on, as Ray does not say.

    Those that we use least come first.
    """
    left = dict.fromkeys(node.gpus, UNIT)
    for use in mine:
        for gpu in use.gpu_ids:
            left[gpu] = max(0, left[gpu] - round(min(1.0, use.gpus) * UNIT))
    assumed = []
    for gpu in sorted(left, key=lambda gpu: -left[gpu]):
        taken = min(left[gpu], max(0, units))
        if taken:
            assumed.append((gpu, taken))
            units -= taken
    return assumed


def _running(
    node: Node, resource: str, demand: Demand, gpus: tuple[str, ...], end: float
) -> Running:
    return Running(
        trial_id=f"others on {node.node_id}: {resource}",
        node_id=node.node_id,
        demand=demand,
        gpus=gpus,
        predicted_end=end,
        sweep="others",
    )
