"""Reservations by Ray's placement groups, kept a moment for reuse.

A group is asked for only when the scheduler found that it fits: Ray's pending groups are no queue.
A gang that fills several nodes has one group with a bundle per node.
"""

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.control.launcher_port import Launch, NotPlaced
from orchestrator.launchers.foreign_load import NodeUse
from orchestrator.launchers.ray_connect import first_line
from orchestrator.records.errors import ExperimentError
from orchestrator.scheduling.demand import Demand, Node

PLACE_TIMEOUT_S = 10.0
"""How long a group that should fit may stay pending."""
SHARED_PLACE_TIMEOUT_S = 3.0
"""The same where somebody else may have been quicker."""
KEEP_S = 2.0
"""How long resources stay reserved after a trial, for the next one like it. A group asked for right
after another was removed waits up to a second for Ray to notice."""
SETTLE_S = 2.0
"""How long Ray may still count released resources as used: nodes report about once a second."""
GPU_IDS_TIMEOUT_S = 60.0
"""How long Ray may take to name the GPUs of a bundle."""


@dataclass(kw_only=True)
class RayReservation:
    """Resources that Ray keeps for this sweep: of one node, or of several whole ones."""

    group: PlacementGroup
    uses: tuple[NodeUse, ...]
    """Per node, in the order of the launch's nodes."""
    demand: Demand
    idle_since: float = 0.0

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Return the nodes, in the order of `uses`."""
        return tuple(use.node_id for use in self.uses)


class ReservationPool:
    """Makes reservations, reuses idle ones, and gives back those that stay idle."""

    def __init__(self, *, shared: bool) -> None:
        """Reserve nothing yet; `shared` says whether others use the cluster too."""
        self._timeout_s = SHARED_PLACE_TIMEOUT_S if shared else PLACE_TIMEOUT_S
        self._gpu_ids = ray.remote(num_cpus=0, max_calls=0)(_gpu_ids)
        self._idle: list[RayReservation] = []
        self._released: list[tuple[float, NodeUse]] = []

    @property
    def idle_uses(self) -> list[NodeUse]:
        """Return what is reserved although no attempt uses it."""
        return [use for reservation in self._idle for use in reservation.uses]

    def recently_released(self) -> list[NodeUse]:
        """Return what was given back so recently that Ray may still count it as used."""
        settled = time.monotonic() - SETTLE_S
        self._released = [(at, use) for at, use in self._released if at > settled]
        return [use for _, use in self._released]

    def reserve(self, launch: Launch, nodes: Sequence[Node]) -> RayReservation:
        """Return a reservation for the launch on these nodes: an idle one like it, else a new one.

        Raises:
            NotPlaced: If the resources are not free after all.
            ExperimentError: If Ray reserved GPUs that the node does not list.
        """
        node_ids = tuple(node.node_id for node in nodes)
        alike = [r for r in self._idle if r.node_ids == node_ids and r.demand == launch.demand]
        if alike:
            # The GPUs that the scheduler chose, if they are among them.
            chosen = min(alike, key=lambda r: r.uses[0].gpu_ids != launch.gpu_ids)
            self._idle.remove(chosen)
            return chosen
        self._release(lambda idle: bool({*idle.node_ids} & {*node_ids}))
        # A gang has its nodes to itself.
        bundles = (
            [(float(node.cpus), float(len(node.gpus))) for node in nodes]
            if len(nodes) > 1
            else [(float(launch.demand.cpus), launch.gpus)]
        )
        group = _place(nodes, bundles)
        try:
            if not group.wait(self._timeout_s):
                hosts = " and ".join(node.host for node in nodes)
                raise NotPlaced(
                    f"needs {launch.demand}; Ray has less free on {hosts}: somebody else uses it"
                )
            uses = [
                self._node_use(group, index, node, cpus=cpus, gpus=gpus)
                for index, (node, (cpus, gpus)) in enumerate(zip(nodes, bundles, strict=True))
            ]
        except RayError as error:
            remove_placement_group(group)
            raise NotPlaced(
                f"Ray did not say which GPUs it reserved: {first_line(error)}"
            ) from error
        except BaseException:
            remove_placement_group(group)
            raise
        return RayReservation(group=group, uses=tuple(uses), demand=launch.demand)

    def keep(self, reservation: RayReservation) -> None:
        """Keep the reservation of an attempt that has ended for the next one like it."""
        reservation.idle_since = time.monotonic()
        self._idle.append(reservation)

    def release_node(self, node_id: str) -> None:
        """Give back the idle reservations of a node."""
        self._release(lambda idle: node_id in idle.node_ids)

    def release_expired(self, usable: AbstractSet[str]) -> None:
        """Give back what was idle for `KEEP_S` seconds or includes a node that is not usable."""
        oldest = time.monotonic() - KEEP_S
        self._release(lambda idle: idle.idle_since < oldest or not {*idle.node_ids} <= usable)

    def release_all(self) -> None:
        """Give back every idle reservation."""
        self._release(lambda idle: True)

    def _release(self, chosen: Callable[[RayReservation], bool]) -> None:
        for reservation in [r for r in self._idle if chosen(r)]:
            self._idle.remove(reservation)
            remove_placement_group(reservation.group)
            self._released += [(time.monotonic(), use) for use in reservation.uses]

    def _node_use(
        self, group: PlacementGroup, bundle: int, node: Node, *, cpus: float, gpus: float
    ) -> NodeUse:
        """Return what a bundle holds.

        Where Ray had a choice, its GPUs are learnt by running a moment inside it: a second.
        """
        gpu_ids: tuple[str, ...] = ()
        if gpus and len(node.gpus) == max(1.0, gpus):
            gpu_ids = node.gpus
        elif gpus:
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            )
            call = self._gpu_ids.options(num_gpus=gpus, scheduling_strategy=strategy).remote()
            gpu_ids = tuple(str(gpu) for gpu in ray.get(call, timeout=GPU_IDS_TIMEOUT_S))
        if not set(gpu_ids) <= set(node.gpus):
            raise ExperimentError(
                f"node {node.host}: Ray reserved GPU {gpu_ids}, expected some of {node.gpus}"
            )
        return NodeUse(node_id=node.node_id, cpus=cpus, gpus=gpus, gpu_ids=gpu_ids)


def _place(nodes: Sequence[Node], bundles: Sequence[tuple[float, float]]) -> PlacementGroup:
    """Ask for a placement group with a bundle of (cores, GPUs) on each node."""
    try:
        group: PlacementGroup = placement_group(
            [{"CPU": cpus, **({"GPU": gpus} if gpus else {})} for cpus, gpus in bundles],
            strategy="STRICT_PACK" if len(nodes) == 1 else "STRICT_SPREAD",
            # No name: Ray wants it to be the only one on the cluster, and two sweeps may hold the
            # same trial.
            bundle_label_selector=[{"ray.io/node-id": node.node_id} for node in nodes],
        )
    except RayError as error:
        raise NotPlaced(f"Ray made no reservation: {first_line(error)}") from error
    return group


def _gpu_ids() -> list[str]:
    """Return the GPUs of the bundle that this runs in."""
    # Ray keeps the blanks of CUDA_VISIBLE_DEVICES="2, 3".
    return [str(gpu).strip() for gpu in ray.get_gpu_ids()]
