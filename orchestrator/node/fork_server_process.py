"""Fork server as a child process: started, sent commands, read for events."""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from orchestrator.node.compute_variables import set_for_computing
from orchestrator.node.hardware import visible_gpus
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.errors import ExperimentError
from orchestrator.records.rank_registry import TRAIN
from orchestrator.sweep import registry

LOG = logging.getLogger(__name__)
PROGRAM = "orchestrator.node.fork_server"
TRAINING_MODULES = (
    "numpy",
    "torch",
    # use_deterministic_algorithms imports it at the first step: 1.5 s.
    "torch._inductor",
    "workloads.training.train",
    "orchestrator.node.worker",
)
"""What a fork server imports for ranks that train; architectures and data sources come on top. A
custom job imports what it needs by itself."""
COMPILER_MODULES = ("workloads.training.step.compiler_imports",)
"""What the first compilation would do in every rank: 3 s of a core. Imported where there are GPUs,
since a CPU never compiles."""
COMPILER_ENVIRONMENT = {
    # torch 2.11 asks for a device when it imports Inductor's own benchmarker, and opens CUDA.
    "TORCHINDUCTOR_USE_EXPERIMENTAL_BENCHMARKER": "0",
}
"""What keeps the compiler's imports from opening CUDA, which would forbid forking."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
START_TIMEOUT_S = 180.0
"""For importing torch from a cold, slow disk."""
REPLACEMENTS = 2
"""How often a fork server that is killed while it imports is started again."""
END_TIMEOUT_S = 10.0
"""How long the fork server may take to end after its standard input has."""


class ForkServerProcess:
    """A running fork server (`orchestrator.node.fork_server`); one that died can be replaced."""

    def __init__(
        self,
        log: Path,
        *,
        environment: Mapping[str, str],
        job: str,
        own_group: bool,
        early: bytes | None = None,
    ) -> None:
        """Start it, or connect to the one at `early`. The arguments are `NodeSupervisor`'s."""
        self._log = log
        self._environment = dict(environment)
        self._job, self._compiler = job, compiler_modules(job)
        self._own_group = own_group
        self._unread = b""
        self._import_s: float | None = None
        self._process: subprocess.Popen[bytes] | Connection
        self._commands: IO[bytes] | socket.SocketIO
        self._events: IO[bytes] | socket.SocketIO
        if early is not None:
            try:
                self._process = Connection(early)
            except OSError:
                LOG.warning("%s: the process that starts ranks has ended; another one", log)
            else:
                self._commands, self._events = self._process.stdin, self._process.stdout
                return
        self._start()

    def _start(self) -> None:
        self._unread = b""
        self._import_s = None
        self._process = start(
            self._log,
            environment=self._environment,
            job=self._job,
            compiler=self._compiler,
            own_group=self._own_group,
        )
        assert self._process.stdin is not None, "stdin is a pipe"
        assert self._process.stdout is not None, "stdout is a pipe"
        self._commands, self._events = self._process.stdin, self._process.stdout

    def alive(self) -> bool:
        """Return whether it runs."""
        return self._process.poll() is None

    def replace(self) -> None:
        """Start another one in the place of one that has died."""
        self._close_pipes()
        self._start()

    def wait_until_ready(self) -> float:
        """Return the seconds that importing took. One that is killed meanwhile is replaced.

        One that fails with the compiler imported goes on without: ranks then import it themselves.

        Raises:
            ExperimentError: If it died; shows what it printed last.
        """
        n_replaced = 0
        while self._import_s is None:
            events = self.events(timeout_s=START_TIMEOUT_S)
            if self._import_s is not None:
                break
            if not self.alive():
                # A signal comes from outside, as when memory is short; an import that fails exits.
                if self._process.returncode < 0 and n_replaced < REPLACEMENTS:
                    n_replaced += 1
                    LOG.warning("%s: killed while importing; started again", self._log)
                    self.replace()
                    continue
                if self._process.returncode > 0 and self._compiler:
                    LOG.warning("%s: started again without the compiler", self._log)
                    self._compiler = ()
                    self.replace()
                    continue
                tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
                raise ExperimentError(
                    f"{self._log}: the process that starts ranks ended while importing:\n{tail}"
                )
            if not events:
                raise ExperimentError(
                    f"{self._log}: importing what ranks need took more than "
                    f"{START_TIMEOUT_S:.0f} s; is the disk that holds the Python environment slow?"
                )
        return self._import_s

    def send(self, command: Mapping[str, Any]) -> None:
        """Send a command; one to a dead process is lost, and reading events notices that."""
        with contextlib.suppress(ConnectionError):
            # Unbuffered, and a pipe takes a line whole: nothing is left over when it dies.
            self._commands.write(json.dumps(command).encode() + b"\n")

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what it has reported of ranks; wait at most `timeout_s` for the first event."""
        out = self._events.fileno()
        while select.select([out], [], [], timeout_s)[0]:
            timeout_s = 0.0
            try:
                chunk = os.read(out, 1 << 16)
            except ConnectionError:
                chunk = b""
            if not chunk:
                self._process.wait()
                break
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        events = [json.loads(line) for line in lines]
        for event in events:
            if "ready" in event:
                self._import_s = float(event["ready"])
        return [event for event in events if "ready" not in event]

    def close(self) -> None:
        """End it, and with it every rank."""
        self._commands.close()
        try:
            self._process.wait(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._commands.close()
        self._events.close()
        if isinstance(self._process, Connection):
            self._process.close()


class Connection:
    """Stands for the process of a fork server that another process started (`early_fork_server`).

    It ends with the connection. `poll`, `wait`, `kill` are as those of `Popen`.
    """

    returncode = -signal.SIGKILL

    def __init__(self, address: bytes) -> None:
        """Connect.

        Raises:
            OSError: If it has ended.
        """
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        self.stdin = self._socket.makefile("wb", buffering=0)
        self.stdout = self._socket.makefile("rb", buffering=0)

    def poll(self) -> int | None:
        """Return None while it runs, or has said what nobody has read."""
        try:
            if self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return None
        except BlockingIOError:
            return None
        except OSError:
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Send it no more; return when it has ended.

        Raises:
            TimeoutExpired: If it takes too long.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.settimeout(timeout)
        try:
            with contextlib.suppress(ConnectionError):
                while self._socket.recv(1 << 16):
                    pass
        except TimeoutError as error:
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0) from error
        return self.returncode

    def kill(self) -> None:
        """Wait for it no more: who started it ends it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()


def start(
    log: Path,
    *,
    environment: Mapping[str, str],
    job: str,
    compiler: Sequence[str],
    own_group: bool,
    stdin: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a fork server as a child that dies with this thread.

    Args:
        log: Takes what it prints.
        environment: Variables beyond those of this process.
        job: What ranks run; decides what is imported.
        compiler: `compiler_modules`, or less.
        own_group: Whether it gets a process group of its own.
        stdin: Where commands come from.
    """
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM, *arguments(job, compiler)],
            bufsize=0,
            stdin=stdin,
            stdout=subprocess.PIPE if stdin == subprocess.PIPE else subprocess.DEVNULL,
            stderr=output,
            env=process_environment(environment),
            process_group=0 if own_group else None,
        )


def arguments(job: str, compiler: Sequence[str]) -> list[str]:
    """Return the arguments of a fork server that is a child of this process.

    Args:
        job: What ranks run; decides what is imported.
        compiler: `compiler_modules`, or less.
    """
    modules = TRAINING_MODULES if job == TRAIN else ("orchestrator.node.worker",)
    optional = workload_modules() if job == TRAIN else []
    return [str(os.getpid()), *modules, "--if-possible", *optional, *compiler]


def process_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of a fork server: those of this process, its own, and these."""
    variables = {
        **with_code(None, os.environ),
        # Libraries size thread pools when they are imported; here there must be none.
        **dict.fromkeys(_THREADS, "1"),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        **COMPILER_ENVIRONMENT,
        **environment,
    }
    set_for_computing(variables)
    return variables


def compiler_modules(job: str) -> Sequence[str]:
    """Return what ranks need that compile; nothing where there is no GPU."""
    return COMPILER_MODULES if job == TRAIN and visible_gpus() else ()


def workload_modules() -> list[str]:
    """Return the modules of every architecture and data source."""
    architectures = [f"workloads.architectures.{name}" for name in registry.architectures()]
    return architectures + [f"workloads.data.sources.{name}" for name in registry.data_sources()]
