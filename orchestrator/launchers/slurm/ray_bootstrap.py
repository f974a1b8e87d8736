"""Bootstrap of Ray on one node of an allocation.

`ray start` takes all that it finds on a machine, and `ray stop` ends every Ray there. Here a node
has the cores and GPUs that Slurm gave, a port that the kernel chose, a short folder on local disk,
and a process group by which it alone is stopped.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from orchestrator.launchers.ray_embedded import RayEnvironment
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.errors import ExperimentError

START_S = 180.0
"""For importing Ray from cold, shared storage."""
MOST_STARTS = 3
"""Of a cluster's first node. On a machine that stands still for half a minute Ray gives up its own
parts and ends. A job in which it was not tried again would end too, after hours in a queue."""
STOP_S = 3.0
"""Between SIGTERM and SIGKILL. Ray would wait half a minute for tasks, and there are none."""
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's minimum is 75 MiB; we pass nothing through it."""
IGNORE_NOTICES = ("/bin/sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh")
"""Ignores Slurm's notice, which goes to every process of a job. Ray would die of it before anything
has checkpointed; what is ignored stays so in all that it starts."""
SETTINGS = {
    # Whoever connects must show the token; `disabled` is for clusters on the loopback interface.
    "RAY_AUTH_MODE": "token",
    # A node that is gone is noticed after five seconds instead of about fifteen.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "5",
}


class RayNode:
    """One node of a private Ray cluster."""

    def __init__(
        self, *, label: str, address: str, cpus: int, gpus: int, log: Path, token: str
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            label: Name of the node in Ray, as a resource: see `mark`.
            address: Of this node, for the others.
            cpus: Cores of it that are ours.
            gpus: GPUs of it that are ours: the first so many of CUDA_VISIBLE_DEVICES.
            log: Takes what Ray prints.
            token: Shown by everyone who connects.
        """
        self._label = label
        self._ip = address
        self._cpus = cpus
        self._gpus = gpus
        self._log = log
        self._token = token
        self._ray_environment = RayEnvironment()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_up = False
        """Whether the head has started, and was not asked to end."""

    def start_head(self) -> str:
        """Start the first node of a cluster; return the address for the others.

        Raises:
            ExperimentError: If Ray ends each time, or does not come up in time.
        """
        deadline = time.monotonic() + START_S
        for number in range(MOST_STARTS):
            if number:
                self.close()
            self._start("--head", "--port=0", "--include-dashboard=false")
            assert self._folder is not None, "just made"
            said = self._folder / "ray_current_cluster"
            while self.alive():
                if said.exists() and (address := said.read_text().strip()):
                    self._is_up = True
                    return address
                if time.monotonic() > deadline:
                    raise self._failure(f"was not up in {START_S:.0f} s")
                time.sleep(0.1)
        raise self._failure("ended")

    def join(self, address: str) -> None:
        """Start a node that joins a cluster; it is there when the cluster lists it."""
        self._start(f"--address={address}")

    def alive(self) -> bool:
        """Whether Ray runs here."""
        process = self._process
        return process is not None and process.poll() is None

    def died(self) -> bool:
        """Whether the head was up and has ended by itself. Safe in another thread."""
        return self._is_up and not self.alive()

    def close(self) -> None:
        """End Ray here, and every process that it started; may be called twice."""
        self._is_up = False
        process, self._process = self._process, None
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
                    break
            process.wait()
        # Ray's workers have process groups of their own; the watchdog finds them by their mark.
        self._ray_environment.close()

    def _start(self, *options: str) -> None:
        self._folder = self._ray_environment.create({**SETTINGS, "RAY_AUTH_TOKEN": self._token})
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *IGNORE_NOTICES,
                    *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block"),
                    *options,
                    f"--node-ip-address={self._ip}",
                    f"--num-cpus={self._cpus}",
                    f"--num-gpus={self._gpus}",
                    f'--resources={{"{mark(self._label)}": 1}}',
                    f"--temp-dir={self._folder}",
                    f"--object-store-memory={OBJECT_STORE_BYTES}",
                    # Chosen by the kernel: a fixed range collides with the next pilot on this node.
                    "--min-worker-port=0",
                    "--max-worker-port=0",
                    # Ray's client server knows no port 0 and cannot be left out.
                    f"--ray-client-server-port={_free_port()}",
                    "--include-log-monitor=false",
                    "--disable-usage-stats",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=with_code(None, os.environ),
                process_group=0,
            )

    def _failure(self, what: str) -> ExperimentError:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return ExperimentError(f"{self._log}: Ray {what} on {self._ip}:\n{tail}")


def mark(label: str) -> str:
    """Return the resource by which a node is known in Ray's list of nodes."""
    return f"memscale-pilot:{label}"


def _free_port() -> int:
    """Return a port that the kernel calls free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
