"""A cluster in a line, for `memscale plan --simulate`: `gpus=1024`, or `nodes=8,gpus_per_node=8,gpu_memory=80GB`."""

import difflib
import math
import re
from dataclasses import dataclass

from orchestrator.scheduling.demand import Node

GPUS_PER_NODE = 8
CPUS_PER_GPU = 16
KEYS = {
    "nodes": "number of nodes",
    "gpus": "GPUs in all",
    "gpus_per_node": f"default {GPUS_PER_NODE}, or all if there are fewer",
    "cpus_per_node": f"cores; default {CPUS_PER_GPU} for each GPU",
    "gpu_memory": "of each GPU, as 80GB or 80GiB; default: unknown, so that shares of a GPU are as asked",
    "gpu_flops": "FLOP/s that training reaches on one of these GPUs; default: measured here, else a guess",
}
BYTES = {"gb": 1e9, "gib": 2.0**30, "tb": 1e12, "tib": 2.0**40, "mb": 1e6, "mib": 2.0**20}
MOST_GPUS = 1_000_000
EXAMPLE = "for example gpus=1024, or nodes=8,gpus_per_node=8,gpu_memory=80GB"


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Nodes to simulate, and how fast their GPUs train."""

    nodes: tuple[Node, ...]
    gpu_flops: float | None = None
    """FLOP/s of training per GPU; None: as forecast from measurements here."""

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(len(node.gpus) for node in self.nodes)

    @property
    def cores(self) -> int:
        """Cores in all."""
        return sum(node.cpus for node in self.nodes)

    def __str__(self) -> str:
        kinds: dict[tuple[int, int, float | None], int] = {}
        for node in self.nodes:
            kind = len(node.gpus), node.cpus, node.gpu_memory_bytes
            kinds[kind] = kinds.get(kind, 0) + 1
        return " and ".join(
            f"{count:,} node{'s' * (count > 1)} of "
            + (f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else "")
            + (f" ({memory / 1e9:g} GB)" if gpus and memory else "")
            + (" and " if gpus else "")
            + f"{cpus} core{'s' * (cpus > 1)}"
            for (gpus, cpus, memory), count in kinds.items()
        )


def parse(text: str) -> ClusterSpec:
    """Read `key=value,key=value`; groups of different nodes are joined by `+`. Keys: KEYS.

    GPUs that do not fill the last node make a smaller one. Nodes of which only cores are said have no GPUs.

    Raises:
        ValueError: Names every mistake, and what to write instead.
    """
    problems: list[str] = []
    shapes: list[tuple[int, int, int, float | None]] = []
    rates: set[float] = set()
    for group in re.split(r"\+(?=\s*[a-z])", text):  # not the plus of 4e+14
        values = _values(group, problems)
        if not problems:
            shapes += _shapes(values, problems)
            rates |= {values["gpu_flops"]} if "gpu_flops" in values else set()
    if len(rates) > 1:
        problems.append(
            "gpu_flops: groups of nodes must have the same, for trials are not bound to one"
        )
    if problems:
        raise ValueError(f"{'; '.join(problems)}; {EXAMPLE}")
    total = sum(count for count, _, _, _ in shapes)
    digits = len(str(total - 1))
    nodes: list[Node] = []
    for count, gpus, cpus, memory in shapes:
        for _ in range(count):
            name = f"node{len(nodes):0{digits}d}"
            nodes.append(
                Node(
                    node_id=name,
                    host=name,
                    cpus=cpus,
                    gpus=tuple(map(str, range(gpus))),
                    gpu_memory_bytes=memory,
                )
            )
    return ClusterSpec(nodes=tuple(nodes), gpu_flops=next(iter(rates), None))


def _values(group: str, problems: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for item in group.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key and not equals:
            problems.append("an empty item" if group.strip() else "no cluster is described")
            continue
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(KEYS)}"
            problems.append(f"{key}: no such key; {hint}")
        elif not equals or not value:
            problems.append(
                f"{key}: needs a value, as {key}={'80GB' if key == 'gpu_memory' else 8}"
            )
        elif key in values:
            problems.append(f"{key}: given twice")
        else:
            number = _number(key, value, problems)
            if number is not None:
                values[key] = number
    return values


def _number(key: str, text: str, problems: list[str]) -> float | None:
    if key == "gpu_memory":
        match = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)\s*([a-z]+)", text.lower())
        if match and match[2] in BYTES and (number := _float(match[1])) is not None and number > 0:
            return number * BYTES[match[2]]
        problems.append(f"gpu_memory: must be a size with its unit, as 80GB or 80GiB, got {text!r}")
        return None
    found = _float(text.replace("_", ""))
    if key == "gpu_flops":
        if found is not None and found > 0:
            return found
        problems.append(f"gpu_flops: must be a positive number, as 4e14, got {text!r}")
        return None
    least = 0 if key in ("gpus", "gpus_per_node") else 1
    if found is None or found != int(found) or not least <= found <= MOST_GPUS:
        problems.append(
            f"{key}: must be a whole number from {least} to {MOST_GPUS:,}, got {text!r}"
        )
        return None
    return found


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shapes(
    values: dict[str, float], problems: list[str]
) -> list[tuple[int, int, int, float | None]]:
    """Return (nodes, GPUs each, cores each, GPU memory) of a group."""
    nodes, gpus, each = (
        None if key not in values else int(values[key])
        for key in ("nodes", "gpus", "gpus_per_node")
    )
    if nodes is None and gpus is None:
        problems.append("give nodes or gpus")
        return []
    if each is None:
        if nodes is not None and gpus is not None:
            if gpus % nodes:
                problems.append(f"{gpus} GPUs do not divide evenly over {nodes} nodes")
                return []
            each = gpus // nodes
        elif gpus is not None:
            each = min(GPUS_PER_NODE, gpus)
        else:
            # Nodes with cores and without a word about GPUs have none.
            each = 0 if "cpus_per_node" in values else GPUS_PER_NODE
    if gpus is None:
        assert nodes is not None, "one of the two is given"
        gpus = nodes * each
    if nodes is None:
        if not each:
            problems.append("gpus=0 needs nodes and cpus_per_node")
            return []
        nodes = -(-gpus // each)
    elif nodes * each != gpus:
        problems.append(
            f"{nodes} nodes of {each} GPUs are {nodes * each} GPUs, not {gpus}; leave one of nodes, gpus and gpus_per_node out"
        )
        return []
    if not each and "cpus_per_node" not in values:
        problems.append("cpus_per_node: nodes without GPUs need it")
        return []
    memory = values.get("gpu_memory")
    if not each:
        return [(nodes, 0, int(values["cpus_per_node"]), None)]
    return [
        (count, have, int(values.get("cpus_per_node", CPUS_PER_GPU * have)), memory)
        for count, have in ((gpus // each, each), (1, gpus % each))
        if count and have
    ]
