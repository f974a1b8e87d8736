"""Early fork server: it imports while the process of its supervisor does not exist yet.

An embedded Ray takes seconds to come up, and importing torch and the compiler as long. So a
launcher starts both at once. The supervisor then connects to the fork server, which serves it as
one that it started itself, and ends with the connection. It also dies with the launcher.
"""

import socket
from collections.abc import Mapping
from pathlib import Path

from orchestrator.node import fork_server_process


class EarlyForkServer:
    """A fork server of this machine that waits for the connection of a supervisor."""

    def __init__(self, log: Path, *, environment: Mapping[str, str], job: str) -> None:
        """Start it. The arguments are those of `NodeSupervisor`."""
        with socket.socket(socket.AF_UNIX) as listener:
            # A name that the kernel picks, and no file: nothing is left behind. Other users of the
            # machine may connect, and are refused (`fork_server.accept`).
            listener.bind("")
            listener.listen(1)
            self.address: bytes = listener.getsockname()
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
