"""Why a trial waits, in a sentence: what it needs, what there is, and for whom room is kept."""

from collections.abc import Sequence

from orchestrator.scheduling.cluster_state import ClusterState
from orchestrator.scheduling.demand import UNIT, Demand, Node, gpus_text
from orchestrator.scheduling.policy import Decision
from orchestrator.scheduling.wait_queue import Waiting


class WaitReasons:
    """The sentences that belong to one decision; trials of one demand share them."""

    def __init__(self, room: ClusterState, decision: Decision, now: float) -> None:
        """Take the room as it was before the decision."""
        self._room = room
        self._decision = decision
        self._now = now
        self._told: dict[Demand, str] = {}

    def why(self, trial: Waiting) -> str:
        """Return why a trial that is ready and fits the empty cluster was not started."""
        line = self._decision.next_in_line
        if line is not None and line.trial_id == trial.trial_id:
            starts = _duration(line.at - self._now)
            return f"{self._short_of(trial.demand)}; next in line, starts in about {starts}"
        told = self._told.get(trial.demand)
        if told is None:
            told = self._told[trial.demand] = self._why(trial.demand)
        return told

    def _why(self, demand: Demand) -> str:
        line = self._decision.next_in_line
        needs = self._room.needs(demand)
        if line is None or self._decision.free.find(needs, self._room) is None:
            return self._short_of(demand)
        return (
            f"needs {demand}, which is free but reserved for {line.trial_id} "
            f"(needs {line.demand}, starts in about {_duration(line.at - self._now)})"
        )

    def _short_of(self, demand: Demand) -> str:
        """Say what the demand lacks on the node that comes nearest."""
        room, free = self._room, self._decision.free
        needs = room.needs(demand)
        if needs.gangs:
            count, alike = needs.gangs[0]
            empty = int(((free.cpus == room.cpus) & (free.whole == room.n_gpus))[alike].sum())
            return f"needs {demand} on {count} whole nodes; {empty} of {len(alike)} nodes empty"
        row = max(
            (i for i in range(len(room.nodes)) if needs.fits[i]),
            key=lambda i: (int(free.total[i]), int(free.cpus[i]), room.nodes[i].node_id),
        )
        nearest = room.nodes[row]
        where = "" if len(room.nodes) == 1 else f" on {nearest.host}"
        cores = f"{free.cpus[row]} of {nearest.cpus} core{'s' * (nearest.cpus != 1)} free"
        if not demand.units:
            return f"needs {demand}; {cores}{where}"
        wants = str(demand)
        if needs.shared:
            most = int(free.units[row].max()) / UNIT
            gpus = f"at most {most:g} of a GPU free"
            share = int(needs.share[row])
            if share > demand.units:
                wants += f" and, for its memory, {share / UNIT:g} of a GPU"
        else:
            gpus = f"{free.whole[row]} of {len(nearest.gpus)} GPUs free"
        return f"needs {wants}; {gpus}, {cores}{where}"


def not_yet(trial: Waiting, now: float) -> str:
    """Say when a trial may start again."""
    return f"starts again in {trial.not_before - now:.0f} s: {trial.delay_reason}"


def impossible(demand: Demand, nodes: Sequence[Node]) -> str:
    """Say why no empty cluster of these nodes holds the demand."""
    if not nodes:
        return f"needs {demand}; the cluster has no node"
    most = max(nodes, key=lambda node: (len(node.gpus), node.cpus))
    there = f"{gpus_text(len(most.gpus) * UNIT)} and {most.cpus} core{'s' * (most.cpus != 1)}"
    memory = most.gpu_memory_bytes
    if demand.units and most.gpus and memory and demand.gpu_memory_bytes > memory:
        return (
            f"needs {demand.gpu_memory_bytes / 2**30:.3g} GiB of GPU memory; the largest node's GPUs have "
            f"{memory / 2**30:.3g} GiB: lower resources.micro_batch_tokens, or add a node"
        )
    where = "on one node" if demand.gang_size == 1 else "on one node or on whole nodes alike"
    return f"needs {demand} {where}; the largest has {there}: lower resources.cpus, ranks or gpus, or add a node"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "a moment"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
