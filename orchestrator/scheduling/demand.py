"""What a trial needs and what a machine has. Shares of a GPU are counted in units of 1/10,000, as Ray does, so that sums are exact."""

from dataclasses import dataclass
from functools import cached_property

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
    """Memory that the trial takes on each GPU it touches, margin included; 0: unknown, what its share gives."""
    gang_size: int = 1
    """Equal parts (ranks) of a gang that may lie on several nodes when no single one holds them all."""

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
    def order(self) -> tuple[int, int]:
        """What makes one demand larger than another: GPUs, then cores."""
        return self.units, self.cpus

    @cached_property
    def _hash(self) -> int:
        return hash((self.cpus, self.gpus, self.gpu_memory_bytes, self.gang_size))

    def __hash__(self) -> int:
        """Return a hash that is worked out once: demands are looked up at every event of a simulation."""
        return self._hash

    def __str__(self) -> str:
        cores = f"{self.cpus} core{'s' * (self.cpus != 1)}"
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
    """Where a trial, or a piece of one, lies on one node."""

    node_id: str
    gpus: tuple[str, ...] = ()


def share_units(demand: Demand, gpu_memory_bytes: float | None) -> int:
    """Return the units of one GPU with that much memory that a fractional demand takes: what it asks for, or what its memory needs.

    More than UNIT if it does not fit. A share of a GPU is a share of its memory too, so shares that fill a GPU never
    fill more than its memory.
    """
    if gpu_memory_bytes is None or not demand.gpu_memory_bytes:
        return demand.units
    by_memory = -(-demand.gpu_memory_bytes * (UNIT // STEP) // gpu_memory_bytes)
    return max(demand.units, int(by_memory) * STEP)


def nodes_needed(demand: Demand, node: Node, alike: int) -> int | None:
    """Return how many nodes like `node` the demand fills when `alike` of them were empty; None if they do not hold it.

    One if it fits there whole. Otherwise, for a gang of several pieces, the fewest whole nodes that hold equal numbers
    of pieces, give or take one.
    """
    if _fits_empty(demand, node, demand.gang_size):
        return 1
    for count in range(2, min(alike, demand.gang_size) + 1):
        if _fits_empty(demand, node, -(-demand.gang_size // count)):
            return count
    return None


def _fits_empty(demand: Demand, node: Node, pieces: int) -> bool:
    """Return whether that many of the demand's pieces fit the node when nothing else is there."""
    if -(-demand.cpus * pieces // demand.gang_size) > node.cpus:
        return False
    if not demand.units:
        return True
    if demand.units < UNIT:
        return bool(node.gpus) and share_units(demand, node.gpu_memory_bytes) <= UNIT
    if node.gpu_memory_bytes is not None and demand.gpu_memory_bytes > node.gpu_memory_bytes:
        return False
    return -(-demand.units * pieces // (demand.gang_size * UNIT)) <= len(node.gpus)


def gpus_text(units: int) -> str:
    """Return `0.25 GPU`, `1 GPU`, `8 GPUs`."""
    count = units / UNIT
    return f"{count:g} GPU{'s' * (count > 1 or count == 0)}"
