"""Cluster specification of `memscale plan --simulate`, in one line.

For example `gpus=1024`, or `nodes=8,gpus_per_node=8,gpu_memory=80GB`.
"""

import difflib
import math
import re
from collections import Counter
from dataclasses import dataclass

from orchestrator.records.units import plural
from orchestrator.scheduling.demand import Node

GPUS_PER_NODE = 8
CPUS_PER_GPU = 16
KEYS = {
    "nodes": "number of nodes",
    "gpus": "GPUs in all",
    "gpus_per_node": f"default {GPUS_PER_NODE}, or all if there are fewer",
    "cpus_per_node": f"cores; default {CPUS_PER_GPU} for each GPU",
    "gpu_memory": (
        "of each GPU, as 80GB or 80GiB; default: unknown, so that shares of a GPU are as asked"
    ),
    "gpu_flops": (
        "FLOP/s that training reaches on one of these GPUs; default: measured here, else a guess"
    ),
}
BYTES = {"gb": 1e9, "gib": 2.0**30, "tb": 1e12, "tib": 2.0**40, "mb": 1e6, "mib": 2.0**20}
MOST_GPUS = 1_000_000
EXAMPLE = "for example gpus=1024, or nodes=8,gpus_per_node=8,gpu_memory=80GB"


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """What nodes of one kind have."""

    gpus: int
    cpus: int
    gpu_memory_bytes: float | None
    """Of each GPU; None: unknown."""

    def __str__(self) -> str:
        cores = plural(self.cpus, "core")
        if not self.gpus:
            return cores
        memory = f" ({self.gpu_memory_bytes / 1e9:g} GB)" if self.gpu_memory_bytes else ""
        return f"{plural(self.gpus, 'GPU')}{memory} and {cores}"


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Nodes to simulate, and how fast their GPUs train."""

    nodes: tuple[Node, ...]
    gpu_flops: float | None = None
    """FLOP/s of training per GPU; None: as predicted from measurements here."""

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(len(node.gpus) for node in self.nodes)

    def __str__(self) -> str:
        shapes = Counter(
            NodeShape(gpus=len(node.gpus), cpus=node.cpus, gpu_memory_bytes=node.gpu_memory_bytes)
            for node in self.nodes
        )
        return " and ".join(
            f"{plural(count, 'node')} of {shape}" for shape, count in shapes.items()
        )


def parse(text: str) -> ClusterSpec:
    """Read `key=value,key=value`; groups of different nodes are joined by `+`. Keys: KEYS.

    GPUs that do not fill the last node make a smaller one. Nodes for which only cores are given
    have no GPUs.

    Raises:
        ValueError: Names every mistake, and what to write instead.
    """
    problems: list[str] = []
    shapes: list[NodeShape] = []
    rates: set[float] = set()
    for group in re.split(r"\+(?=\s*[a-z])", text):  # not the plus of 4e+14
        values = _values(group, problems)
        rates |= {values["gpu_flops"]} if "gpu_flops" in values else set()
        if not problems:
            try:
                shapes += _shapes(values)
            except ValueError as problem:
                problems.append(str(problem))
    if len(rates) > 1:
        problems.append(
            "gpu_flops: groups of nodes must have the same, for trials are not bound to one"
        )
    if problems:
        raise ValueError(f"{'; '.join(problems)}; {EXAMPLE}")
    digits = len(str(len(shapes) - 1))
    nodes = tuple(
        Node(
            node_id=f"node{i:0{digits}d}",
            host=f"node{i:0{digits}d}",
            cpus=shape.cpus,
            gpus=tuple(map(str, range(shape.gpus))),
            gpu_memory_bytes=shape.gpu_memory_bytes,
        )
        for i, shape in enumerate(shapes)
    )
    return ClusterSpec(nodes=nodes, gpu_flops=next(iter(rates), None))


def _values(group: str, problems: list[str]) -> dict[str, float]:
    """Return the values of a group by key; mistakes are added to `problems`."""
    values: dict[str, float] = {}
    for item in group.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        try:
            if not key and not equals:
                raise ValueError("an empty item" if group.strip() else "no cluster is described")
            if key not in KEYS:
                near = difflib.get_close_matches(key, KEYS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"use {', '.join(KEYS)}"
                raise ValueError(f"{key}: no such key; {hint}")
            if not equals or not value:
                example = "80GB" if key == "gpu_memory" else 8
                raise ValueError(f"{key}: needs a value, as {key}={example}")
            if key in values:
                raise ValueError(f"{key}: given twice")
            values[key] = _number(key, value)
        except ValueError as problem:
            problems.append(str(problem))
    return values


def _number(key: str, text: str) -> float:
    if key == "gpu_memory":
        match = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)\s*([a-z]+)", text.lower())
        number = _float(match[1]) if match else None
        if not match or match[2] not in BYTES or not number or number < 0:
            raise ValueError(
                f"gpu_memory: must be a size with its unit, as 80GB or 80GiB, got {text!r}"
            )
        return number * BYTES[match[2]]
    number = _float(text.replace("_", ""))
    if key == "gpu_flops":
        if not number or number < 0:
            raise ValueError(f"gpu_flops: must be a positive number, as 4e14, got {text!r}")
        return number
    least = 0 if key in ("gpus", "gpus_per_node") else 1
    if number is None or number != int(number) or not least <= number <= MOST_GPUS:
        raise ValueError(
            f"{key}: must be a whole number from {least} to {MOST_GPUS:,}, got {text!r}"
        )
    return number


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shapes(values: dict[str, float]) -> list[NodeShape]:
    """Return the shape of each node of a group.

    Raises:
        ValueError: If the values contradict each other, or say too little.
    """
    nodes, gpus, per_node, cpus = (
        None if key not in values else int(values[key])
        for key in ("nodes", "gpus", "gpus_per_node", "cpus_per_node")
    )
    if nodes is None and gpus is None:
        raise ValueError("give nodes or gpus")
    if per_node is None and nodes is not None and gpus is not None:
        if gpus % nodes:
            raise ValueError(f"{gpus} GPUs do not divide evenly over {nodes} nodes")
        per_node = gpus // nodes
    elif per_node is None:
        # Nodes with cores and without a word about GPUs have none.
        default = GPUS_PER_NODE if gpus is None else min(GPUS_PER_NODE, gpus)
        per_node = 0 if gpus is None and cpus is not None else default
    if nodes is None and not per_node:
        raise ValueError("gpus=0 needs nodes and cpus_per_node")
    if nodes is not None and gpus is not None and nodes * per_node != gpus:
        raise ValueError(
            f"{nodes} nodes of {per_node} GPUs are {nodes * per_node} GPUs, not {gpus}; "
            "leave one of nodes, gpus and gpus_per_node out"
        )
    if not per_node and cpus is None:
        raise ValueError("cpus_per_node: nodes without GPUs need it")
    if gpus is None:
        sizes = [per_node] * (nodes or 0)
    else:
        rest = gpus % per_node if per_node else 0
        sizes = [per_node] * (nodes or gpus // per_node) + [rest] * bool(rest)
    return [
        NodeShape(
            gpus=size,
            cpus=cpus or CPUS_PER_GPU * size,
            gpu_memory_bytes=values.get("gpu_memory") if size else None,
        )
        for size in sizes
    ]
