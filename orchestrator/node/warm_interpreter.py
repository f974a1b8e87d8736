"""Warm interpreter: a Python that imports torch while a sweep is planned.

A fork server is a copy of the submission's code, which exists once the sweep is known to be right.
What takes it longest are packages that do not depend on that. So `memscale submit` has a process
import them while it plans (`import_ahead.py`), which then becomes the fork server. It writes
nothing, and ends with whoever started it.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.node import fork_server_process, import_ahead
from orchestrator.records.rank_registry import TRAIN

PACKAGES = ("numpy", "torch", "torch._inductor")
"""Those of `fork_server_process.TRAINING_MODULES`, in their order."""
COMPILER_PACKAGES = (
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.codegen.triton",
    "torch._inductor.compile_fx",
    "torch._inductor.runtime.triton_heuristics",
)
"""What `workloads.training.step.compiler_imports` imports, where there are GPUs."""


class WarmInterpreter:
    """A process of this machine that can become the fork server of trials that train."""

    def __init__(self, environment: Mapping[str, str], packages: Sequence[str] = ()) -> None:
        """Start it; it dies with this thread.

        Args:
            environment: As for the fork server, as far as it is known: packages read it while they
                are imported.
            packages: What to import instead of what training needs.

        Raises:
            OSError: If that fails; the fork server can do without it.
        """
        if not packages:
            compiler = fork_server_process.compiler_modules(TRAIN)
            packages = PACKAGES + (COMPILER_PACKAGES if compiler else ())
        variables = fork_server_process.process_environment(environment)
        # Ours would come from here, and not from the copy.
        variables["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        # No file, so nothing is left behind. `fork_server.accept` refuses other users.
        self.address = b"\0memscale-" + secrets.token_hex(8).encode()
        # What it prints goes into the fork server's log, which does not exist yet.
        printed = os.memfd_create("printed")
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self.address)
                listener.listen(1)
                command = [sys.executable, "-P", import_ahead.__file__]
                command += [fork_server_process.PROGRAM, str(os.getpid()), str(listener.fileno())]
                self.process = subprocess.Popen(
                    [*command, *packages],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=printed,
                    env=variables,
                    pass_fds=(listener.fileno(),),
                    # Ctrl-C is for who plans.
                    process_group=0,
                )
        finally:
            os.close(printed)

    def become_fork_server(self, log: Path, *, environment: Mapping[str, str], job: str) -> bool:
        """Have it go on as the fork server; return False if it has ended.

        The arguments are those of `NodeSupervisor`.
        """
        log.parent.mkdir(exist_ok=True)
        told = {
            "arguments": fork_server_process.arguments(
                job, fork_server_process.compiler_modules(job)
            ),
            "environment": fork_server_process.process_environment(environment),
            "log": str(log),
        }
        assert self.process.stdin is not None, "stdin is a pipe"
        if self.process.poll() is not None or self.process.stdin.closed:
            return False
        try:
            with self.process.stdin as pipe:
                pipe.write(json.dumps(told).encode())
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        """Kill it, whatever it became. May be called twice."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None, "stdin is a pipe"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
