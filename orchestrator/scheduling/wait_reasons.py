"""Wait reasons: what a trial needs, what is free, what is reserved."""

from collections.abc import Sequence

from orchestrator.records.units import plural
from orchestrator.scheduling.cluster_state import ClusterState
from orchestrator.scheduling.demand import UNIT, Demand, Node, gpus_text
from orchestrator.scheduling.policy import Decision
from orchestrator.scheduling.wait_queue import Waiting


class WaitReasons:
    """The sentences of one decision; trials of one demand share them."""

    def __init__(self, cluster: ClusterState, decision: Decision, now: float) -> None:
        """Take the cluster as it was before the decision."""
        self._cluster = cluster
        self._decision = decision
        self._now = now
        self._by_demand: dict[Demand, str] = {}

    def reason(self, trial: Waiting) -> str:
        """Return why a trial that is ready and fits the empty cluster was not started."""
        first = self._decision.next_in_line
        if first is not None and first.trial_id == trial.trial_id:
            starts = _duration(first.start - self._now)
            return f"{self._short_of(trial.demand)}; next in line, starts in about {starts}"
        if trial.demand not in self._by_demand:
            self._by_demand[trial.demand] = self._reason(trial.demand)
        return self._by_demand[trial.demand]

    def _reason(self, demand: Demand) -> str:
        first = self._decision.next_in_line
        needs = self._cluster.requirements(demand)
        if first is None or self._decision.free.find(needs, self._cluster.capacity) is None:
            return self._short_of(demand)
        return (
            f"needs {demand}, which is free but reserved for {first.trial_id} "
            f"(needs {first.demand}, starts in about {_duration(first.start - self._now)})"
        )

    def _short_of(self, demand: Demand) -> str:
        """Return what the demand lacks on the node that comes nearest."""
        cluster, free = self._cluster, self._decision.free
        needs = cluster.requirements(demand)
        if needs.gangs:
            gang = needs.gangs[0]
            n_empty = int(free.empty_nodes(cluster.capacity)[gang.nodes].sum())
            return (
                f"needs {demand} on {gang.n_nodes} whole nodes; "
                f"{n_empty} of {len(gang.nodes)} nodes empty"
            )
        row = max(
            (i for i in range(len(cluster.nodes)) if needs.fits[i]),
            key=lambda i: (int(free.total_units[i]), int(free.cpus[i]), cluster.nodes[i].node_id),
        )
        nearest = cluster.nodes[row]
        where = "" if len(cluster.nodes) == 1 else f" on {nearest.host}"
        cores = f"{free.cpus[row]} of {_cores(nearest.cpus)} free"
        if not demand.units:
            return f"needs {demand}; {cores}{where}"
        wants = str(demand)
        if needs.is_share:
            gpus = f"at most {int(free.units[row].max()) / UNIT:g} of a GPU free"
            share = int(needs.share[row])
            if share > demand.units:
                wants += f" and, for its memory, {share / UNIT:g} of a GPU"
        else:
            gpus = f"{free.whole_gpus[row]} of {len(nearest.gpus)} GPUs free"
        return f"needs {wants}; {gpus}, {cores}{where}"


def not_yet(trial: Waiting, now: float) -> str:
    """Return when a trial may start again."""
    return f"starts again in {trial.not_before - now:.0f} s: {trial.delay_reason}"


def impossible(demand: Demand, nodes: Sequence[Node]) -> str:
    """Return why no empty cluster of these nodes holds the demand."""
    if not nodes:
        return (
            f"needs {demand}; the cluster has no node: if it had one, its Ray ended; submit again"
        )
    largest = max(nodes, key=lambda node: (len(node.gpus), node.cpus))
    memory = largest.gpu_memory_bytes
    if demand.units and largest.gpus and memory and demand.gpu_memory_bytes > memory:
        return (
            f"needs {demand.gpu_memory_bytes / 2**30:.3g} GiB of GPU memory; the largest node's "
            f"GPUs have {memory / 2**30:.3g} GiB: unset resources.micro_batch_tokens, raise ranks, "
            "or add a node"
        )
    where = "on one node" if demand.gang_size == 1 else "on one node or on whole nodes alike"
    return (
        f"needs {demand} {where}; the largest has {gpus_text(len(largest.gpus) * UNIT)} and "
        f"{_cores(largest.cpus)}: lower resources.cpus, ranks or gpus, or add a node"
    )


def _cores(count: int) -> str:
    return plural(count, "core")


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "a moment"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
