"""What surrounds an embedded Ray cluster: its settings, its folder, its watchdog; and putting everything back after it.

Ray is configured through environment variables and changes some of this process's own state. Nothing here imports it.
"""

import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.launchers.ray_watchdog import OWNER
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.processes import ProcessId

SETTINGS = {
    # Who can reach Ray and has not the cluster's own token (RAY_AUTH_TOKEN, below) is sent away.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_process_group_cleanup_enabled": "1",
    # Ranks are no Ray workers. All that this monitor could kill is our supervisor.
    "RAY_memory_monitor_refresh_ms": "0",
    # One actor per node is all we need: no idle workers beside it.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # The supervisors choose GPUs for the ranks; Ray must not hide them from an actor that holds none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
SET_BY_RAY = ("PYTHONBREAKPOINT",)
"""Variables that `ray.init` sets and never puts back: ranks and callers want their own debugger."""


class RayEnvironment:
    """Variables, signal handler, folder and watchdog around one connection to Ray."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self._before: dict[str, str | None] = {}
        """Variables that are changed, as they were."""
        self._on_sigterm: Any = signal.SIG_DFL
        self._watchdog: subprocess.Popen[bytes] | None = None

    def save(self) -> None:
        """Note what `ray.init` is going to change."""
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._before = {name: os.environ.get(name) for name in SET_BY_RAY}

    def restore_environment(self) -> None:
        """Put back what `ray.init` changed and nobody asked for."""
        for name in SET_BY_RAY:
            self._restore(name)
        if threading.current_thread() is threading.main_thread():
            # Ray takes SIGTERM for itself and would exit; what it means is our caller's business.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def create(self, environment: Mapping[str, str], *, root: Path | None = None) -> Path:
        """Set the variables for a cluster of our own and start its watchdog; return the folder for the cluster.

        Args:
            environment: Further variables for every process of the cluster.
            root: Where to put that folder; default: where temporary files go.
        """
        own = ProcessId.own()
        owner = f"{own.pid}-{own.start_ticks}"
        root = root or Path(tempfile.gettempdir())
        remove_leftovers(root)
        # Ray puts sockets below this folder, whose paths are limited to 107 bytes.
        folder = root / f"ms-{owner}"
        # In a variable, for a token file in the home folder would turn authentication on for every later Ray of this user.
        self._set({**SETTINGS, "RAY_AUTH_TOKEN": secrets.token_hex(32), **environment})
        self._watchdog = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.launchers.ray_watchdog", owner, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=with_code(None, os.environ),
            start_new_session=True,
        )
        # From here on, so that the watchdog itself does not carry the mark.
        self._set({OWNER: owner})
        return folder

    def close(self) -> None:
        """Have the watchdog end what Ray left behind, wait for that, put the variables back."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None, "stdin is a pipe"
            self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None
        for name in list(self._before):
            self._restore(name)

    def _set(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def _restore(self, name: str) -> None:
        value = self._before.pop(name)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def remove_leftovers(root: Path) -> None:
    """Delete the folders of embedded clusters whose controllers were killed."""
    for folder in root.glob("ms-*-*"):
        _, pid, ticks = folder.name.split("-", 2)
        process = ProcessId.of(int(pid)) if pid.isdigit() else None
        if pid.isdigit() and (process is None or str(process.start_ticks) != ticks):
            shutil.rmtree(folder, ignore_errors=True)


# Ray started for ourselves alone: out of reach of signals that are meant for us, and of other machines.


LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""For the environment of Ray's processes."""


@contextmanager
def own_ray() -> Iterator[None]:
    """Start what Ray starts within this block in a session of its own each, with loopback addresses."""
    # Not above: whoever reads `LOOPBACK` need not wait for Ray.
    from ray._private import ray_constants, services

    popen, clusters = services.ConsolePopen, ray_constants.ENABLE_RAY_CLUSTER
    services.ConsolePopen = functools.partial(popen, start_new_session=True)  # type: ignore[misc, assignment]
    # Read from the environment when Ray was imported.
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]
        ray_constants.ENABLE_RAY_CLUSTER = clusters
