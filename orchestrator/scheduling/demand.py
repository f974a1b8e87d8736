"""Resource demand of a trial, and the nodes that may hold it.

Shares of a GPU are counted in units of 1/10,000, as Ray does, so that sums are exact.
"""

from dataclasses import dataclass
from functools import cached_property

from orchestrator.records.units import plural

UNIT = 10_000
"""Units of one GPU."""
STEP = UNIT // 100
"""Shares that follow memory are whole hundredths, so that similar trials take the same."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a trial needs, over all its ranks."""

    cpus: int
    gpus: float = 0.0
    """A fraction of one GPU, or a whole number of GPUs."""
    gpu_memory_bytes: float = 0.0
    """Memory on each GPU that it touches, margin included; 0: unknown, as its share gives."""
    gang_size: int = 1
    """Equal parts (ranks) that may be spread over nodes if no single node holds them all."""

    def __post_init__(self) -> None:
        if self.cpus < 0 or self.gpus < 0 or self.gpu_memory_bytes < 0 or self.gang_size < 1:
            raise ValueError(f"a demand has no negative part and at least one piece, got {self!r}")
        if self.units % UNIT and self.units > UNIT:
            raise ValueError(
                f"gpus must be a fraction of one GPU or a whole number, got {self.gpus}"
            )

    @cached_property
    def units(self) -> int:
        """GPUs in units of 1/UNIT."""
        return round(self.gpus * UNIT)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Sort key: units of GPUs, then cores."""
        return self.units, self.cpus

    @cached_property
    def _hash(self) -> int:
        return hash((self.cpus, self.gpus, self.gpu_memory_bytes, self.gang_size))

    def __hash__(self) -> int:
        """Return a hash that is computed once: a simulation looks demands up at every event."""
        return self._hash

    def __str__(self) -> str:
        cores = plural(self.cpus, "core")
        if not self.units:
            return cores
        return f"{gpus_text(self.units)} and {cores}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster: what it has in all."""

    node_id: str
    host: str
    cpus: int
    gpus: tuple[str, ...] = ()
    """Ids as CUDA_VISIBLE_DEVICES takes them."""
    gpu_memory_bytes: float | None = None
    """Memory of each of its GPUs; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """The GPUs that a trial holds on one node."""

    node_id: str
    gpus: tuple[str, ...] = ()


def share_units(demand: Demand, gpu_memory_bytes: float | None) -> int:
    """Return the units of one GPU that a fractional demand takes.

    They are what it asks for, or what its memory needs if that is more; over UNIT if it does not
    fit. A share of a GPU is a share of its memory too, so shares that fill a GPU never fill more
    than its memory.

    Args:
        demand: For a fraction of a GPU.
        gpu_memory_bytes: Memory of the GPU; None: unknown.
    """
    if gpu_memory_bytes is None or not demand.gpu_memory_bytes:
        return demand.units
    by_memory = -(-demand.gpu_memory_bytes * (UNIT // STEP) // gpu_memory_bytes)
    return max(demand.units, int(by_memory) * STEP)


def nodes_needed(demand: Demand, node: Node, n_alike: int) -> int | None:
    """Return how many empty nodes like `node` the demand fills; None if they do not hold it.

    One if it fits there whole. Otherwise, for a gang, the fewest whole nodes that hold equal
    numbers of ranks, give or take one.

    Args:
        demand: Of a trial.
        node: An empty node.
        n_alike: How many nodes like it there are.
    """
    for count in range(1, max(1, min(n_alike, demand.gang_size)) + 1):
        if _fits_empty(demand, node, -(-demand.gang_size // count)):
            return count
    return None


def _fits_empty(demand: Demand, node: Node, n_ranks: int) -> bool:
    """Return whether that many of the demand's ranks fit the empty node."""
    if -(-demand.cpus * n_ranks // demand.gang_size) > node.cpus:
        return False
    if not demand.units:
        return True
    if demand.units < UNIT:
        return bool(node.gpus) and share_units(demand, node.gpu_memory_bytes) <= UNIT
    if node.gpu_memory_bytes is not None and demand.gpu_memory_bytes > node.gpu_memory_bytes:
        return False
    return -(-demand.units * n_ranks // (demand.gang_size * UNIT)) <= len(node.gpus)


def gpus_text(units: int) -> str:
    """Return `0.25 GPU`, `1 GPU`, `8 GPUs`."""
    return plural(units / UNIT, "GPU")
