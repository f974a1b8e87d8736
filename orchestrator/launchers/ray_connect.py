"""Connections to Ray: a cluster started on this machine, or an existing one."""

import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services, utils, worker
from ray._private.node import Node
from ray._private.state import GlobalState
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # in Cython
from ray.exceptions import RayError
from ray.experimental import internal_kv
from ray.job_config import JobConfig

from orchestrator.launchers.ray_embedded import RayEnvironment
from orchestrator.records.errors import ExperimentError

LOG = logging.getLogger(__name__)
NAMESPACE = "memscale"
TRIES = 3
"""How often to start or join a cluster. Each of Ray's processes must come up in 30 s, which a busy
machine may not give it."""
PING_TIMEOUT_S = 15.0
"""How long a cluster may take to accept a connection."""
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's minimum is 75 MiB; nothing passes through it."""
UNUSED = ("start_monitor", "start_api_server", "start_log_monitor")
"""What Ray's node starts and an embedded cluster does without: autoscaler, dashboard, logs sent to
the driver."""
REGISTERED_S = 30.0
"""How long `get_node` of Ray waits for a node, in steps of a second."""
LOOK_S = 0.02
"""How often a node is looked for that starts, which takes half a second."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Binds the processes of an embedded cluster to the loopback interface."""


class SafePathJobConfig(JobConfig):
    """Settings of a Ray job whose workers do not import from the driver's current folder.

    Ray puts that folder first on their path, where a user's own `workloads.py` would shadow ours.
    """

    def _serialize(self) -> str:
        here = str(Path.cwd())
        self._py_driver_sys_path = [path for path in self._py_driver_sys_path if path != here]
        return super()._serialize()


def start_cluster(
    ray_environment: RayEnvironment,
    environment: Mapping[str, str],
    *,
    cpus: int,
    gpus: int | None,
) -> None:
    """Start Ray for this process alone, out of reach of other machines and other Rays.

    Args:
        ray_environment: Holds the cluster's settings, folder and watchdog until it is closed.
        environment: Further variables for every process of the cluster.
        cpus: Cores that the cluster may give away.
        gpus: GPUs likewise; None is what Ray finds.

    Raises:
        ExperimentError: If Ray does not start.
    """
    for tries_left in reversed(range(TRIES)):
        folder = ray_environment.create({**environment, **LOOPBACK})
        reread_settings()
        try:
            with _isolated():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    num_cpus=cpus,
                    num_gpus=gpus,
                    object_store_memory=OBJECT_STORE_BYTES,
                    namespace=NAMESPACE,
                    _temp_dir=str(folder),
                    job_config=SafePathJobConfig(),
                )
            return
        except Exception as error:  # Ray raises it bare when a busy machine starts a node too late
            if not tries_left or isinstance(error, OSError | ValueError):
                raise ExperimentError(
                    f"Ray did not start on this machine: {first_line(error)}; "
                    "`memscale doctor` looks closer, `--launcher process` does without Ray"
                ) from error
            LOG.warning("Ray did not start (%s); once more", first_line(error))
            ray_environment.close()
            ray_environment.save()


def log_errors(log: Path) -> None:
    """Append to a log what Ray says of its own failures, which it would print on the terminal."""

    def append(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
        with suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in data["lines"])

    worker.print_to_stdstream = append


def ended_process() -> str | None:
    """Return which process of the cluster started here ended by itself; None: all run."""
    node = worker._global_node
    ended: list[tuple[str, Any]] = [] if node is None else node.dead_processes()
    needed = (ray_constants.PROCESS_TYPE_RAYLET, ray_constants.PROCESS_TYPE_GCS_SERVER)
    return next((name for name, _ in ended if name in needed), None)


@contextmanager
def _isolated() -> Iterator[None]:
    """Give what Ray starts within this block sessions of their own and loopback addresses.

    Signals that are meant for this process, and other machines, do not reach it then. What of Ray
    serves a person or a growing cluster is left out: starting it takes two cores for seconds, which
    the first attempt waits for.
    """
    popen, clusters = services.ConsolePopen, ray_constants.ENABLE_RAY_CLUSTER
    dashboard = utils.get_dashboard_dependency_error
    unused, get_node = {name: getattr(Node, name) for name in UNUSED}, services.get_node
    in_session = functools.partial(popen, start_new_session=True)
    services.ConsolePopen = in_session  # type: ignore[misc, assignment]
    # Read from the environment when Ray was imported.
    ray_constants.ENABLE_RAY_CLUSTER = False
    # As if Ray were installed without its dashboard, so each node's agent serves no pages.
    utils.get_dashboard_dependency_error = lambda: ImportError("not wanted")
    services.get_node = functools.partial(_once_registered, get_node)
    for name in UNUSED:
        setattr(Node, name, lambda node, **settings: None)
    try:
        yield
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        utils.get_dashboard_dependency_error = dashboard
        services.get_node = get_node
        for name, method in unused.items():
            setattr(Node, name, method)


def _once_registered(get_node: Callable[[str, str], Any], gcs: str, node_id: str) -> Any:
    """Return what `get_node` does; until the node is there, look more often than once a second."""
    untyped: Any = services
    state: Any = GlobalState()  # type: ignore[no-untyped-call]
    state._initialize_global_state(untyped._get_gcs_client_options(gcs))
    deadline = time.monotonic() + REGISTERED_S
    while time.monotonic() < deadline:
        if any(record["NodeID"] == node_id for record in state.node_table()):
            break
        time.sleep(LOOK_S)
    return get_node(gcs, node_id)


def reread_settings() -> None:
    """Make Ray take its settings and token from the environment again, as on its first import."""
    # In this order: a thread of Ray's that still runs must not look for a token that is gone.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def join(address: str, code: Path | None) -> None:
    """Connect to an existing cluster; whatever it runs for us imports from `code` first.

    Raises:
        ExperimentError: If that fails; says what to look at.
    """
    variables = {
        # Supervisors choose the ranks' GPUs; Ray must not hide them from an actor that holds none.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray puts in what the variable is on the node: a cluster may need its own.
        **({} if code is None else {"PYTHONPATH": f"{code}{os.pathsep}${{PYTHONPATH}}"}),
    }
    # The Ray client never passes the current folder on, and its server may not know the class.
    job_config: Any = None if address.startswith("ray://") else SafePathJobConfig()
    for tries_left in reversed(range(TRIES)):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=NAMESPACE,
                runtime_env={"env_vars": variables},
                job_config=job_config,
            )
            return
        except (RayError, RuntimeError, OSError, ValueError) as error:
            # A client's server, which Ray starts for each, sometimes dies at once.
            if not tries_left or not isinstance(error, ConnectionAbortedError):
                raise _not_joined(address, error) from error
            LOG.warning("%s: not joined (%s); once more", address, first_line(error))
            ray.shutdown()


def ping(address: str) -> None:
    """Check that an address of host and port accepts connections: Ray itself would try for minutes.

    Raises:
        ExperimentError: If nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PING_TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            raise _not_joined(address, error) from error


def _not_joined(address: str, error: BaseException) -> ExperimentError:
    return ExperimentError(
        f"--address {address}: no Ray cluster could be joined ({first_line(error)}); "
        "is it running, and of this version of Ray and Python? HOST:PORT and auto are for "
        "machines that are nodes of it, ray://HOST:10001 for any other. "
        "A cluster with authentication wants its RAY_AUTH_TOKEN here too"
    )


def death_reason(error: RayError) -> str:
    """Return why an actor died: the last line of an exception of its own says it."""
    text = str(getattr(error, "cause", None) or error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error: Ray's go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class RayKeyValueStore:
    """Ray's internal key-value store as a `cluster_registry.KeyValueStore`."""

    _PREFIX = b"memscale/sweeps/"

    def put(self, name: str, value: bytes) -> None:
        """Set or replace the value of a name."""
        internal_kv._internal_kv_put(self._key(name), value, overwrite=True, namespace=NAMESPACE)

    def get_all(self) -> dict[str, bytes]:
        """Return all values by name."""
        keys = internal_kv._internal_kv_list(self._PREFIX, namespace=NAMESPACE)
        found = {key: internal_kv._internal_kv_get(key, namespace=NAMESPACE) for key in keys}
        # A sweep may delete its value between the two calls.
        return {
            key.removeprefix(self._PREFIX).decode(): value
            for key, value in found.items()
            if value is not None
        }

    def delete(self, name: str) -> None:
        """Delete a name, if it is there."""
        internal_kv._internal_kv_del(self._key(name), namespace=NAMESPACE)

    def _key(self, name: str) -> bytes:
        return self._PREFIX + name.encode()
