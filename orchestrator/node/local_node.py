"""This machine as a node that trials run on."""

import os

from orchestrator.node.hardware import gpu_memory_bytes, usable_cores, visible_gpus
from orchestrator.scheduling.demand import Node


def local_node(cpus: int | None = None, gpus: int | None = None) -> Node:
    """Return this machine, or the part of it that may be used.

    Args:
        cpus: Cores that may be used; None: all that this process may use.
        gpus: GPUs that may be used; None: all that are visible.
    """
    visible = visible_gpus()
    used = visible if gpus is None else visible[:gpus]
    host = os.uname().nodename
    return Node(
        node_id=host,
        host=host,
        cpus=usable_cores() if cpus is None else cpus,
        gpus=used,
        gpu_memory_bytes=gpu_memory_bytes(used),
    )
