"""Detached controller: keeps a sweep's controller running on a cluster.

A detached actor of Ray holds one `DetachedController`, which runs the controller as a plain process
beside it. Ray restarts the actor on another node when its own dies; the actor restarts a controller
that is killed. Either way a new controller goes on from the sweep's folder, as after any death of a
controller. Ranks, supervisors and reservations belong to the controller's own connection to Ray,
which takes them back with it.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.records import storage_errors
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.errors import BusyError, StoreError
from orchestrator.records.sweep_dir import SweepDir

RESTARTS = 20
"""How often a controller is restarted on one node: one that a signal ended, that found another
one's lock, or storage that fails."""
PAUSE_S = 5.0
"""Before a restart: what was killed for want of memory should find some."""
WORKER_VARIABLES = (
    "RAY_JOB_ID",
    "RAY_RAYLET_PID",
    "RAY_CLIENT_MODE",
    "RAY_ADDRESS",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "CUDA_VISIBLE_DEVICES",
)
"""Variables of Ray's worker process that a program with its own connection must not inherit."""


def controller_command(
    sweep: SweepDir, number: int, *, address: str | None = None, dies_with: int | None = None
) -> list[str]:
    """Return the command of the controller of a recorded submission.

    Args:
        sweep: The sweep.
        number: Of the submission.
        address: Of the Ray cluster as seen from where the command runs, if not as recorded.
        dies_with: Pid of the parent, if the controller shall not outlive it.
    """
    return [
        # -P: files of the current folder must not shadow what the command imports.
        *(sys.executable, "-P", "-m", "orchestrator.cli", "controller"),
        *(str(sweep.path.absolute()), str(number)),
        *([] if address is None else ["--address", address]),
        *([] if dies_with is None else ["--dies-with", str(dies_with)]),
    ]


class DetachedController:
    """Runs the controller of one submission until it ends by itself."""

    def __init__(
        self,
        sweep: str,
        number: int,
        *,
        address: str,
        environment: Mapping[str, str],
        on_end: Callable[[], None],
    ) -> None:
        """Start it; returns at once.

        Args:
            sweep: The sweep's folder, which this node must see.
            number: Of the submission.
            address: Of the Ray cluster.
            environment: Further variables for the controller.
            on_end: Called by another thread once the controller has ended by itself, or died
                too often.

        Raises:
            StoreError: If the folder is not here.
        """
        self._sweep = SweepDir(Path(sweep))
        if not self._sweep.path.is_dir():
            raise StoreError(
                f"{sweep}: not seen on {os.uname().nodename}; --runs must be a folder that every "
                "node of the cluster sees under the same path (a network file system)"
            )
        self._number = number
        self._address = address
        kept = {name: value for name, value in os.environ.items() if name not in WORKER_VARIABLES}
        self._environment = with_code(None, {**kept, **environment})
        self._on_end = on_end
        self.code: int | None = None
        """The controller's exit code; None while it runs."""
        # One thread starts them all: the kernel ends a child with the thread that made it.
        threading.Thread(target=self._run, daemon=True).start()

    def exit_code(self) -> int | None:
        """Return the controller's exit code; None while it runs."""
        return self.code

    def _run(self) -> None:
        code = self._run_once()
        for _ in range(RESTARTS):
            # Busy: a network file system holds the lock of a controller on a lost node for a
            # minute or two.
            if code >= 0 and code not in (BusyError.exit_code, storage_errors.EXIT_CODE):
                break
            time.sleep(PAUSE_S)
            code = self._run_once()
        self.code = code
        self._on_end()

    def _run_once(self) -> int:
        try:
            log = (self._sweep.path / "controller.log").open("ab")
        except OSError as error:
            if not storage_errors.is_failing(error):
                raise
            return storage_errors.EXIT_CODE
        with log:
            return subprocess.Popen(
                controller_command(
                    self._sweep, self._number, address=self._address, dies_with=os.getpid()
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            ).wait()
