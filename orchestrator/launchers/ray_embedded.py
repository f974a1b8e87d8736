"""Environment of an embedded Ray cluster: settings, folder, watchdog.

Ray is configured through environment variables and changes some of this process's own state, which
is restored. Nothing here imports it.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.launchers.ray_watchdog import OWNER
from orchestrator.node import private_folder
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.processes import ProcessId

SETTINGS = {
    # Whoever connects must show the cluster's own token (RAY_AUTH_TOKEN, below).
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_process_group_cleanup_enabled": "1",
    # Ranks are no Ray workers: all that this monitor could kill is our supervisor.
    "RAY_memory_monitor_refresh_ms": "0",
    # One actor per node is all we need: no idle workers beside it.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # Supervisors choose the ranks' GPUs; Ray must not hide them from an actor that holds none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
SET_BY_RAY = ("PYTHONBREAKPOINT",)
"""Variables that `ray.init` sets and leaves set: ranks and callers want their own debugger."""


class RayEnvironment:
    """Variables, signal handler, folder and watchdog of one connection to Ray."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self._before: dict[str, str | None] = {}
        """Variables that are changed, with their former values."""
        self._on_sigterm: Any = signal.SIG_DFL
        self._mask: Any = None
        """Blocked signals before `save`; None: they are not changed."""
        self._watchdog: subprocess.Popen[bytes] | None = None

    def save(self) -> None:
        """Save what `ray.init` is going to change; until `restore_environment` SIGHUP waits."""
        # What Ray starts inherits that. So the end of a terminal, which reaches all its processes,
        # leaves Ray alive for ranks that checkpoint.
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._before = {name: os.environ.get(name) for name in SET_BY_RAY}

    def restore_environment(self) -> None:
        """Restore what `ray.init` changed and nobody asked for."""
        for name in SET_BY_RAY:
            self._restore(name)
        self._unblock()
        if threading.current_thread() is threading.main_thread():
            # Ray takes SIGTERM for itself and would exit; the caller decides what it means.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def create(self, environment: Mapping[str, str]) -> Path:
        """Set the variables of an own cluster and start its watchdog; return the cluster's folder.

        Args:
            environment: Further variables for every process of the cluster.

        Raises:
            ExperimentError: If other users could replace that folder.
        """
        own = ProcessId.own()
        owner = f"{own.pid}-{own.start_ticks}"
        root = private_folder.safe_root()
        private_folder.remove_leftovers(root)
        folder = private_folder.create(root)
        # The token is a variable: a token file in the home folder would turn authentication on for
        # every later Ray of this user.
        self._set({**SETTINGS, "RAY_AUTH_TOKEN": secrets.token_hex(32), **environment})
        self._watchdog = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "orchestrator.launchers.ray_watchdog"),
                *(owner, str(folder.path)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=with_code(None, os.environ),
            start_new_session=True,
            # The lock is the watchdog's: it deletes the folder, also when this process is killed.
            pass_fds=(folder.lock,),
        )
        folder.release()
        # Not before, so that the watchdog itself does not carry the mark.
        self._set({OWNER: owner})
        # Short: Ray puts sockets below, whose paths are limited to 107 bytes.
        return folder.path / "r"

    def close(self) -> None:
        """Make the watchdog end what Ray left, wait for that, restore the variables."""
        self._unblock()
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None, "stdin is a pipe"
            self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None
        for name in list(self._before):
            self._restore(name)

    def _unblock(self) -> None:
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            self._mask = None

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
