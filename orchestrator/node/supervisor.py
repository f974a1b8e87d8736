"""Starts and watches the ranks of one node, through a warm fork server. Runs inside Ray's actor or the controller itself.

Nothing here waits for a rank: `poll` looks, tells what ended, and puts an end to what should have ended by itself or
makes no progress. Ranks that it ends first write their stacks, which go into the log of the attempt.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.control.launcher_port import Launch
from orchestrator.node.hang_detection import HangDetector
from orchestrator.node.hardware import gpu_memory_bytes, network_environment, visible_gpus
from orchestrator.node.oom_detection import OomKillCounter
from orchestrator.node.progress_board import STACKS_SIGNAL, ProgressReader, innermost_call
from orchestrator.records import code_snapshot
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId, kill_and_wait
from orchestrator.records.rank_registry import TRAIN
from orchestrator.sweep import registry

LOG = logging.getLogger(__name__)
TRAINING_MODULES = (
    "numpy",
    "torch",
    # use_deterministic_algorithms imports it at the first step: 1.5 s.
    "torch._inductor",
    "workloads.training.train",
    "orchestrator.node.worker",
)
"""What a fork server imports for ranks that train; architectures and data sources come on top. A job of one's own
imports what it needs by itself."""
START_TIMEOUT_S = 180.0
"""For importing torch from a cold, slow disk."""
AFTER_FAILURE_S = 10.0
"""How long the other ranks may outlive one that failed: they have no one to talk to."""
AFTER_DONE_S = 120.0
"""How long the other ranks may outlive one that finished."""
STOP_TIMEOUT_S = 60.0
"""How long a checkpoint may take after SIGTERM."""
STACKS_S = 5.0
"""How long ranks may take to write their stacks before they are killed. It takes milliseconds."""
LOOK_S = 1.0
"""How often it is looked whether ranks make progress."""


@dataclass(kw_only=True)
class _Attempt:
    """The ranks of one attempt."""

    launch: Launch
    processes: dict[int, ProcessId] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    killed_by_us: set[int] = field(default_factory=set)
    deadline: float | None = None
    """When those that are left are ended."""
    watch: HangDetector = field(default_factory=HangDetector)
    looks: dict[int, ProgressReader] = field(default_factory=dict)
    looked_at: float = -LOOK_S
    hang: str | None = None
    out_of_memory: set[int] = field(default_factory=set)
    ended_at: float | None = None
    """When those that were left were asked for their stacks, after which they are killed."""
    stacks: dict[int, str] = field(default_factory=dict)
    """As far as they were written at the last look."""
    stood: dict[int, str] = field(default_factory=dict)
    """Where ranks were that were killed here."""

    @property
    def left(self) -> list[int]:
        return [rank for rank in self.launch.local_ranks if rank not in self.codes]

    def hurry(self, deadline: float) -> None:
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)

    def hung(self, now: float) -> str | None:
        """Return what to say of a hang, None while there is none. Looks now and then only."""
        if now - self.looked_at < LOOK_S:
            return None
        self.looked_at = now
        return self.watch.check(now, {rank: self.looks[rank].progress() for rank in self.left})

    def close(self) -> None:
        for look in self.looks.values():
            look.close()


class NodeSupervisor:
    """Owns the fork server of a node and, through it, every rank there."""

    def __init__(
        self,
        *,
        log: str,
        environment: Mapping[str, str],
        job: str = TRAIN,
        own_group: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the fork server; it is ready when `wait_until_ready` has returned.

        Args:
            log: File for what the fork server prints; ranks write to the logs of their attempts.
            environment: Variables for the fork server and its ranks, beyond those of this process.
            job: The job function that ranks run; decides what the fork server imports.
            own_group: Put the fork server into a process group of its own, so that Ctrl-C reaches the controller only.
            clock: Monotonic seconds.
        """
        self._log = Path(log)
        self._environment = dict(environment)
        self._modules = TRAINING_MODULES if job == TRAIN else ("orchestrator.node.worker",)
        self._optional = _workloads() if job == TRAIN else []
        self._own_group = own_group
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}
        self._ended: list[AttemptExit] = []
        self._oom = OomKillCounter(clock)
        self._unread = b""
        self._ready = False
        self._fork_server = self._start_fork_server()

    def wait_until_ready(self) -> float:
        """Return the seconds that importing took.

        Raises:
            ExperimentError: If the fork server died; shows what it printed last.
        """
        while True:
            events = self._events(timeout_s=START_TIMEOUT_S)
            for event in events:
                if "ready" in event:
                    self._ready = True
                    return float(event["ready"])
            if self._fork_server.poll() is not None:
                tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
                raise ExperimentError(
                    f"{self._log}: the process that starts ranks ended while importing:\n{tail}"
                )
            if not events:
                raise ExperimentError(
                    f"{self._log}: importing {', '.join(self._modules)} took more than {START_TIMEOUT_S:.0f} s; "
                    "is the disk that holds the Python environment slow?"
                )

    def describe(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the ProcessId of the process this runs in, as JSON, and the ids of the GPUs it sees."""
        return ProcessId.own().to_json(), visible_gpus()

    def installed(self) -> dict[str, str]:
        """Return the versions of Python and of packages that can change a result."""
        return code_snapshot.installed()

    def gpu_memory_bytes(self) -> float | None:
        """Return the memory of the smallest GPU it sees, None where there is none or nobody tells."""
        return gpu_memory_bytes(visible_gpus())

    def launch(self, launch: Launch, gpu_ids: Sequence[str]) -> None:
        """Fork the ranks of an attempt. A fork server that has died meanwhile is replaced first."""
        if self._fork_server.poll() is not None:
            self._take_events(0.0)
            self._close_pipes()
            self._fork_server = self._start_fork_server()
            self._ready = False
        if not self._ready:
            self.wait_until_ready()
        attempt = self._attempts[launch.key] = _Attempt(
            launch=launch,
            watch=HangDetector(
                launch.hang_after_s, sees_all=len(launch.local_ranks) == launch.ranks
            ),
        )
        for request in launch.rank_requests(gpu_ids):
            self._command(
                {
                    "start": f"{launch.key}/{request.rank}",
                    "request": request.to_json(),
                    "env": {
                        # Ours or nothing: a rank must not see GPUs that it does not hold.
                        "CUDA_VISIBLE_DEVICES": ",".join(request.gpus),
                        "OMP_NUM_THREADS": str(request.cpus),
                        **network_environment(launch.address),
                    },
                    "log": str(request.attempt_dir.log),
                    "cwd": str(Path.cwd()),
                }
            )
        while len(attempt.processes.keys() | attempt.codes.keys()) < len(launch.local_ranks):
            self._take_events(1.0)

    def poll(self) -> list[AttemptExit]:
        """Return the attempts that ended since the last call."""
        self._oom.update()
        self._take_events(0.0)
        now = self._clock()
        for attempt in self._attempts.values():
            if attempt.ended_at is not None:
                self._kill_when_told(attempt, now)
            elif attempt.deadline is not None:
                if now >= attempt.deadline:
                    self._end(attempt, now)
            elif hang := attempt.hung(now):
                attempt.hang = hang
                self._end(attempt, now)
        ended, self._ended = self._ended, []
        return ended

    def stop(self, key: str, *, hard: bool) -> None:
        """SIGTERM to the ranks of an attempt, SIGKILL if they take too long; or SIGKILL as soon as their stacks are written."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        if hard:
            self._end(attempt, self._clock())
            return
        self._signal(attempt, signal.SIGTERM)
        attempt.hurry(self._clock() + STOP_TIMEOUT_S)

    def end_with(self, key: str, *, failed: bool) -> None:
        """Give the ranks of an attempt as long as they have when one of their own ends: those on another node have."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.hurry(self._clock() + (AFTER_FAILURE_S if failed else AFTER_DONE_S))

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """SIGKILL processes of this node, wait until they are gone, return those that are not."""
        here = [process for process in processes if process.here]
        return kill_and_wait(here) + [process for process in processes if not process.here]

    def close(self) -> None:
        """End the fork server and with it every rank; wait until all are gone."""
        ranks = [p for attempt in self._attempts.values() for p in attempt.processes.values()]
        assert self._fork_server.stdin is not None, "stdin is a pipe"
        self._fork_server.stdin.close()
        try:
            self._fork_server.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._fork_server.kill()
            self._fork_server.wait()
        self._close_pipes()
        kill_and_wait(ranks)
        for attempt in self._attempts.values():
            attempt.close()
        self._attempts.clear()

    def _start_fork_server(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **with_this_package(os.environ),
            # Libraries size their thread pools when they are imported; a fork server must have none.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
            **self._environment,
        }
        self._unread = b""
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-P",
                        "-m",
                        "orchestrator.node.fork_server",
                        str(os.getpid()),
                    ),
                    *self._modules,
                    "--if-possible",
                    *self._optional,
                ],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                process_group=0 if self._own_group else None,
            )

    def _close_pipes(self) -> None:
        assert self._fork_server.stdin is not None, "stdin is a pipe"
        assert self._fork_server.stdout is not None, "stdout is a pipe"
        self._fork_server.stdin.close()
        self._fork_server.stdout.close()

    def _command(self, command: Mapping[str, Any]) -> None:
        assert self._fork_server.stdin is not None, "stdin is a pipe"
        # A fork server that died breaks the pipe; reading its events notices that and accounts for every rank.
        with contextlib.suppress(BrokenPipeError):
            # Unbuffered, and a pipe takes a line whole: nothing is left over when the fork server dies.
            self._fork_server.stdin.write(json.dumps(command).encode() + b"\n")

    def _events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what the fork server has said; wait at most `timeout_s` for the first word."""
        assert self._fork_server.stdout is not None, "stdout is a pipe"
        out = self._fork_server.stdout.fileno()
        while select.select([out], [], [], timeout_s)[0]:
            timeout_s = 0.0
            chunk = os.read(out, 1 << 16)
            if not chunk:
                self._fork_server.wait()
                break
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def _take_events(self, timeout_s: float) -> None:
        self._account(self._events(timeout_s))
        if self._fork_server.poll() is not None:
            # It may have spoken between our look and its end; a pipe keeps what a dead process said.
            self._account(self._events(0.0))
            self._fork_server_died()

    def _account(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if "ready" in event:
                self._ready = True
                continue
            key, _, rank_text = str(event.get("started") or event.get("ended")).rpartition("/")
            attempt, rank = self._attempts.get(key), int(rank_text)
            if attempt is None:
                continue
            if "started" in event:
                attempt.processes[rank] = ProcessId.from_json(event["process"])
                attempt.looks[rank] = ProgressReader(attempt.processes[rank].pid)
            else:
                self._rank_ended(attempt, rank, int(event["code"]))

    def _rank_ended(self, attempt: _Attempt, rank: int, code: int) -> None:
        attempt.codes[rank] = code
        killed = code == -signal.SIGKILL and rank not in attempt.killed_by_us
        if killed and self._oom.just_killed():
            attempt.out_of_memory.add(rank)
        if not attempt.left:
            del self._attempts[attempt.launch.key]
            attempt.close()
            self._ended.append(
                AttemptExit(
                    trial_id=attempt.launch.trial_id,
                    attempt=attempt.launch.attempt,
                    exit_codes=dict(sorted(attempt.codes.items())),
                    killed_by_launcher=frozenset(attempt.killed_by_us),
                    hang=attempt.hang,
                    last_positions=attempt.stood,
                    out_of_memory=frozenset(attempt.out_of_memory),
                )
            )
            return
        attempt.hurry(self._clock() + (AFTER_FAILURE_S if code else AFTER_DONE_S))

    def _end(self, attempt: _Attempt, now: float) -> None:
        """Ask the ranks that are left for their stacks; they are killed when these are written."""
        if attempt.ended_at is None:
            attempt.ended_at = now
            attempt.killed_by_us.update(attempt.left)
            self._signal(attempt, STACKS_SIGNAL)

    def _kill_when_told(self, attempt: _Attempt, now: float) -> None:
        stacks = {rank: attempt.looks[rank].stacks() for rank in attempt.left}
        # A dump has no end mark; one that has not grown since the last look is whole.
        whole = stacks == attempt.stacks and all(stacks.values())
        attempt.stacks = stacks
        assert attempt.ended_at is not None, "it was asked for the stacks"
        if not attempt.stood and (whole or now - attempt.ended_at >= STACKS_S):
            attempt.stood = {rank: _stood(attempt, rank) for rank in attempt.left}
            _write_stacks(attempt)
            self._signal(attempt, signal.SIGKILL)

    def _signal(self, attempt: _Attempt, number: signal.Signals) -> None:
        for rank in attempt.left:
            self._command({"signal": f"{attempt.launch.key}/{rank}", "number": int(number)})

    def _fork_server_died(self) -> None:
        """Account for the ranks that went with it. The kernel has killed them; make sure."""
        for attempt in list(self._attempts.values()):
            kill_and_wait(
                [attempt.processes[rank] for rank in attempt.left if rank in attempt.processes]
            )
            for rank in attempt.left:
                self._rank_ended(attempt, rank, -int(signal.SIGKILL))


def _stood(attempt: _Attempt, rank: int) -> str:
    """Return how far a rank was and where in its code."""
    look, stacks = attempt.looks[rank], attempt.stacks[rank]
    progress = look.progress()
    told = "before its first step" if progress is None else str(progress)
    where = innermost_call(stacks) or look.unresponsive_reason() or "it did not say where"
    return f"{told}: {where}"


def _write_stacks(attempt: _Attempt) -> None:
    """Append the stacks of all ranks to the log, one after another."""
    parts = [f"── {attempt.hang}: its ranks are ended\n"] if attempt.hang else []
    for rank, stood in attempt.stood.items():
        pid = attempt.processes[rank].pid
        parts.append(f"── rank {rank} (pid {pid}) was ended {stood}\n{attempt.stacks[rank]}")
    try:
        with attempt.launch.folder.log.open("a", encoding="utf-8") as log:
            log.write("\n".join(parts) + "\n")
    except OSError as error:  # a full disk; the reason of the attempt still tells where they stood
        LOG.warning("%s: stacks could not be written (%s)", attempt.launch.folder.log, error)


def with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a Python that must find this very package, whatever its working folder."""
    root = str(Path(orchestrator.__file__).parent.parent)
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH")))),
    }


def _workloads() -> list[str]:
    """Return the modules of every architecture and data source."""
    architectures = [f"workloads.architectures.{name}" for name in registry.architectures()]
    return architectures + [f"workloads.data.sources.{name}" for name in registry.data_sources()]
