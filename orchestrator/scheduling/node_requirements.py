"""Node requirements: what a demand takes of each node of a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orchestrator.scheduling.demand import UNIT, Demand, Node, nodes_needed, share_units

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class GangRequirement:
    """A way to spread a gang over whole nodes of one kind."""

    n_nodes: int
    nodes: Ints
    """Rows of the nodes to choose from."""


@dataclass(frozen=True, kw_only=True)
class NodeRequirements:
    """What one demand takes of each node."""

    cpus: int
    whole_gpus: int
    """GPUs that nobody shares; 0 for fractions and for the CPU."""
    is_share: bool
    """Whether it takes a fraction of one GPU."""
    share: Ints
    """Units of one GPU, per node: nodes with less memory give a larger share."""
    fits: NDArray[np.bool_]
    """Nodes that hold it when empty."""
    gangs: tuple[GangRequirement, ...]
    """If no node does: ways to spread it, the fewest nodes first."""
    least_share: int
    """The smallest of `share` over nodes that hold it; 0 unless it is a share."""

    @cached_property
    def equivalence(self) -> tuple[object, ...]:
        """Equal for demands that fit at the same times and places.

        Demands that differ only in memory that fits are equivalent, for example.
        """
        share = self.share.tobytes() if self.is_share else b""
        gangs = tuple((gang.n_nodes, gang.nodes.tobytes()) for gang in self.gangs)
        return self.cpus, self.whole_gpus, share, self.fits.tobytes(), gangs

    @cached_property
    def possible(self) -> bool:
        """Whether the empty cluster holds it."""
        return bool(self.gangs) or bool(self.fits.any())


def requirements_of(demand: Demand, nodes: Sequence[Node]) -> NodeRequirements:
    """Return what a demand takes of each of the nodes."""
    kinds: dict[tuple[int, int, float | None], list[int]] = {}
    for row, node in enumerate(nodes):
        kinds.setdefault((node.cpus, len(node.gpus), node.gpu_memory_bytes), []).append(row)
    fits = np.zeros(len(nodes), dtype=bool)
    share = np.full(len(nodes), demand.units, dtype=np.int64)
    gangs = []
    for rows in kinds.values():
        node = nodes[rows[0]]
        n_nodes = nodes_needed(demand, node, len(rows))
        fits[rows] = n_nodes == 1
        share[rows] = min(share_units(demand, node.gpu_memory_bytes), 2 * UNIT)
        if n_nodes is not None and n_nodes > 1:
            gangs.append(GangRequirement(n_nodes=n_nodes, nodes=np.array(rows)))
    is_share = 0 < demand.units < UNIT
    return NodeRequirements(
        cpus=demand.cpus,
        whole_gpus=0 if is_share else demand.units // UNIT,
        is_share=is_share,
        share=share,
        fits=fits,
        # A gang spans nodes only where no single one could ever hold it.
        gangs=() if fits.any() else tuple(sorted(gangs, key=lambda gang: gang.n_nodes)),
        least_share=int(share[fits].min(initial=2 * UNIT)) if is_share else 0,
    )
