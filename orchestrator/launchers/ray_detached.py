"""A detached actor of Ray that runs the controller of a sweep on a cluster."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from orchestrator.launchers.detached_controller import DetachedController
from orchestrator.launchers.ray_connect import death_reason, first_line, join
from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import SweepDir


class _DetachedControllerActor(DetachedController):
    """A `DetachedController` that ends its own actor with the controller."""

    def __init__(self, sweep: str, number: int, environment: Mapping[str, str]) -> None:
        context = ray.get_runtime_context()
        own = context.current_actor
        super().__init__(
            sweep,
            number,
            address=context.gcs_address,
            environment=environment,
            on_end=lambda: ray.kill(own, no_restart=True),
        )


def start_detached_controller(
    sweep: SweepDir,
    number: int,
    *,
    code: Path,
    address: str,
    environment: Mapping[str, str],
    started: Callable[[], bool],
    timeout_s: float,
) -> Path:
    """Run the controller of a recorded submission on a cluster, outliving this process.

    Args:
        sweep: On storage that the cluster's nodes see under the same path.
        number: Of the submission.
        code: Folder to import from.
        address: `ray://HOST:PORT` from any machine; `HOST:PORT` or `auto` from a node of the
            cluster. Call `ping` first.
        environment: Variables for the controller. They travel through Ray's memory and are
            written nowhere by us.
        started: Whether the controller runs the sweep, seen from here.
        timeout_s: How long that may take.

    Returns:
        The controller's log.

    Raises:
        StoreError: If the controller ended at once, or did not start in time.
        ExperimentError: If the cluster cannot be reached.
    """
    log = sweep.path.absolute() / "controller.log"
    join(address, code)
    try:
        name = f"controller of {sweep.path.absolute()}"
        if name in ray.util.list_named_actors():
            # Left from an earlier submission, which has no controller any more.
            ray.kill(ray.get_actor(name))
        actor_class: Any = ray.remote(num_cpus=0, num_gpus=0, max_restarts=-1)(
            _DetachedControllerActor
        )
        actor = actor_class.options(name=name, lifetime="detached").remote(
            str(sweep.path.absolute()), number, dict(environment)
        )
        _wait_until_started(actor, log, started, timeout_s)
    finally:
        ray.shutdown()
    return log


def _wait_until_started(
    actor: Any, log: Path, started: Callable[[], bool], timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    while not started():
        try:
            exit_code = ray.get(actor.exit_code.remote(), timeout=timeout_s)
        except RayError as error:
            died = isinstance(error, RayActorError)
            if died and started():
                return
            why = death_reason(error) if died else first_line(error)
            raise StoreError(f"{log}: the controller did not start ({why})") from error
        if exit_code is not None and not started():
            raise StoreError(f"{log}: the controller ended at once; see there")
        if time.monotonic() > deadline:
            ray.kill(actor)
            raise StoreError(f"{log}: the controller did not start in {timeout_s:.0f} s; see there")
        time.sleep(0.2)
