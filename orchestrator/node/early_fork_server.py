"""Early fork server: imports before its supervisor's process exists.

An embedded Ray takes seconds to come up, and importing torch and the compiler as long. So a
launcher starts both at once, or a warm interpreter has begun to import before. The supervisor then
connects to the fork server, which serves it as one that it started itself, and ends with the
connection. It also dies with the launcher.
"""

import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from orchestrator.node import fork_server_process
from orchestrator.node.warm_interpreter import WarmInterpreter


class EarlyForkServer:
    """A fork server of this machine that waits for the connection of a supervisor."""

    def __init__(
        self,
        log: Path,
        *,
        environment: Mapping[str, str],
        job: str,
        warm: WarmInterpreter | None = None,
    ) -> None:
        """Start it, or have `warm` become it. Other arguments are those of `NodeSupervisor`.

        Raises:
            OSError: If that fails; its supervisor can do without it.
        """
        if warm is not None and warm.become_fork_server(log, environment=environment, job=job):
            self.address, self._process = warm.address, warm.process
            return
        # No file, so nothing is left behind. `fork_server.accept` refuses other users.
        self.address = b"\0memscale-" + secrets.token_hex(8).encode()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(1)
            self._process = fork_server_process.start(
                log,
                environment=environment,
                job=job,
                compiler=fork_server_process.compiler_modules(job),
                own_group=True,
                stdin=listener.fileno(),
            )

    def close(self) -> None:
        """Kill it, and with it every rank; after its supervisor that does nothing."""
        self._process.kill()
        self._process.wait()
