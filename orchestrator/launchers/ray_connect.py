"""Ray clusters that were there before: to knock, to join, to stand among other sweeps, to have a controller run there."""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.experimental import internal_kv

from orchestrator.launchers.detached_controller import DetachedController
from orchestrator.records.errors import ExperimentError, StoreError
from orchestrator.records.trial_dir import SweepDir

LOG = logging.getLogger(__name__)
PING_TIMEOUT_S = 15.0
"""How long a cluster may take to accept a connection."""
TRIES = 3
"""How often to join a cluster."""
NAMESPACE = "memscale"


class _DetachedControllerActor(DetachedController):
    """A `DetachedController` as a detached actor."""

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


class RayKeyValueStore:
    """Ray's own key-value store as a `cluster_registry.KeyValueStore`."""

    _PREFIX = b"memscale/sweeps/"

    def put(self, name: str, value: bytes) -> None:
        """Keep a value under a name, in the place of what was there."""
        internal_kv._internal_kv_put(self._key(name), value, overwrite=True, namespace=NAMESPACE)

    def get_all(self) -> dict[str, bytes]:
        """Return all values by name."""
        keys = internal_kv._internal_kv_list(self._PREFIX, namespace=NAMESPACE)
        found = {key: internal_kv._internal_kv_get(key, namespace=NAMESPACE) for key in keys}
        # One may have left between the two questions.
        return {
            key.removeprefix(self._PREFIX).decode(): value
            for key, value in found.items()
            if value is not None
        }

    def delete(self, name: str) -> None:
        """Forget a name, if it is there."""
        internal_kv._internal_kv_del(self._key(name), namespace=NAMESPACE)

    def _key(self, name: str) -> bytes:
        return self._PREFIX + name.encode()


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
    """Have a cluster run the controller of a recorded submission, so that it outlives this process; return its log.

    Args:
        sweep: On storage that the cluster's nodes see under the same path.
        number: Of the submission.
        code: Folder to import from.
        address: `ray://HOST:PORT` from any machine; `HOST:PORT` or `auto` from a node of the cluster. Knock there first.
        environment: Variables for the controller. They travel through Ray's memory and are written nowhere by us.
        started: Whether the controller runs the sweep, seen from here.
        timeout_s: How long that may take.

    Raises:
        StoreError: If it ended at once, or did not start in time.
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
        deadline = time.monotonic() + timeout_s
        while not started():
            try:
                code_of_end = ray.get(actor.exit_code.remote(), timeout=timeout_s)
            except RayActorError as error:
                if started():
                    break
                raise StoreError(
                    f"{log}: the controller did not start ({reason_of(error)})"
                ) from error
            except RayError as error:
                raise StoreError(
                    f"{log}: the controller did not start ({first_line(error)})"
                ) from error
            if code_of_end is not None and not started():
                raise StoreError(f"{log}: the controller ended at once; see there")
            if time.monotonic() > deadline:
                ray.kill(actor)
                raise StoreError(
                    f"{log}: the controller did not start in {timeout_s:.0f} s; see there"
                )
            time.sleep(0.2)
    finally:
        ray.shutdown()
    return log


def join(address: str, code: Path | None) -> None:
    """Connect to an existing cluster; whatever it runs for us imports from `code` first.

    Raises:
        ExperimentError: If that fails; says what to look at.
    """
    variables = {
        # The supervisors choose GPUs for the ranks; Ray must not hide them from an actor that holds none.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray puts in what the variable is on the node: a cluster may need its own.
        **({} if code is None else {"PYTHONPATH": f"{code}{os.pathsep}${{PYTHONPATH}}"}),
    }
    for tries_left in reversed(range(TRIES)):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=NAMESPACE,
                runtime_env={"env_vars": variables},
            )
            return
        except (RayError, RuntimeError, OSError, ValueError) as error:
            # A client's server, which Ray starts for each, sometimes dies at once.
            if tries_left and isinstance(error, ConnectionAbortedError):
                LOG.warning("%s: not joined (%s); once more", address, first_line(error))
                ray.shutdown()
                continue
            raise _not_joined(address, error) from error


def ping(address: str) -> None:
    """See whether anybody listens at an address that names a host and a port: Ray itself would try for minutes.

    Raises:
        ExperimentError: If nobody does.
    """
    host, _, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PING_TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            raise _not_joined(address, error) from error


def _not_joined(address: str, error: BaseException) -> ExperimentError:
    return ExperimentError(
        f"--address {address}: no Ray cluster could be joined ({first_line(error)}); is it running, and of this version of "
        "Ray and Python? HOST:PORT and auto are for machines that are nodes of it, ray://HOST:10001 for any other. "
        "A cluster with authentication wants its RAY_AUTH_TOKEN here too"
    )


def reason_of(error: RayActorError) -> str:
    """Return what a dead actor died of: an exception of its own says that in its last line."""
    cause = getattr(error, "cause", None)
    text = str(cause or error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """Return what is enough of Ray's errors, which go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
