"""CUDA's Multi-Process Service (MPS), for the ranks that share a GPU on this node.

Processes that share a GPU take turns on it. As clients of MPS they compute at once, each still a
process of its own (`docs/decisions/0019-mps.md`).
"""

import logging
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.node import mps_guard, private_folder
from orchestrator.node.compute_variables import set_for_computing
from orchestrator.records.errors import ExperimentError

LOG = logging.getLogger(__name__)
CONTROL = "nvidia-cuda-mps-control"
"""NVIDIA's control daemon; it comes with the driver."""
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
"""Environment variable of a client: the folder of the daemon's sockets."""
READY_S = 20.0
"""How long the daemon and its first client may take; 1 to 3 s were seen."""
CLIENT = """
import ctypes, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
error = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
sys.exit(f"CUDA error {error}" if error else 0)
"""
"""A program that is a client for a moment: whether it works is seen before a rank depends on it."""


class MpsDaemon:
    """The MPS daemon of one supervisor, started with its first client; it ends with its owner.

    Other users cannot reach it: its sockets lie in a private folder.
    """

    def __init__(self, *, control: str = CONTROL, client: str = CLIENT) -> None:
        """Start nothing yet.

        Args:
            control: The daemon's program.
            client: Python program that tries whether clients work.
        """
        self._control = control
        self._client = client
        self._guard: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._usable = PIPES not in os.environ

    def environment(self, gpu: str) -> dict[str, str]:
        """Return the variables that make a process on this GPU a client; start what is missing.

        Empty where MPS is not installed or does not work, and where the user has a daemon already.
        """
        if self._guard is not None and self._guard.poll() is not None:
            LOG.warning("the MPS daemon has ended; trials that share a GPU take turns from now on")
            self.close()
            self._usable = False
        if self._usable and self._guard is None:
            problem = self._start(gpu)
            if problem is not None:
                LOG.warning("MPS does not work (%s); trials that share a GPU take turns", problem)
                self.close()
            self._usable = problem is None and self._guard is not None
        return {} if self._folder is None else mps_guard.environment(self._folder)

    def close(self) -> None:
        """End the daemon; its clients have ended before."""
        if self._guard is not None:
            self._guard.communicate()
        self._guard = self._folder = None

    def _start(self, gpu: str) -> str | None:
        """Start the daemon and try a client; return what went wrong."""
        program = shutil.which(self._control)
        if program is None:
            return None
        try:
            root = private_folder.safe_root()
            private_folder.remove_leftovers(root)
            private = private_folder.create(root)
        except (ExperimentError, OSError) as error:
            return str(error)
        self._folder = private.path
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", mps_guard.__file__, program, str(private.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_variables(),
            # The lock lasts as long as the guard, which deletes the folder.
            pass_fds=[private.lock],
            process_group=0,
        )
        private.release()
        assert self._guard.stdout is not None, "stdout is a pipe"
        deadline = time.monotonic() + READY_S
        if not select.select([self._guard.stdout], [], [], READY_S)[0]:
            return f"{self._control} made no socket within {READY_S:.0f} s"
        if not self._guard.stdout.readline():
            return f"{self._control} ended at once"
        return self._try_client(gpu, deadline - time.monotonic())

    def _try_client(self, gpu: str, timeout_s: float) -> str | None:
        assert self._folder is not None, "the daemon runs"
        environment = {**_variables(), **mps_guard.environment(self._folder)}
        try:
            client = subprocess.run(
                [sys.executable, "-I", "-S", "-c", self._client],
                env={**environment, "CUDA_VISIBLE_DEVICES": gpu},
                capture_output=True,
                text=True,
                timeout=max(1.0, timeout_s),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "its first client did not start in time"
        if client.returncode == 0:
            return None
        return (client.stderr.strip().splitlines() or [f"exit status {client.returncode}"])[-1]


def _variables() -> dict[str, str]:
    """Return the variables of the daemon and its first client: they number GPUs as ranks do."""
    variables = dict(os.environ)
    set_for_computing(variables)
    return variables
